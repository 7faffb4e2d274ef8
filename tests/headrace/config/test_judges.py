"""Judges of a run in a recipe: their folders, their memory, and sources that name them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.config.device_defaults import resolve
from headrace.config.estimates.memory import host_memory
from headrace.config.estimates.model_shape import model_shape
from headrace.config.loading.recipe import load_recipe
from headrace.config.preflight.checks import check_model
from headrace.config.sections.reward import RewardConfig
from headrace.config.sections.run import RunConfig
from headrace.config.validation.section_rules import reward_problems
from headrace.errors import UserError
from headrace.host.hardware import GIB, Hardware
from tests.headrace.conftest import write_model


def problems(**section: Any) -> list[str]:
    return list(reward_problems(RewardConfig.model_validate(section)))


def test_a_source_names_a_judge_that_there_is() -> None:
    judge = {"kind": "judge", "options": {"judge": "fair"}}
    assert problems(**judge, judges={"fair": {"path": "m"}}) == []
    (line,) = problems(**judge)
    assert line == "reward.options.judge: there is no reward.judges.fair (there are none)"
    (line,) = problems(sources={"a": judge}, route={"default": "a"}, judges={"far": {"path": "m"}})
    assert line.startswith("reward.sources.a.options.judge: there is no reward.judges.fair")
    by_url = {"kind": "judge", "options": {"url": "http://h", "model": "m"}}
    assert problems(**by_url) == []


def test_a_path_is_looked_up_beside_the_recipe(recipe: Path) -> None:
    write_model(recipe.parent / "fair")
    config = load_recipe(recipe, ['reward.judges.fair={path="fair"}'])
    assert config.reward.judges["fair"].path == str(recipe.parent / "fair")
    check_model(config)


def test_a_folder_that_is_none_is_one_line(recipe: Path) -> None:
    config = load_recipe(recipe, ['reward.judges.fair={path="nowhere/at/all"}'])
    with pytest.raises(UserError, match=r"^reward.judges.fair.path = .*no such model folder"):
        check_model(config)
    folder = write_model(recipe.parent / "mute")
    (folder / "tokenizer.json").unlink()
    config = load_recipe(recipe, ['reward.judges.fair={path="mute"}'])
    with pytest.raises(UserError, match=r"^reward.judges.fair.path = .*no tokenizer in it"):
        check_model(config)


def test_a_judge_takes_memory(make_config: Callable[..., RunConfig], tmp_path: Path) -> None:
    folder = write_model(tmp_path / "fair", parameters=1_000_000)
    shape = model_shape(folder)
    judges = f'reward.judges.fair={{path="{folder}",kv_cache_gib=2}}'
    cpu = Hardware((0, 1), 64 * GIB, 64 * GIB)
    plain, judged = (resolve(make_config(*words), cpu).config for words in ((), (judges,)))
    with_judge = host_memory(judged, shape, on_gpu=False)
    assert (
        with_judge.total - host_memory(plain, shape, on_gpu=False).total
        == (with_judge.parts["judge fair"])
    )
    assert with_judge.parts["judge fair"] > 2 * GIB + 8_000_000
    assert host_memory(judged, shape, on_gpu=True).parts["judge fair"] < 2 * GIB
    # Mistral's folders hold the weights in a second format, which vLLM does not load.
    (folder / "consolidated.safetensors").write_bytes(bytes(8_000_000))
    assert host_memory(judged, shape, on_gpu=False).parts == with_judge.parts


def test_a_rate_that_deadlines_cannot_hold_is_said() -> None:
    options: dict[str, Any] = {"url": "http://h", "model": "m", "requests_per_minute": 60}
    judge: dict[str, Any] = {"kind": "judge", "options": options}
    (line,) = problems(**judge)
    assert line == (
        "reward.options.requests_per_minute: 32 questions in flight take 32 s at this rate, and "
        "reward.timeout_s is 10: raise that, or lower reward.concurrency"
    )
    assert problems(**judge, timeout_s=32.0) == []
    assert problems(**judge, concurrency=10) == []
    options["mode"] = "pairwise"
    (line,) = problems(**judge, concurrency=10)
    assert "20 questions in flight take 20 s" in line
