"""The logits processor of hot tokens inside vLLM's own sampler, and with a real engine."""

import asyncio
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from generators.engine import GenerationRequest, RequestError, TokenDelta
from generators.engines.distributions import hot_logprobs
from generators.engines.model_files import end_token_ids, read_config, weight_layout
from generators.engines.vllm_engine import VllmEngine, VllmSettings, prepare_environment
from generators.engines.weights import WeightLayout
from generators.run import build_engine, check_hot
from headrace.config.sections.generator import FireConfig
from headrace.errors import UserError
from headrace.host.install import ROOT
from headrace.protocol.messages.control import FireSampling
from tests.generators.fixed_model import HOT_TOP_2, REGULAR, Z
from tests.generators.frequencies import unlikely
from tests.generators.test_run import make_config

DRAWS = 20_000
FIRE = FireSampling(temperature=30.0, top_k=2)
MODEL_RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
COLD = ROOT / "recipes" / "models" / "chain-sums-cold"


def params(fire: FireSampling | None = FIRE, ends: tuple[int, ...] = (), **request: object) -> Any:
    """What our engine asks vLLM for."""
    engine = VllmEngine(VllmSettings("m", 32, ends, hot_tokens=True), WeightLayout({}, frozenset()))
    asked = GenerationRequest("r", [1, 2], max_tokens=4, seed=1, fire=fire, **request)  # type: ignore[arg-type]
    return engine.sampling_params(asked)


class Batch:
    """The processor in vLLM's sampler, as its model runner holds them."""

    def __init__(self) -> None:
        from generators.engines.vllm_fire import HotToken

        self.processor = HotToken(None, torch.device("cpu"), False)

    def update(
        self,
        size: int,
        added: Sequence[tuple[int, Any, list[int] | None, list[int]]] = (),
        removed: Sequence[int] = (),
        moved: Sequence[Any] = (),
    ) -> None:
        from vllm.v1.sample.logits_processor import BatchUpdate

        self.processor.update_state(
            BatchUpdate(batch_size=size, removed=removed, added=added, moved=moved)
        )

    def sample(self, logits: torch.Tensor, temperature: float = 1.0) -> tuple[Any, torch.Tensor]:
        """Token ids [rows] and the logprobs [rows, vocabulary] that vLLM reports."""
        from vllm.v1.sample.logits_processor import LogitsProcessors
        from vllm.v1.sample.metadata import SamplingMetadata
        from vllm.v1.sample.sampler import Sampler

        rows, nothing = len(logits), torch.zeros(0)
        metadata = SamplingMetadata(
            temperature=torch.full((rows,), temperature), all_greedy=False, all_random=True,
            top_p=None, top_k=None, generators={}, max_num_logprobs=0, no_penalties=True,
            prompt_token_ids=None, frequency_penalties=nothing, presence_penalties=nothing,
            repetition_penalties=nothing, output_token_ids=[], allowed_token_ids_mask=None,
            bad_words_token_ids={}, logitsprocs=LogitsProcessors([self.processor]),
        )  # fmt: skip
        sampler = Sampler(logprobs_mode="processed_logprobs")
        processed = sampler.apply_logits_processors(logits.clone(), metadata, False)
        tokens, logprobs = sampler.sample(processed, metadata)
        assert logprobs is not None
        return tokens.tolist(), logprobs


def test_frequencies_in_the_sampler_of_vllm() -> None:
    """At temperature 0.7, which must not come near the hot token."""
    torch.manual_seed(0)
    batch, outputs = Batch(), [list[int]() for _ in range(DRAWS)]
    asked = params(temperature=0.7)
    batch.update(DRAWS, [(row, asked, [1, 2], out) for row, out in enumerate(outputs)])
    logits = torch.tensor(Z).repeat(DRAWS, 1)
    tokens, logprobs = batch.sample(logits, temperature=0.7)
    assert unlikely(tokens, HOT_TOP_2) == []
    assert logprobs[0, :2].exp().tolist() == pytest.approx(HOT_TOP_2[:2], abs=5e-6)
    for out, token in zip(outputs, tokens, strict=True):
        out.append(token)
    batch.processor.update_state(None)
    second, _ = batch.sample(logits, temperature=1.0)
    assert unlikely(second, REGULAR) == []


