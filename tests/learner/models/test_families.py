"""Every family of models is computed as by its own code, or is refused by its name."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AttentionInterface, AutoModelForCausalLM

from headrace.config.sections.model import ModelConfig
from headrace.errors import UserError
from learner.batching.layout import layout_of
from learner.batching.token_reads import TokenReads
from learner.device import RankContext
from learner.models import forward
from learner.models.attention import ATTENTION, packed_attention
from learner.models.deepspeed_engine import StepLog
from learner.models.family_check import check_folder, may_share_rows, random_twin
from learner.models.forward import PolicyNetwork, ValueNetwork
from learner.models.inference import infer
from learner.models.loading import file_weights, load_critic, load_policy
from learner.process.weight_publishing import weights_of
from tests.learner.models.families import FAMILIES, VOCABULARY, save_family

CPU = torch.device("cpu")
ONE_A_ROW = {"bamba", "falcon_h1", "jamba", "lfm2", "minimax", "qwen3_5_text", "qwen3_next"}
REFUSED = {"nemotron", "stablelm"}
LENGTHS, OPENING = (40, 31, 23), 7
PAGE = Path(__file__).parents[3] / "docs" / "operations.md"


def answers() -> TokenReads:
    """Three sequences with one opening, all tokens after it read."""
    rng = np.random.default_rng(0)
    opening = rng.integers(3, VOCABULARY, OPENING)
    ids = [np.append(opening, rng.integers(3, VOCABULARY, n - OPENING)) for n in LENGTHS]
    return TokenReads(
        trajectories=list(range(len(ids))),
        token_ids=[x.astype(np.int32) for x in ids],
        sequence_of=np.repeat(np.arange(len(ids)), [n - OPENING for n in LENGTHS]),
        position_of=np.concatenate([np.arange(OPENING, n) for n in LENGTHS]),
        targets=np.concatenate([x[OPENING:] for x in ids]),
        openings=[OPENING] * len(ids),
    )


def computed(network: Any, reads: TokenReads, *, shares: bool) -> Tensor:
    """As an update computes them."""
    place = RankContext(device=CPU, budget=200 if shares else 1, shares_openings=shares)
    return infer(network, reads, range(len(reads.token_ids)), place, log=StepLog())


def by_its_own_code(model: Any, reads: TokenReads) -> Tensor:
    """Logprobs of the reads by the family's own class, one sequence at a time."""
    found = []
    for ids in reads.token_ids:
        x = torch.from_numpy(ids.astype(np.int64))
        log_p = model(input_ids=x[None], use_cache=False).logits[0].log_softmax(-1)
        found.append(log_p[OPENING - 1 : -1].gather(1, x[OPENING:, None])[:, 0])
    return torch.cat(found)


@torch.no_grad()
@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_right_or_refused(name: str, tmp_path: Path) -> None:
    """Logprobs to 1e-4, the value model by the same check; and what is published is what the
    folder's own file has, by name and value."""
    config = ModelConfig(path=str(save_family(name, tmp_path)))
    if name in REFUSED:
        with pytest.raises(UserError, match=f"^{name} models cannot be trained here"):
            check_folder(config, with_critic=True)
        return
    check_folder(config, with_critic=True)
    policy = load_policy(config, dtype=torch.float32, device=CPU)
    critic = load_critic(config, dtype=torch.float32, device=CPU)
    nn.init.normal_(critic.score.weight)
    shares = name not in ONE_A_ROW
    assert may_share_rows(PolicyNetwork(policy)) is may_share_rows(ValueNetwork(critic)) is shares
    own = AutoModelForCausalLM.from_pretrained(config.path, attn_implementation="eager")
    reads = answers()
    found = computed(PolicyNetwork(policy), reads, shares=shares)
    torch.testing.assert_close(found, by_its_own_code(own, reads), rtol=0, atol=1e-4)
    published = weights_of(file_weights(policy, policy.state_dict()), dtype=None)
    file = load_file(tmp_path / "model.safetensors")
    assert published.keys() == file.keys()
    for key, tensor in file.items():
        torch.testing.assert_close(published[key], tensor, rtol=0, atol=0, msg=key)


