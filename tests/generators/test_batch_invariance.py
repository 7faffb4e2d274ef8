"""The torch engine's `batch_invariant`: what is sampled beside a response, and how often it was
resumed, changes none of its numbers to the bit."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from generators.engine import GenerationRequest, TokenDelta
from generators.engines.model_files import end_token_ids, read_config, weight_layout
from generators.engines.torch_engine import TorchEngine

pytestmark = pytest.mark.asyncio(loop_scope="module")
REQUESTS = [
    GenerationRequest(
        request_id=f"r{seed}",
        prompt_ids=[3 + (seed * 7 + i) % 50 for i in range(3 + 5 * seed % 11)],
        max_tokens=40,
        seed=seed,
    )
    for seed in range(12)
]
Answer = tuple[list[int], list[float]]
_names = iter(range(10**9))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(model_folder: Path, weight_files: list[Path]) -> AsyncIterator[TorchEngine]:
    config = read_config(str(model_folder))
    engine = TorchEngine(
        str(model_folder),
        weight_layout(str(model_folder), config),
        end_token_ids=end_token_ids(str(model_folder), config),
        max_model_len=300,
        max_num_seqs=5,
        batch_invariant=True,
    )
    await engine.start()
    await engine.load_weights(weight_files[0], 0)
    yield engine
    await engine.stop()


async def answer(engine: TorchEngine, request: GenerationRequest) -> Answer:
    deltas: list[TokenDelta] = [delta async for delta in engine.generate(request)]
    return (
        [token for delta in deltas for token in delta.token_ids],
        [logprob for delta in deltas for logprob in delta.logprobs],
    )


def resumed(request: GenerationRequest, beginning: list[int]) -> GenerationRequest:
    """The rest of a request, `beginning` being there."""
    return GenerationRequest(
        request_id=f"rest-{next(_names)}",
        prompt_ids=request.prompt_ids + beginning,
        max_tokens=request.max_tokens - len(beginning),
        seed=request.seed,
        position=len(beginning),
    )


async def test_neither_others_nor_resuming_change_an_answer(engine: TorchEngine) -> None:
    alone = [await answer(engine, request) for request in REQUESTS]
    assert max(len(tokens) for tokens, _ in alone) > 20
    # Side by side, five at a time, in two orders.
    together = await asyncio.gather(*[answer(engine, request) for request in REQUESTS])
    assert together == alone
    backwards = await asyncio.gather(*[answer(engine, request) for request in REQUESTS[::-1]])
    assert backwards[::-1] == alone
    # Resumed from every other token, all of them side by side.
    for request, (tokens, logprobs) in list(zip(REQUESTS, alone, strict=True))[:4]:
        cuts = range(1, len(tokens), 2)
        rests = await asyncio.gather(
            *[answer(engine, resumed(request, tokens[:cut])) for cut in cuts]
        )
        for cut, rest in zip(cuts, rests, strict=True):
            assert rest == (tokens[cut:], logprobs[cut:])


async def test_an_answer_without_a_prompt_is_one_like_others(engine: TorchEngine) -> None:
    """All that an agent's policy reads was inserted behind an empty prompt."""
    request = REQUESTS[0]
    whole = replace(request, request_id="agent", position=len(request.prompt_ids))
    tokens, logprobs = await answer(engine, whole)
    cut = len(tokens) // 2
    rest = replace(resumed(whole, tokens[:cut]), position=whole.position + cut)
    assert await answer(engine, rest) == (tokens[cut:], logprobs[cut:])
