"""The packed forward pass against a padded batch through transformers; what is forbidden."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from headrace.config.estimates.activations import CACHED_LOGITS
from headrace.config.sections.model import ModelConfig
from headrace.protocol.messages.batches import PolicyWindow, Shard
from learner.batching.token_reads import TokenReads, reads_of, sampled_windows
from learner.device import RankContext
from learner.models import forward
from learner.models.forward import Pack, PolicyNetwork, ValueNetwork
from learner.models.loading import load_critic, load_policy
from learner.models.microbatches import micro_batches
from tests.learner.padded import PaddedPolicy, PaddedValue
from tests.learner.recorded import VOCABULARY, record, save_tiny_model

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    return ModelConfig(path=str(save_tiny_model(tmp_path_factory.mktemp("model"))))


def reads_in(shard: Shard, windows: list[PolicyWindow]) -> TokenReads:
    """The sampled tokens of windows of a shard."""
    return reads_of(shard.sequences, windows, sampled_windows(shard.sequences, windows))


def pack_of(seed: int) -> Pack:
    """All windows of a recorded batch in one pack."""
    shard = record(seed=seed)
    reads = reads_in(shard, shard.windows)
    place = RankContext(device=CPU, budget=100_000)
    ((pack, _),) = micro_batches(reads, range(len(reads.token_ids)), place)
    return pack


def policies(model: ModelConfig) -> list[nn.Module]:
    kind: dict[str, Any] = {"dtype": torch.float64, "device": CPU}
    return [PolicyNetwork(load_policy(model, **kind)), PaddedPolicy(load_policy(model, **kind))]


def warm_policies(model: ModelConfig) -> list[nn.Module]:
    """Both at the temperature of a sampler that was not 1; logits in pieces of five tokens."""
    kind: dict[str, Any] = {"dtype": torch.float64, "device": CPU}
    return [
        PolicyNetwork(load_policy(model, **kind), temperature=0.6, logits_chunk=5),
        PaddedPolicy(load_policy(model, **kind), temperature=0.6),
    ]


def critics(model: ModelConfig) -> list[nn.Module]:
    kind: dict[str, Any] = {"dtype": torch.float64, "device": CPU}
    found = [load_critic(model, **kind) for _ in range(2)]
    for critic in found:
        torch.manual_seed(7)
        nn.init.normal_(critic.score.weight, std=0.3)
    return [ValueNetwork(found[0]), PaddedValue(found[1])]


@pytest.mark.parametrize("make", [policies, warm_policies, critics])
@pytest.mark.parametrize("cached", [CACHED_LOGITS, 2 * VOCABULARY])
def test_packed_is_padded(
    model: ModelConfig,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[ModelConfig], list[nn.Module]],
    cached: int,
) -> None:
    """Logprobs, entropies and values, and the gradients of a weighted sum of them."""
    monkeypatch.setattr(forward, "CACHED_LOGITS", cached)
    pack, results = pack_of(seed=1), []
    for network in make(model):
        arguments = {} if make is critics else {"entropy_gradient": True}
        output = network(pack, **arguments)
        columns = [output] if isinstance(output, Tensor) else list(output)
        weights = torch.linspace(-1, 2, pack.reads.numel(), dtype=torch.float64)
        torch.autograd.backward([(x * weights).sum() for x in columns])
        results.append((columns, dict(network.named_parameters())))
    (packed, ours), (padded, theirs) = results
    for a, b in zip(packed, padded, strict=True):
        # The models' norms work in float32, whatever the weights are.
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
    for name, parameter in theirs.items():
        grad = ours[name].grad
        assert grad is not None
        assert parameter.grad is not None
        assert (grad - parameter.grad).norm() <= 1e-5 * parameter.grad.norm(), name


@pytest.mark.parametrize("chunk", [4096, 5])
def test_a_forbidden_token_has_no_entropy(model: ModelConfig, chunk: int) -> None:
    """A head whose bias is -inf: finite logprobs of the others, entropy and gradients."""
    causal = load_policy(model, dtype=torch.float64, device=CPU)
    head = nn.Linear(32, VOCABULARY).double()
    with torch.no_grad():
        head.bias[0] = -torch.inf
    causal.set_output_embeddings(head)
    pack = pack_of(seed=2)
    scores = PolicyNetwork(causal, logits_chunk=chunk)(pack, entropy_gradient=True)
    assert scores.logprobs.isfinite().all()
    assert ((scores.entropy > 0) & (scores.entropy < torch.tensor(31.0).log() + 1e-9)).all()
    torch.autograd.backward(scores.logprobs.sum() + scores.entropy.sum())
    for parameter in causal.parameters():
        if parameter.grad is not None:
            assert parameter.grad.isfinite().all()


def test_logprobs_are_of_the_distribution_at_the_samplers_temperature(model: ModelConfig) -> None:
    """p^(1/T) normalised, of which the entropy is too; by hand from the logprobs at 1."""
    causal = load_policy(model, dtype=torch.float64, device=CPU)
    pack = pack_of(seed=1)
    with torch.no_grad():
        warm = PolicyNetwork(causal, temperature=2.0)(pack)
        every = [
            PolicyNetwork(causal)(pack._replace(targets=torch.full_like(pack.targets, token)))
            for token in range(VOCABULARY)
        ]
    root = torch.stack([scores.logprobs for scores in every], dim=1).exp().sqrt()
    p = root / root.sum(dim=1, keepdim=True)
    expected = p.gather(1, pack.targets[:, None]).squeeze(1).log()
    torch.testing.assert_close(warm.logprobs, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(warm.entropy, -(p * p.log()).sum(dim=1), rtol=1e-9, atol=1e-9)
    assert (warm.logprobs - every[0].logprobs).abs().max() > 0.1


def test_frozen_context_is_a_cache_without_gradient(model: ModelConfig) -> None:
    """Value and gradient of what transformers gives if the tokens before the one that predicts a
    window's first are a cache of keys and values made beforehand."""
    kind: dict[str, Any] = {"dtype": torch.float64, "device": CPU}
    ours = PolicyNetwork(load_policy(model, **kind))
    theirs = AutoModelForCausalLM.from_pretrained(
        model.path, dtype=torch.float64, attn_implementation="eager"
    )
    shard = record(seed=1)
    windows = {w.trajectory_id: w for w in shard.windows}
    assert {bool(w.start) for w in windows.values()} == {False, True}
    reads = reads_in(shard, list(windows.values()))
    place = RankContext(device=CPU, budget=100_000, frozen_context=True)
    ((pack, tokens),) = micro_batches(reads, range(len(reads.token_ids)), place)
    weights = torch.linspace(-1, 2, tokens.numel(), dtype=torch.float64)
    made = torch.empty_like(weights).index_copy(0, tokens, ours(pack).logprobs)
    torch.autograd.backward((made * weights).sum())
    found: list[Tensor] = []
    for window in windows.values():
        sequence = shard.sequences[window.sequence]
        known = sequence.token_ids[: sequence.opening + window.end]
        ids = torch.from_numpy(known.astype(np.int64))[None]
        first = sequence.opening + window.start - 1
        with torch.no_grad():
            cache = theirs(ids[:, :first], use_cache=True).past_key_values
        log_p = theirs(ids[:, first:-1], past_key_values=cache).logits[0].log_softmax(-1)
        found.append(log_p.gather(1, ids[0, first + 1 :, None]).squeeze(1))
    expected = torch.cat(found)
    torch.autograd.backward((expected * weights).sum())
    # The models' norms work in float32, whatever the weights are.
    torch.testing.assert_close(made, expected, rtol=1e-6, atol=1e-6)
    gradients = dict(ours.model.named_parameters())
    for name, parameter in theirs.named_parameters():
        grad = gradients[name].grad
        assert grad is not None
        assert parameter.grad is not None
        assert (grad - parameter.grad).norm() <= 1e-5 * parameter.grad.norm(), name


def test_sums_do_not_depend_on_where_weights_lie_in_their_file(tmp_path: Path) -> None:
    """A matrix product's last bits do, on a CPU: a resumed run would differ from a whole one."""
    folder = save_tiny_model(tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    for length in (8, 16, 40):
        metadata = {"format": "pt", "more": "-" * length}
        save_file(weights, folder / "model.safetensors", metadata=metadata)
        model = load_policy(ModelConfig(path=str(folder)), dtype=torch.float32, device=CPU)
        assert not any(parameter.data_ptr() % 64 for parameter in model.parameters())
