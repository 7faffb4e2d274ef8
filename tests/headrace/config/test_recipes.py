"""Every recipe that is shipped: it loads, nothing contradicts, and it names every slot."""

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from headrace.config.loading.recipe import load_recipe
from headrace.config.preflight.checks import problems
from headrace.config.preflight.explain import facts
from headrace.config.sections.algorithm import AlgorithmConfig, EgaeConfig, GroupAdvantageConfig
from headrace.config.sections.run import RunConfig

FOLDER = Path(__file__).resolve().parents[3] / "recipes"
ALGORITHMS = sorted((FOLDER / "algorithms").glob("*.toml"))
RECIPES = [*sorted(FOLDER.glob("*.toml")), *ALGORITHMS]
CRITIC_FREE = ("dapo", "grpo", "rloo", "reinforcepp")


def load(name: str, *overrides: str) -> RunConfig:
    return load_recipe(FOLDER / "algorithms" / f"{name}.toml", overrides)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_it_loads_and_nothing_is_wrong(path: Path) -> None:
    assert problems(load_recipe(path)) == []


def commands(path: Path) -> list[list[str]]:
    """The overrides of each `headrace train` in the comment at a recipe's top."""
    head = path.read_text(encoding="utf-8").split("\nname =")[0]
    calls = re.findall(r"headrace train (recipes/.*)", re.sub(r"\\\n#", "", head))
    words = [shlex.split(call, comments=True) for call in calls]
    assert {FOLDER.parent / first for first, *_ in words} == {path}
    return [[word for word in rest if "=" in word] for _, *rest in words]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_each_command_of_its_head_works_and_changes_something(path: Path) -> None:
    for overrides in filter(None, commands(path)):
        changed = load_recipe(path, overrides)
        assert problems(changed) == []
        assert changed != load_recipe(path)


@pytest.mark.parametrize("path", ALGORITHMS, ids=lambda path: path.stem)
def test_it_names_every_slot(path: Path) -> None:
    """Nothing of an algorithm is left to a default that a reader would have to look up."""
    written = tomllib.loads(path.read_text(encoding="utf-8"))["algorithm"]
    assert set(unnamed(load_recipe(path).algorithm, written)) <= LEFT_OUT


LEFT_OUT = {"turns", "advantages.whiten_by_act", "kl.reference_path"}
"""Slots that mean something where a recipe has an environment, and a model: these have none."""


def unnamed(model: BaseModel, written: dict[str, Any], prefix: str = "") -> list[str]:
    missing = []
    for name in type(model).model_fields:
        value = getattr(model, name)
        if name not in written:
            missing.append(prefix + name)
        elif isinstance(value, BaseModel):
            missing += unnamed(value, written[name], f"{prefix}{name}.")
    return missing


def test_there_is_one_for_each_algorithm() -> None:
    names = {path.stem for path in ALGORITHMS}
    assert names == {"ppo", "tppo", "vcppo", "vapo", *CRITIC_FREE}


@pytest.mark.parametrize("path", ALGORITHMS, ids=lambda path: path.stem)
def test_explain_has_its_arithmetic(path: Path) -> None:
    config = load_recipe(path)
    names = {fact.name for fact in facts(config)}
    assert "tokens per update" in names
    if isinstance(config.algorithm.advantages, EgaeConfig):
        assert {"reward after 15 tokens", "reward after 240 tokens"} <= names
        assert "lambda" in names or "lambda at 240 tokens" in names
    elif config.algorithm.advantages.baseline != "none":
        assert "largest advantage" in names


@pytest.mark.parametrize("name", CRITIC_FREE)
@pytest.mark.parametrize("stale", ["mask", "wait"])
def test_critic_free_recipes_stream(name: str, stale: str) -> None:
    config = load(name, "schedule.mode=streaming", f"schedule.stale={stale}")
    assert problems(config) == []
    assert isinstance(config.algorithm.advantages, GroupAdvantageConfig)
    assert config.algorithm.value is None


@pytest.mark.parametrize("name", CRITIC_FREE)
def test_a_key_of_a_value_model_is_refused_where_there_is_none(name: str) -> None:
    for override in ("algorithm.value.warmup_updates=5", "schedule.value_batch_tokens=999"):
        (problem,) = problems(load(name, override))
        assert problem.startswith(override.split("=")[0].removesuffix(".warmup_updates"))
        assert "value model" in problem
        assert "out (or" in problem or "leave it out" in problem


@pytest.mark.parametrize("name", ["ppo", "tppo", "vcppo", "vapo"])
@pytest.mark.parametrize("mode", ["synchronous", "windowed", "streaming"])
def test_critic_recipes_go_with_all_three_modes(name: str, mode: str) -> None:
    assert problems(load(name, f"schedule.mode={mode}", "schedule.window=60")) == []


@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm.value.warmup_updates=0", "algorithm.value.warmup_explained_variance=null"],
        ["algorithm.value.gae_lambda_value=0.95"],
        [
            "algorithm.advantages.length_adaptive_alpha=null",
            "algorithm.advantages.gae_lambda_policy=0.95",
        ],
        ["algorithm.policy_loss.clip_ratio_high=0.2"],
        ["algorithm.aggregate=sample_mean"],
        ["algorithm.penalties.positive_nll_coef=0"],
        ["schedule.num_generations=1"],
    ],
)
def test_each_part_of_vapo_is_a_switch(overrides: list[str]) -> None:
    """The removals that the recipe's head names; all of them stand there, word for word."""
    assert problems(load("vapo", *overrides)) == []
    head = (FOLDER / "algorithms" / "vapo.toml").read_text(encoding="utf-8").split("\nname =")[0]
    assert all(override in head for override in overrides)


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("rloo", ["schedule.mode=streaming", "algorithm.ratio.kind=tis"]),
        (
            "reinforcepp",
            [
                "schedule.num_generations=4", "schedule.unit=group",
                "algorithm.advantages.baseline=mean", "algorithm.kl.where=loss",
                "algorithm.kl.estimator=k2",
            ],
        ),
    ],
)  # fmt: skip
def test_the_variants_at_a_head_are_accepted(name: str, overrides: list[str]) -> None:
    assert problems(load(name, *overrides)) == []
    head = (FOLDER / "algorithms" / f"{name}.toml").read_text(encoding="utf-8")
    assert all(override in head.split("\nname =")[0] for override in overrides)


def test_a_name_switches_nothing() -> None:
    named = load("dapo").algorithm
    renamed = load("dapo", "algorithm.name=x").algorithm
    assert renamed == named.model_copy(update={"name": "x"})
    assert isinstance(named, AlgorithmConfig)