def test_rows_without_fire_stay_as_they_are_and_places_move() -> None:
    from vllm.v1.sample.logits_processor import MoveDirectionality

    batch, logits = Batch(), torch.tensor(Z).repeat(3, 1)
    regular, hot = torch.tensor(Z).log_softmax(-1), torch.tensor(HOT_TOP_2).log()

    def check(*rows: torch.Tensor) -> None:
        _, logprobs = batch.sample(logits)
        assert torch.allclose(logprobs.exp(), torch.stack(rows).exp(), atol=5e-6)

    batch.update(3, [(0, params(None), None, []), (1, params(), None, []), (2, params(), None, [])])
    check(regular, hot, hot)
    batch.update(3, moved=[(0, 1, MoveDirectionality.SWAP)])
    check(hot, regular, hot)
    batch.update(3, [(2, params(None), None, [])])
    check(hot, regular, regular)
    resumed = [7]
    batch.update(3, [(2, params(), None, resumed), (0, params(None), None, [])])
    check(regular, regular, regular)


def test_end_tokens_of_the_engine_are_banned() -> None:
    batch = Batch()
    batch.update(1, [(0, params(ends=(0,)), None, [])])
    _, logprobs = batch.sample(torch.tensor([Z]))
    assert torch.isneginf(logprobs[0]).tolist() == [True, False, False, True]


def test_no_sampling_setting_takes_the_place_of_the_hot_ones() -> None:
    """A config with a temperature of its own once overwrote the hot one, key by key, and the first
    token was regular: verl's former FIRE rollout. Here they share no key."""
    from generators.engines.vllm_fire import hot_sampling

    asked = params(temperature=0.7)
    assert (asked.temperature, asked.top_p) == (0.7, 1.0)
    assert hot_sampling(asked) == FIRE


@pytest.mark.parametrize(
    ("overwritten", "reason"),
    [
        ({"temperature": 0.0}, "takes the likeliest token"),
        ({"temperature": 30.0}, "temperature = 30 is no cooler than 30"),
        ({"top_k": 1}, "top_k = 1 cuts 2 candidates down"),
        ({"top_p": 0.9}, "top_p = 0.9 changes the distribution"),
        ({"min_p": 0.1}, "min_p = 0.1 changes"),
        ({"repetition_penalty": 1.2}, "repetition_penalty = 1.2 changes"),
        ({"logit_bias": {1: 5.0}}, "logit_bias = {1: 5.0} changes"),
    ],
)
def test_settings_that_undo_the_hot_token_are_refused(
    overwritten: dict[str, object], reason: str
) -> None:
    from generators.engines.vllm_fire import HotToken

    asked = params()
    HotToken.validate_params(asked)
    for name, value in overwritten.items():
        setattr(asked, name, value)
    with pytest.raises(ValueError, match=reason):
        HotToken.validate_params(asked)
    asked.extra_args = None
    HotToken.validate_params(asked)


def test_the_ban_of_images_tokens_leaves_the_first_token_hot() -> None:
    """The engine of a policy that sees images bans its placeholders in every request. Divided by a
    temperature of 30, a bias of -100 alone would leave each a chance where all are candidates."""
    from generators.engines.vllm_fire import HotToken

    settings = VllmSettings("m", 32, (), hot_tokens=True, banned_ids=(3,))
    engine = VllmEngine(settings, WeightLayout({}, frozenset()))
    fire = FireSampling(temperature=30.0, top_k=-1)
    asked = engine.sampling_params(GenerationRequest("r", [1, 2], max_tokens=4, seed=1, fire=fire))
    assert asked.logit_bias == {3: -100.0}
    HotToken.validate_params(asked)
    batch = Batch()
    batch.update(1, [(0, asked, None, [])])
    _, logprobs = batch.sample(torch.tensor([[*Z[:3], Z[3] - 100.0]]))
    assert torch.isneginf(logprobs[0]).tolist() == [False, False, False, True]


def test_malformed_hot_settings_are_refused() -> None:
    from generators.engines.vllm_fire import EXTRA_ARG, HotToken

    asked = params()
    asked.extra_args = {EXTRA_ARG: {"temperature": "hot"}}
    with pytest.raises(ValueError, match=EXTRA_ARG):
        HotToken.validate_params(asked)


def test_hot_tokens_choose_the_model_runner_that_their_processor_is_made_for() -> None:
    with mock.patch.dict(os.environ):
        os.environ.pop(MODEL_RUNNER, None)
        prepare_environment(VllmSettings("m", 32, ()))
        assert MODEL_RUNNER not in os.environ
        prepare_environment(VllmSettings("m", 32, (), hot_tokens=True))
        assert os.environ[MODEL_RUNNER] == "0"


@pytest.mark.parametrize("fire", [None, FireConfig()])
def test_the_processor_is_loaded_where_the_configuration_has_fire(
    model_folder: Path, fire: FireConfig | None
) -> None:
    config = make_config(model_folder, "vllm")
    generator = config.generator.model_copy(update={"fire": fire})
    engine = build_engine(config.model_copy(update={"generator": generator}))
    assert isinstance(engine, VllmEngine)
    assert ("logits_processors" in engine._engine_args()) == (fire is not None)


