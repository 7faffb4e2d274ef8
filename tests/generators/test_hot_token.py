"""Hot first tokens: on the engines (FIRE's test A), in the vLLM processor, and the start-up check.

Frequencies are those of 20,000 draws on fixed logits, within three standard deviations.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from generators import run
from generators.engine import GenerationRequest, TokenDelta
from generators.engines.fake_engine import FakeEngine
from generators.engines.torch_engine import TorchEngine
from generators.engines.weights import WeightLayout
from generators.run import check_hot
from headrace.config.sections.generator import FireConfig
from headrace.errors import UserError
from headrace.protocol.messages.control import FireSampling, Hello
from headrace.protocol.transport.sockets import Link
from tests.generators.fixed_model import HOT_TOP_2, REGULAR, save_fixed_model
from tests.generators.frequencies import unlikely
from tests.generators.scripted import NAME, ScriptedCoordinator
from tests.generators.test_run import make_config

DRAWS = 20_000
FIRE = FireSampling(temperature=30.0, top_k=2)


def ask(seed: int, **changes: object) -> GenerationRequest:
    fields: dict[str, object] = {
        "request_id": str(seed), "prompt_ids": [0, 1], "max_tokens": 2, "seed": seed, "fire": FIRE,
    }  # fmt: skip
    return GenerationRequest(**(fields | changes))  # type: ignore[arg-type]


def fixed_engine(folder: Path, ends: tuple[int, ...] = ()) -> TorchEngine:
    path = str(save_fixed_model(folder))
    layout = WeightLayout({}, frozenset())
    return TorchEngine(path, layout, end_token_ids=ends, max_model_len=32, max_num_seqs=1024)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fixed")


async def collect(engine: TorchEngine, request: GenerationRequest) -> list[TokenDelta]:
    return [delta async for delta in engine.generate(request)]


async def responses(engine: TorchEngine, requests: list[GenerationRequest]) -> list[list[int]]:
    streams = await asyncio.gather(*[collect(engine, request) for request in requests])
    return [[token for delta in deltas for token in delta.token_ids] for deltas in streams]


async def test_frequencies_of_the_torch_engine(folder: Path) -> None:
    engine = fixed_engine(folder)
    await engine.start()
    tokens = await responses(engine, [ask(seed) for seed in range(DRAWS)])
    assert unlikely([first for first, _ in tokens], HOT_TOP_2) == []
    assert unlikely([second for _, second in tokens], REGULAR) == []
    plain = await responses(engine, [ask(seed, fire=None) for seed in range(DRAWS)])
    assert unlikely([first for first, _ in plain], REGULAR) == []
    await engine.stop()


@pytest.fixture(params=["fake", "torch"])
async def engine(
    request: pytest.FixtureRequest, folder: Path
) -> AsyncIterator[TorchEngine | FakeEngine]:
    built = FakeEngine() if request.param == "fake" else fixed_engine(folder)
    await built.start()
    yield built
    await built.stop()


async def test_one_token_is_marked_and_none_of_a_resumed_response(engine: TorchEngine) -> None:
    """The first that is sampled, though a chat's frame or an environment's word stands before it;
    who resumes a response asks for none."""

    def marks(deltas: list[TokenDelta]) -> list[bool]:
        return [delta.hot for delta in deltas if delta.token_ids]

    assert marks(await collect(engine, ask(1))) == [True, False]
    behind = ask(1, prompt_ids=[0, 1, 1], position=1)
    assert marks(await collect(engine, behind)) == [True, False]
    assert marks(await collect(engine, replace(behind, fire=None))) == [False] * 2
    assert marks(await collect(engine, ask(1, fire=None))) == [False] * 2


async def test_the_check_passes_where_hot_tokens_are_hot(engine: TorchEngine) -> None:
    await check_hot(engine, temperature=1.0)


async def test_a_resumed_response_draws_as_if_it_had_not_been_cut(folder: Path) -> None:
    engine = fixed_engine(folder)
    await engine.start()
    whole = await responses(engine, [ask(seed, max_tokens=6) for seed in range(20)])
    rest = [
        ask(seed, max_tokens=4, prompt_ids=[0, 1, *tokens[:2]], position=2, fire=None)
        for seed, tokens in enumerate(whole)
    ]
    assert await responses(engine, rest) == [tokens[2:] for tokens in whole]
    await engine.stop()


async def test_a_hot_end_token_is_banned_or_ends_the_response(folder: Path) -> None:
    engine = fixed_engine(folder, ends=(0,))
    await engine.start()
    banned = await responses(engine, [ask(seed) for seed in range(200)])
    assert {first for first, *_ in banned} == {1, 2}
    allowed = FireSampling(temperature=30.0, top_k=2, ban_eos=False)
    ended = await responses(engine, [ask(seed, fire=allowed) for seed in range(200)])
    assert {first for first, *_ in ended} == {0, 1}
    assert all(len(tokens) == 1 for tokens in ended if tokens[0] == 0)
    await engine.stop()


class ForgetfulEngine(FakeEngine):
    """An engine that does not know of hot tokens, or whose settings for them got lost on the way:
    the temperature of everything else was copied over that of the hot token."""

    def __init__(self, *, marks: bool) -> None:
        super().__init__()
        self._marks = marks

    async def generate(self, request: GenerationRequest) -> AsyncIterator[TokenDelta]:
        deltas = [delta async for delta in super().generate(_cold(request))]
        for i, delta in enumerate(deltas):
            yield delta._replace(hot=self._marks and i == 0)


def _cold(request: GenerationRequest) -> GenerationRequest:
    return ask(request.seed, prompt_ids=request.prompt_ids, fire=None)


@pytest.mark.parametrize("marks", [False, True])
async def test_an_engine_that_undoes_the_hot_token_in_silence_is_found(marks: bool) -> None:
    with pytest.raises(UserError, match="first token is not hot") as caught:
        await check_hot(ForgetfulEngine(marks=marks), temperature=1.0)
    assert "\n" not in str(caught.value)


async def test_a_generator_with_fire_checks_its_engine_before_it_offers_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = make_config(tmp_path, "fake")
    fire = config.generator.model_copy(update={"fire": FireConfig()})
    config = config.model_copy(update={"generator": fire})
    coordinator = ScriptedCoordinator(config.model_dump_json())
    server = asyncio.create_task(coordinator.serve())
    monkeypatch.setattr(run, "build_engine", lambda *_: ForgetfulEngine(marks=True))
    cpus = sorted(os.sched_getaffinity(0))
    with pytest.raises(UserError, match="first token is not hot"):
        await run.generate(Link(coordinator.router.address), NAME, cpus)
    hellos = [message for message in coordinator.seen if isinstance(message, Hello)]
    assert {hello.capacity for hello in hellos} == {0}
    server.cancel()
    coordinator.router.close()


class HotterEngine(FakeEngine):
    """An engine whose every token is hot."""

    async def generate(self, request: GenerationRequest) -> AsyncIterator[TokenDelta]:
        async for delta in super().generate(request):
            yield delta._replace(hot=True)


async def test_an_engine_that_marks_all_tokens_is_found() -> None:
    with pytest.raises(UserError, match="first token is not hot"):
        await check_hot(HotterEngine(), temperature=1.0)
