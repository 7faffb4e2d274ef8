"""A generator's engine for a command: a real process with the torch engine."""

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from generators.engine import GenerationRequest
from generators.engines.model_files import end_token_ids, read_config, weight_layout
from generators.engines.torch_engine import TorchEngine
from headrace.config.sections.run import RunConfig
from headrace.errors import RunFailedError, UserError
from headrace_cli.launch.sampler import open_sampler
from tasks.make_models.cold_start import build_model
from tasks.procedural.character_tokenizer import build_tokenizer

Make = Callable[..., RunConfig]
PROMPT = [4, 5, 6]


@pytest.fixture(name="model", scope="module")
def _model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy")
    tokenizer = build_tokenizer("abcdefgh")
    build_model(tokenizer, 0, mlp_width=64).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def configured(make_config: Make, model: Path) -> RunConfig:
    return make_config(
        f"model.path={model}", "generator.engine=torch", "task.max_prompt_length=8",
        "task.max_response_length=24", "schedule.window=12",
    )  # fmt: skip


async def test_what_is_written_is_what_the_engine_samples(make_config: Make, model: Path) -> None:
    """Alone and side by side, from the start and behind a prefix; one that is too long is refused
    and costs nobody else anything."""
    path, shape = str(model), read_config(str(model))
    engine = TorchEngine(
        path, weight_layout(path, shape), end_token_ids=end_token_ids(path, shape), max_model_len=32
    )
    await engine.start()
    request = GenerationRequest("one", [*PROMPT, 7], max_tokens=10, seed=3, position=1)
    deltas = [delta async for delta in engine.generate(request)]
    await engine.stop()
    expected = [token for delta in deltas for token in delta.token_ids]

    async with open_sampler(configured(make_config, model)) as sampler:
        alone = await sampler.sample(PROMPT, [7], max_tokens=10, seed=3)
        assert alone.ids == expected
        assert alone.finished == (deltas[-1].finish == "stop")
        together = await asyncio.gather(
            *(sampler.sample(PROMPT, [7], max_tokens=10, seed=seed) for seed in (3, 4, 5)),
            sampler.sample([5] * 32, [], max_tokens=4, seed=0),
            return_exceptions=True,
        )
        assert isinstance(together[3], UserError)
        written = [each for each in together[:3] if not isinstance(each, BaseException)]
        assert written[0].ids == expected
        assert len({tuple(each.ids) for each in written}) > 1
        assert sampler.tokens == len(expected) + sum(len(each.ids) for each in written)


async def test_a_policy_that_is_none_is_the_users_mistake(
    make_config: Make, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="is no Hugging Face model"):
        async with open_sampler(configured(make_config, tmp_path)):
            raise AssertionError("there is no engine")


async def test_whoever_asks_learns_that_the_process_is_gone(make_config: Make, model: Path) -> None:
    async with open_sampler(configured(make_config, model)) as sampler:
        waiting = asyncio.create_task(sampler.sample(PROMPT, [], max_tokens=24, seed=0))
        await asyncio.sleep(0)
        os.kill(sampler._process.pid, signal.SIGKILL)
        await asyncio.wait([waiting])
        with pytest.raises(RunFailedError, match="process"):
            await sampler.sample(PROMPT, [], max_tokens=2, seed=0)
        assert waiting.exception() is None or isinstance(waiting.exception(), RunFailedError)