async def test_an_engine_built_without_the_processor_says_so() -> None:
    engine = VllmEngine(VllmSettings("m", 32, ()), WeightLayout({}, frozenset()))
    request = GenerationRequest("r", [1, 2], max_tokens=4, seed=1, fire=FIRE)
    with pytest.raises(RequestError, match="built without hot tokens"):
        await anext(aiter(engine.generate(request)))


# -- the real engine -------------------------------------------------------------------------------

PROMPT = [15, 5, 16, 7, 17, 9, 4]
REQUESTS, AFTER = 2000, 400
CANDIDATES = FireSampling(temperature=30.0, top_k=4)


def reference(model: Any, ids: list[int]) -> torch.Tensor:
    """Logits of the next token, by transformers."""
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0, -1].float()


async def ask_all(engine: VllmEngine, count: int, offset: int) -> list[list[TokenDelta]]:
    async def one(seed: int) -> list[TokenDelta]:
        fire = CANDIDATES if seed % 4 else None
        request = GenerationRequest(
            f"{offset}-{seed}", PROMPT, max_tokens=2, seed=offset + seed, temperature=0.8, fire=fire
        )
        return [delta async for delta in engine.generate(request)]

    return await asyncio.gather(*[one(seed) for seed in range(count)])


def check_streams(model: Any, streams: list[list[TokenDelta]], ends: Sequence[int]) -> None:
    """Marks, logprobs of both tokens, and frequencies of the first ones, hot and regular."""
    z = reference(model, PROMPT)
    regular, q = (z / 0.8).log_softmax(-1), hot_logprobs(z, CANDIDATES, ends)
    firsts: dict[bool, list[int]] = {True: [], False: []}
    seconds: dict[int, torch.Tensor] = {}
    drawn: dict[int, list[int]] = {}
    for seed, deltas in enumerate(streams):
        tokens = [token for delta in deltas for token in delta.token_ids]
        logprobs = [logprob for delta in deltas for logprob in delta.logprobs]
        hot = bool(seed % 4)
        assert [delta.hot for delta in deltas] == [hot] + [False] * (len(deltas) - 1)
        first = tokens[0]
        firsts[hot].append(first)
        wanted = (q if hot else regular)[first].item()
        assert math.isclose(logprobs[0], wanted, abs_tol=1e-4)
        if first in ends:
            continue
        if first not in seconds:
            seconds[first] = (reference(model, [*PROMPT, first]) / 0.8).log_softmax(-1)
        assert math.isclose(logprobs[1], seconds[first][tokens[1]].item(), abs_tol=1e-4)
        drawn.setdefault(first, []).append(tokens[1])
    assert unlikely(firsts[True], q.exp().tolist(), sigmas=4) == []
    assert unlikely(firsts[False], regular.exp().tolist(), sigmas=4) == []
    most = max(drawn, key=lambda first: len(drawn[first]))
    assert unlikely(drawn[most], seconds[most].exp().tolist(), sigmas=4) == []


@pytest.mark.vllm
@pytest.mark.slow
async def test_a_real_engine_draws_and_reports_the_hot_distribution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many hot requests among regular ones, before and after other weights came. Settings of the
    hot token that get lost on the way into the engine are found by the check."""
    path = str(COLD)
    config = read_config(path)
    ends = end_token_ids(path, config)
    settings = VllmSettings(
        path, 64, ends, max_num_seqs=64, kv_cache_gib=0.1, stream_interval=8, hot_tokens=True
    )
    engine = VllmEngine(settings, weight_layout(path, config))
    await engine.start()
    await check_hot(engine, temperature=0.8)
    with monkeypatch.context() as patch:
        patch.setattr(engine, "_extra_args", lambda request: None)
        with pytest.raises(UserError, match="first token is not hot"):
            await check_hot(engine, temperature=0.8)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    check_streams(model, await ask_all(engine, REQUESTS, 0), ends)

    tensors = {k: v.float() * 1.05 for k, v in load_file(str(COLD / "model.safetensors")).items()}
    save_file(tensors, str(tmp_path / "new.safetensors"))
    live = asyncio.create_task(ask_all(engine, AFTER, REQUESTS))
    await engine.load_weights(tmp_path / "new.safetensors", 1)
    assert all(deltas[0].hot == bool(seed % 4) for seed, deltas in enumerate(await live))
    model.load_state_dict(tensors, strict=False)
    check_streams(model, await ask_all(engine, AFTER, REQUESTS + AFTER), ends)
    await engine.stop()
