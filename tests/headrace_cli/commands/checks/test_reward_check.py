"""Every prompt of a task has a source of rewards before anything starts."""

import json
from functools import partial
from pathlib import Path

import pytest

from headrace.config.loading.recipe import load_recipe
from headrace.config.sections.run import RunConfig
from headrace.errors import UserError
from headrace_cli.cli import main
from headrace_cli.commands.checks.preflight import check_data
from headrace_cli.commands.checks.reward_check import check_reward, check_route

SOURCES = 'reward.sources={a={kind="exact"},b={kind="math"}}'


def of_dataset(recipe: Path, *overrides: str) -> RunConfig:
    data = recipe.parent / "rows.jsonl"
    rows = [{"prompt": str(i), "answer": "1", "of": of} for i, of in enumerate(("a", "b", "art"))]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_recipe(recipe, [f'task={{kind="dataset",path="{data}"}}', SOURCES, *overrides])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], "leaves every prompt without a source"),
        (['reward.route.column="of"'], r"leaves row rows.jsonl:3 without .* its 'of' is 'art'"),
        (['reward.route={column="of",values={a="a",art="b"}}'], "rows.jsonl:2 .* is 'b'"),
        (['reward.route={column="level"}'], "rows.jsonl:1 .* 'level' is 'None'"),
        (['reward.route={tasks={tracking="a"}}'], "leaves every prompt"),
    ],
)
def test_a_route_with_a_hole_names_the_row(
    recipe: Path, overrides: list[str], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        check_route(of_dataset(recipe, *overrides))


@pytest.mark.parametrize(
    "route",
    [
        'reward.route={column="of",default="b"}',
        'reward.route={column="of",values={a="a",b="b",art="b"}}',
        'reward.route={tasks={dataset="a"}}',
    ],
)
def test_a_route_without_holes(recipe: Path, route: str) -> None:
    config = of_dataset(recipe, route)
    check_route(config)
    assert check_reward(config) == config


def test_a_dataset_that_holds_out_no_row_is_told(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of a handful of rows; its accuracy of 0 would be taken for the policy's."""
    check_data(of_dataset(recipe, "task.eval_fraction=1e-9"))
    assert capsys.readouterr().err.startswith("no row is held out")
    check_data(load_recipe(recipe))
    assert capsys.readouterr().err == ""


def test_a_prompt_that_ends_with_an_answer_is_refused(recipe: Path) -> None:
    """Rows of ShareGPT and open-instruct may: the policy would read what it is to write."""
    data = recipe.parent / "rows.jsonl"
    turns = [{"from": "human", "value": "1 + 1?"}, {"from": "gpt", "value": "2"}]
    data.write_text(json.dumps({"conversations": turns, "answer": "2"}) + "\n")
    config = load_recipe(recipe, [f'task={{kind="dataset",path="{data}",eval_fraction=1e-9}}'])
    with pytest.raises(UserError, match=r"row rows.jsonl:1: its prompt ends with the assistant"):
        check_data(config)


def test_a_warm_up_on_more_prompts_than_there_are_is_refused(recipe: Path) -> None:
    """They would be asked again. Made prompts have no end, and an evaluation has no warm-up."""
    every = "task.eval_fraction=1e-9"
    three, four = (f"algorithm.value.warmup_prompts={n}" for n in (3, 4))
    check_data(of_dataset(recipe, every, three))
    with pytest.raises(UserError, match=r"warmup_prompts = 4, and the data has 3 rows to train on"):
        check_data(of_dataset(recipe, every, four))
    check_data(of_dataset(recipe, every, four, "evaluation.only=true"))
    check_data(load_recipe(recipe, [four]))


def test_a_route_by_tasks_takes_those_of_a_mixture(recipe: Path) -> None:
    mixed = 'task={kind="mixture",datasets={one={kind="chain_sums"},other={kind="tracking"}}}'
    whole = 'reward.route={tasks={chain_sums="a",tracking="b"}}'
    config = load_recipe(recipe, [mixed, SOURCES, whole])
    check_route(config)
    found = [config.source_of(partial(dict, domain=name)) for name in ("one", "other")]
    assert found == ["a", "b"]
    part = load_recipe(recipe, [mixed, SOURCES, 'reward.route={tasks={tracking="b"}}'])
    with pytest.raises(UserError, match="leaves prompts without a source"):
        check_route(part)


def test_a_hole_and_an_unknown_source_are_one_line_and_exit_code_2(
    recipe: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for route, expected in (
        ('reward.route.column="terms"', "its 'terms' is"),
        ('reward.route.default="c"', "reward.route: 'c' is no source (there are a, b)"),
    ):
        assert main(["train", str(recipe), SOURCES, route]) == 2
        line = capfd.readouterr().err
        assert expected in line
        assert line.count("\n") == 1


def test_config_check_loads_every_source(recipe: Path, capfd: pytest.CaptureFixture[str]) -> None:
    sources = 'reward.sources={a={kind="exact"},b={kind="function",function="no.such:f"}}'
    assert main(["config", "check", str(recipe), sources, 'reward.route.default="a"']) == 2
    assert "reward.function='no.such:f': cannot import it (No module" in capfd.readouterr().out
    assert main(["config", "check", str(recipe), SOURCES, 'reward.route.default="a"']) == 0