@pytest.mark.parametrize("name", ["cohere2", "gemma2", "granite", "falcon_h1"])
def test_what_is_left_out_behind_the_head_is_found(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ModelConfig(path=str(save_family(name, tmp_path)))
    monkeypatch.setattr(forward, "_after_the_head", lambda _config: (1.0, None))
    with pytest.raises(UserError, match=f"{name} .* differ from the model's own"):
        check_folder(config, with_critic=False)


def test_attention_knows_what_it_is_asked_or_says_so() -> None:
    x, layout = torch.zeros(1, 1, 1, 4), layout_of([1], device=CPU)
    with pytest.raises(ValueError, match="knows no alibi"):
        packed_attention(nn.Identity(), x, x, x, None, layout=layout, alibi=2.0)


def test_a_name_that_no_file_has_is_refused(tmp_path: Path) -> None:
    """Experts that are one tensor in memory and many in the files are published as the files have
    them; a folder of other names is refused before a weight is read."""
    save_family("llama", tmp_path / "other")
    folder = save_family("qwen3_moe", tmp_path / "model")
    (tmp_path / "other" / "model.safetensors").replace(folder / "model.safetensors")
    with pytest.raises(UserError, match=r"qwen3_moe .*experts\.0\..* would be published"):
        check_folder(ModelConfig(path=str(folder)), with_critic=False)


@torch.no_grad()
def test_values_are_no_bfloat16_numbers(tmp_path: Path) -> None:
    config = ModelConfig(path=str(save_family("llama", tmp_path)))
    for dtype, autocast in ((torch.float32, torch.bfloat16), (torch.bfloat16, None)):
        critic = load_critic(config, dtype=dtype, device=CPU)
        nn.init.normal_(critic.score.weight)
        values = computed(ValueNetwork(critic, autocast=autocast), answers(), shares=True)
        assert values.dtype == torch.float32
        assert (values.bfloat16().float() != values).any()


@torch.no_grad()
def test_a_head_in_float32_errs_less(tmp_path: Path) -> None:
    config, reads = ModelConfig(path=str(save_family("llama", tmp_path))), answers()

    def logprobs(dtype: torch.dtype, *, wide: bool) -> Tensor:
        model = load_policy(config, dtype=dtype, device=CPU)
        model.lm_head.weight.mul_(8)  # what the head rounds is more than what stands before it
        return computed(PolicyNetwork(model, wide_head=wide), reads, shares=True)

    exact = logprobs(torch.float32, wide=False)
    errors = [(logprobs(torch.bfloat16, wide=wide) - exact).abs().mean() for wide in (False, True)]
    assert errors[1] < errors[0]


def test_the_page_names_every_family() -> None:
    """Right, right with one sequence a row, or refused."""
    section = PAGE.read_text(encoding="utf-8").split("## Which models", 1)[1].split("\n## ", 1)[0]
    rows = [
        set(re.findall(r"`([a-z0-9_]+)`", line)) for line in section.splitlines() if line[:1] == "|"
    ]
    rows = [row for row in rows if row]
    assert rows == [FAMILIES.keys() - ONE_A_ROW - REFUSED, ONE_A_ROW, REFUSED]


def other_kernel(*args: Any, **kwargs: Any) -> Any:
    """Our attention, rounded once, as a kernel of a GPU has it."""
    module, q, k, v, *rest = args
    out, weights = packed_attention(module, q.float(), k.float(), v.float(), *rest, **kwargs)
    return out.to(q.dtype), weights


def too_wide(*args: Any, **kwargs: Any) -> Any:
    """Attention that is wrong."""
    kwargs["scaling"] *= 0.5
    return packed_attention(*args, **kwargs)


def test_rounding_is_not_taken_for_a_wrong_family(tmp_path: Path) -> None:
    """Sharp weights in bfloat16 differ by more than the bound between two kernels, as
    SmolLM2-135M did on the first GPU; what is wrong is seen all the same."""
    config = ModelConfig(path=str(save_family("llama", tmp_path)))
    model = load_policy(config, dtype=torch.float32, device=CPU)
    model.get_output_embeddings().weight.data *= 60
    model.bfloat16()
    state = torch.get_rng_state()
    twin = random_twin(model, trust_remote_code=False)
    assert twin.dtype == torch.bfloat16
    assert torch.equal(torch.get_rng_state(), state)
    try:
        AttentionInterface.register(ATTENTION, other_kernel)
        with pytest.raises(UserError, match="differ from the model's own"):
            may_share_rows(PolicyNetwork(model))
        assert may_share_rows(PolicyNetwork(twin))
        AttentionInterface.register(ATTENTION, too_wide)
        with pytest.raises(UserError, match="differ from the model's own"):
            may_share_rows(PolicyNetwork(twin))
    finally:
        AttentionInterface.register(ATTENTION, packed_attention)
