"""Sources of rewards and the route to them: the short form, the long one, and mistakes in both."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from headrace.config.loading.recipe import load_recipe
from headrace.config.sections.reward import RewardConfig, SourceConfig
from headrace.config.validation.section_rules import reward_problems
from headrace.errors import UserError

TWO = {"math": {"kind": "math"}, "style": {"kind": "function", "function": "m:f"}}
LINES: dict[str, Any] = {"kind": "function", "function": "m:g", "unit": "line"}
THREE = {**TWO, "lines": LINES}


def reward(**section: Any) -> RewardConfig:
    return RewardConfig.model_validate(section)


def route(columns: dict[str, Any], task: str = "dataset", **section: Any) -> str | None:
    return reward(sources=TWO, route=section).route_of(task, lambda: columns)


def test_the_short_form_is_one_source() -> None:
    short = reward(kind="exact", answer_marker="#", timeout_s=2.0, children=3)
    source = SourceConfig(kind="exact", answer_marker="#", timeout_s=2.0, children=3)
    assert short.each() == {"default": source}
    assert short.route_of("dataset", dict) == "default"
    assert list(reward_problems(short)) == []


@pytest.mark.parametrize(
    ("columns", "section", "found"),
    [
        ({"of": "math"}, {"column": "of"}, "math"),
        ({"of": "gsm8k"}, {"column": "of", "values": {"gsm8k": "math"}}, "math"),
        ({"of": "math"}, {"column": "of", "values": {"gsm8k": "math"}}, None),
        ({"of": "art"}, {"column": "of"}, None),
        ({"of": "art"}, {"column": "of", "default": "style"}, "style"),
        ({}, {"column": "of", "default": "style"}, "style"),
        ({"of": None}, {"column": "of", "default": "style"}, "style"),
        ({"of": {"k": 1}}, {"column": "of.k", "values": {"1": "math"}}, "math"),
        ({"of.k": True}, {"column": "of.k", "values": {"true": "math"}}, "math"),
        ({}, {"tasks": {"dataset": "math"}, "default": "style"}, "math"),
        ({}, {"tasks": {"tracking": "math"}, "default": "style"}, "style"),
        ({"of": "math"}, {"column": "of", "tasks": {"dataset": "style"}}, "math"),
        ({}, {}, None),
    ],
)
def test_a_column_comes_before_the_task_and_the_task_before_the_default(
    columns: dict[str, Any], section: dict[str, Any], found: str | None
) -> None:
    assert route(columns, **section) == found


NAMES = st.sampled_from(["math", "style"])
VALUES = st.sampled_from(["a", "b", "c", None])


@given(VALUES, st.dictionaries(st.sampled_from("abc"), NAMES), NAMES | st.none())
def test_a_route_leads_to_a_source_or_nowhere(
    value: str | None, values: dict[str, str], default: str | None
) -> None:
    found = route({"of": value}, column="of", values=values, default=default)
    assert found == values.get(str(value), default)
    assert found is None or found in TWO


def test_columns_are_asked_for_only_by_a_route_that_goes_by_one() -> None:
    def never() -> dict[str, Any]:
        raise AssertionError("asked")

    assert reward().route_of("dataset", never) == "default"
    by_default = reward(sources=TWO, route={"default": "math"})
    assert by_default.route_of("dataset", never) == "math"


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({"kind": "function"}, 'reward.function: goes together with reward.kind = "function"'),
        (
            {"kind": "function", "function": "m:f", "functions": [{"name": "m:g"}]},
            "reward.functions: does not go with reward.function",
        ),
        ({"adapter": "trl"}, 'reward.adapter: goes together with reward.kind = "function"'),
        (
            {"sources": {"a": {"kind": "function"}}, "route": {"default": "a"}},
            "reward.sources.a.function: goes together with reward.sources.a.kind",
        ),
        (
            {"sources": {"a": {"wrong_reward": 2.0}}, "route": {"default": "a"}},
            "reward.sources.a.wrong_reward: 2 is not less than reward.sources.a.correct_reward = 1",
        ),
        (
            {"sources": TWO, "answer_marker": "#", "route": {"default": "math"}},
            "reward.answer_marker: belongs to a source",
        ),
        (
            {"sources": TWO, "route": {"default": "mth"}},
            "reward.route: 'mth' is no source (there are math, style)",
        ),
        ({"sources": TWO, "route": {"values": {"x": "math"}}}, "reward.route.values: are values"),
        ({"route": {"default": "math"}}, "reward.route: leads to reward.sources.NAME, and there"),
        (
            {"kind": "function", "function": "m:f", "answer_marker": "#"},
            "reward.answer_marker: belongs to the other kinds; a function finds the answer",
        ),
        (
            {"kind": "function", "function": "m:f", "correct_reward": 2.0},
            "reward.correct_reward: a function says itself what it pays",
        ),
        ({"score_range": [1.0, 1.0]}, "reward.score_range: should be [low, high] with low below"),
        ({"audit": {"source": "math"}}, "reward.audit.source: 'math' is not among reward.sources"),
        (
            {"sources": TWO, "route": {"default": "math"}, "audit": {"source": "truth"}},
            "reward.audit.source: 'truth' is not among reward.sources (there are math, style)",
        ),
        (
            {"sources": THREE, "route": {"default": "math"}, "process": {"source": "prm"}},
            "reward.process.source: 'prm' is no source (there are lines, math, style)",
        ),
        (
            {"sources": THREE, "route": {"default": "math"}, "process": {"source": "style"}},
            "reward.process.source: 'style' has the unit \"trajectory\", and lines",
        ),
        (
            {"sources": THREE, "route": {"default": "lines"}, "process": {"source": "lines"}},
            "reward.route: 'lines' scores lines, and a prompt needs a score of its whole answer",
        ),
        (
            {"sources": THREE, "route": {"default": "math"}},
            "reward.sources.lines.unit: nobody asks for lines: name 'lines' in reward.process.sou",
        ),
        ({"unit": "line"}, 'reward.unit: "line" stands beside a source that scores whole answers'),
        ({"process": {"source": "lines"}}, "reward.process.source: 'lines' is no source (there a"),
    ],
)
def test_what_cannot_work_is_told_with_its_place(section: dict[str, Any], expected: str) -> None:
    found = list(reward_problems(reward(**section)))
    assert any(line.startswith(expected) for line in found), found


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({"default": "math"}, {"style"}),
        ({"default": "style"}, set()),
        ({"tasks": {"tracking": "style"}, "default": "math"}, set()),
        ({"column": "of"}, set()),
        ({"column": "of", "values": {"x": "math"}}, {"style"}),
    ],
)
def test_a_source_that_no_prompt_is_routed_to_only_audits(
    section: dict[str, Any], expected: set[str]
) -> None:
    config = reward(sources=TWO, route=section, audit={"source": "style"})
    assert config.audit_only() == expected
    assert list(reward_problems(config)) == []


@pytest.mark.parametrize(
    ("asked", "route", "expected"),
    [
        ({"audit": "fair"}, "math", {"fair"}),
        ({"audit": "fair"}, "audit", set()),
        ({"audit": "fair", "essays": "fair"}, "essays", set()),
        ({"audit": "fair", "essays": "other"}, "essays", {"fair"}),
        ({"essays": "fair"}, "essays", set()),
    ],
)
def test_a_judge_that_nobody_but_the_audit_asks(
    asked: dict[str, str], route: str, expected: set[str]
) -> None:
    sources: dict[str, Any] = {
        name: {"kind": "judge", "options": {"judge": judge}} for name, judge in asked.items()
    }
    sources |= {"math": {"kind": "math"}, "audit": sources.get("audit", {"kind": "exact"})}
    judges = {name: {"path": "/models/small"} for name in ("fair", "other")}
    audit = {"source": "audit"}
    config = reward(sources=sources, route={"default": route}, judges=judges, audit=audit)
    assert config.audit_judges() == expected


def test_mistakes_in_a_recipe_name_the_key(recipe: Path) -> None:
    head = recipe.read_text()
    for text, expected in (
        ("[reward.sources.a]\nkid = 'math'", "unknown key reward.sources.a.kid; did you mean rew"),
        ("[reward.sources.a]\nkind = 'maths'", 'reward.sources.a.kind = "maths": should be'),
        ("[[reward.functions]]\nwight = 1", "unknown key reward.functions.0.wight; did you mean"),
        ("[reward.sources.'a b']\nkind = 'math'", "reward.sources.a b"),
        ("[reward]\nreward_funcs = ['m:f']", "TRL's reward_funcs is reward.function or"),
    ):
        recipe.write_text(f"{head}\n{text}\n")
        with pytest.raises(UserError, match=r"small\.toml") as caught:
            load_recipe(recipe)
        assert expected in str(caught.value)


def test_a_recipe_with_two_sources(recipe: Path) -> None:
    with recipe.open("a") as file:
        file.write(
            "[reward.sources.a]\nkind = 'exact'\n"
            "[[reward.sources.b.functions]]\nname = 'm:f'\n"
            "[[reward.sources.b.functions]]\nname = 'm:g'\nweight = 0.5\n"
            "[reward.route]\ncolumn = 'of'\nvalues = { x = 'a' }\ndefault = 'b'\n"
        )
    config = load_recipe(
        recipe, ["reward.sources.a.timeout_s=2.5", "reward.sources.b.kind=function"]
    )
    assert config.reward.sources["a"].timeout_s == 2.5
    assert config.reward.sources["b"].names() == ("m:f", "m:g")
    assert list(reward_problems(config.reward)) == []


def test_lines_have_their_source_beside_the_outcomes() -> None:
    whole = reward(sources=THREE, route={"column": "of"}, process={"source": "lines"})
    assert list(reward_problems(whole)) == []
    assert whole.line_source() == SourceConfig(**LINES)
    assert whole.route_of("dataset", lambda: {"of": "math"}) == "math"
    # A column's value names no source that does not score whole answers.
    assert whole.route_of("dataset", lambda: {"of": "lines"}) is None
    assert reward(sources=TWO, route={"default": "math"}).line_source() is None


def test_a_group_is_the_unit_of_any_function() -> None:
    assert list(reward_problems(reward(kind="function", function="m:f", unit="group"))) == []


@pytest.mark.parametrize("key", ["failing", "passing"])
def test_lambdas_are_not_negative(key: str) -> None:
    with pytest.raises(ValidationError):
        reward(process={key: -0.1})
