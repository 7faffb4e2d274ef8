"""Studies: what is run, what a row keeps, what the table says."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.kit import study_file
from benchmarks.kit.arm_run import area, figures, metric_of, program_figures
from benchmarks.kit.arms import Arm, key, rows_of
from benchmarks.kit.rows import ResultFile
from benchmarks.kit.study_file import StudyColumn, StudyFile, filled, value_of
from benchmarks.kit.study_plan import Study
from benchmarks.kit.study_runs import Runner, core_shares, prepare
from benchmarks.kit.study_table import arms_table, figure_of, lines_of
from benchmarks.studies.study import main
from headrace.config.loading.recipe import load_recipe
from headrace.config.preflight.checks import problems
from headrace.errors import RunFailedError, UserError
from headrace.host.install import ROOT

STUDIES = [
    Study.load(n)
    for n in ("code-prm", "dapo-parts", "egae", "schedule", "staleness", "vapo-parts", "vcppo")
]
TWO = StudyFile(
    recipe="recipes/quickstart.toml",
    seeds=(0, 1),
    reference="one",
    overrides=("stop.updates=4",),
    arms={"one": {"overrides": ()}, "two": {"overrides": ("seed=7",)}},  # type: ignore[dict-item]
)


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.name)
def test_every_arm_is_a_configuration_that_starts(study: Study) -> None:
    for mode in study.file.arms:
        arm = study.arm(mode)
        config = load_recipe(ROOT / arm.recipe, ["seed=3", *arm.overrides])
        assert problems(config) == []


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.name)
def test_arms_differ_and_the_named_ones_exist(study: Study) -> None:
    file = study.file
    assert file.reduced is not None
    panels = [panel for plot in file.plots for panel in plot.panels]
    drawn = {name for panel in panels for name in panel.arms or ()}
    swept = {n for panel in panels for names in panel.sweep.values() for n in names.values()}
    assert {*file.reduced.arms, file.reference, *drawn, *swept} <= set(file.arms)
    assert len({key(study.arm(mode), 0) for mode in file.arms}) == len(file.arms)


def test_a_study_says_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    for name in study_file.names():
        if name != "trl":
            with pytest.raises(SystemExit):
                main([name, "--help"])
            assert f"headrace bench {name}" in capsys.readouterr().out


def test_a_mistake_in_a_file_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    for text, said in (
        ("colour = 1", "colour"),
        ('seeds = ["a"]', "seeds"),
        ('recipe = "recipes/quickstart.toml"\nseeds = [0]\n[arms]\none = ["@no"]', "lists.no"),
        ('recipe = "recipes/quickstart.toml"\nseeds = [0]\n[arms]\none = ["seed={x}"]', "'x'"),
    ):
        path.write_text(text)
        with pytest.raises(UserError, match=said) as raised:
            main([str(path), "--list"])
        assert "\n" not in str(raised.value)


def test_formulas_know_variables_and_nothing_else() -> None:
    assert (
        filled("a={2 * x}, {round(x)}, {'low' if x < 9 else 'high'}", {"x": 0.5}) == "a=1, 0, low"
    )
    for formula in ("open('a')", "1 / 0", "y", "(", "x[3]"):
        with pytest.raises(UserError, match="formula"):
            value_of(formula, {"x": [1]})


def test_plan_runs_all_arms_of_a_seed_before_the_next_seed() -> None:
    plan = Study("s", TWO).plan(("one", "two"), (0, 1))
    assert [(arm.name, seed) for arm, seed, _ in plan] == [
        ("one", 0), ("two", 0), ("one", 1), ("two", 1),
    ]  # fmt: skip
    assert plan[1][0].overrides == ("stop.updates=4", "seed=7")


def test_listing_a_study_prepares_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.studies.study.prepare", None)
    assert main(["vcppo", "--list", "--rows", str(tmp_path / "rows.jsonl")]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("missing  seed 0, turn 0  low: recipes/algorithms/ppo.toml")


def test_an_arm_that_is_not_tuned_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A changed recipe makes other runs of its arms: their tuning is no longer theirs."""
    tuning, nothing = Study.tuning, ResultFile(tmp_path / "tuning.jsonl")
    monkeypatch.setattr(Study, "tuning", lambda study, rows=None: tuning(study, nothing))
    monkeypatch.setattr(Runner, "run_all", lambda *_: [])
    monkeypatch.setattr("benchmarks.studies.study.prepare", lambda _: None)
    main(["real-model", "--arms", "grpo", "--rows", str(tmp_path / "rows.jsonl")])
    assert "grpo: not tuned" in capsys.readouterr().err


def test_what_runs_need_is_made_once_and_a_failure_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.kit.study_runs.ROOT", tmp_path)
    needed = [
        study_file.Preparation(makes="a/made.txt", module="shutil", arguments=()),
        study_file.Preparation(makes="a/other.txt", module="no_such_module", arguments=()),
    ]
    with pytest.raises(RunFailedError, match="no_such_module"):
        prepare(needed)
    (tmp_path / "a" / "other.txt").write_text("")
    prepare(needed)


def test_a_changed_value_is_another_row() -> None:
    arm = Arm("one", "recipes/quickstart.toml")
    assert key(arm, 0) != key(replace(arm, overrides=("seed=1",)), 0)


def test_what_changes_no_value_is_the_same_row(tmp_path: Path) -> None:
    """A comment, or a value of the recipe that an override had anyway."""
    recipe = tmp_path / "recipe.toml"
    recipe.write_text("seed = 0\n[learner.policy]\nlr = 1e-4\n")
    before = Arm("one", str(recipe), ("learner.policy.lr=2e-4",)).digest()
    recipe.write_text("seed = 0  # of prompts\n[learner.policy]\nlr = 2e-4\n")
    assert Arm("one", str(recipe), ("learner.policy.lr=2e-4",)).digest() == before
    assert Arm("one", str(recipe)).digest() == before
    recipe.write_text("seed = 1\n[learner.policy]\nlr = 2e-4\n")
    assert Arm("one", str(recipe)).digest() != before


def test_cores_are_split_over_jobs_and_shared_when_too_few() -> None:
    assert core_shares((0, 1), 1) == [{0, 1}]
    assert core_shares((0, 1), 2) == [{0}, {1}]
    assert core_shares((0, 1), 3) == [{0}, {1}, {0}]
    assert core_shares((0, 1, 2, 3, 4), 2) == [{0, 2, 4}, {1, 3}]


def evaluation(version: int, accuracy: float, *, update: int | None = None) -> dict[str, object]:
    return {
        "update": version if update is None else update,
        "version": version,
        "label": "during",
        "accuracy": accuracy,
        "response_length": 10.0,
        "max_response_length": 30,
        "train_time_s": float(version),
    }


def test_area_is_the_mean_over_updates_not_over_evaluations() -> None:
    points = [evaluation(0, 0.0), evaluation(1, 1.0), evaluation(4, 1.0)]
    assert area(points) == pytest.approx((0.5 + 3.0) / 4)
    assert area(points[:1]) == 0.0


def test_figures_count_the_starting_policy_once() -> None:
    summary = {
        "updates": 6,
        "skipped_updates": 0,
        "train_time_s": 1.0,
        "tokens": {"generated": 5, "dropped": {}},
        "staleness": {"mean": 0.0, "max": 0.0},
        "idle_share": {"learner": 0.5, "generator": 0.5},
        "evaluations": [
            evaluation(0, 0.1),
            evaluation(0, 0.2, update=2),
            evaluation(2, 0.6, update=4),
            evaluation(4, 0.8, update=6),
        ],
    }
    row = figures(summary)
    assert [point[0] for point in row["evaluations"]] == [0, 2, 4]
    assert row["final"] == pytest.approx(0.7)
    assert row["mean"] == pytest.approx((2 * 0.4 + 2 * 0.7) / 4)


def row_of(arm: Arm, seed: int, points: list[tuple[int, float, float]], **more: Any) -> Any:
    return {
        "key": key(arm, seed),
        "arm": arm.name,
        "seed": seed,
        "updates": points[-1][0] + 2,
        "evaluations": [[version, seconds, acc, 10.0] for version, seconds, acc in points],
        "series": {
            "update": list(range(1, points[-1][0] + 3)),
            "ledger/generated": [100 * u for u in range(1, points[-1][0] + 3)],
        },
        "final": points[-1][2],
        "mean": 0.5,
        "final_length": 10.0,
        "tokens": {"trained_policy": 1000, "generated": 1000},
        **more,
    }


def test_a_run_that_others_disturbed_is_made_again(tmp_path: Path) -> None:
    """Twice disturbed, then not: all three rows are kept, and the last one counts."""
    one = Arm("one", "recipes/quickstart.toml")
    others = iter([0.4, 0.2, 0.01])

    def run(arm: Arm, seed: int, root: Path, *, remove: bool) -> dict[str, Any]:
        share = next(others)
        row: dict[str, Any] = row_of(arm, seed, [(0, 0.0, 0.2), (4, 1.0, 0.6)])
        return {**row, "others_cpu_share": share, "disturbed": share > 0.05}

    rows = ResultFile(tmp_path / "rows.jsonl")
    assert Runner("s", rows, run).run_all([(one, 0, 0)]) == []
    assert [row["others_cpu_share"] for row in rows.rows.values()] == [0.4, 0.2, 0.01]
    assert rows_of(one, rows.rows)[0]["others_cpu_share"] == 0.01


def test_table_is_over_the_seeds_that_are_there() -> None:
    """The difference to the reference is over the seeds that both have."""
    arm, other = Arm("one", "recipes/quickstart.toml"), Arm("two", "recipes/quickstart.toml")
    columns = (StudyColumn(title="updates", figure="updates", form=".0f"),)
    points = [(0, 0.0, 0.2), (4, 1.0, 0.6)]
    found = {
        "one": {seed: row_of(arm, seed, points) for seed in (0, 2)},
        "two": {seed: row_of(other, seed, points, mean=0.55) for seed in (1, 2)},
    }
    line, compared = lines_of(found, reference="one", columns=columns)
    assert (line["seeds"], line["against"]) == (2, None)
    assert line["final"] == {"median": 0.6, "min": 0.6, "max": 0.6}
    assert compared["against"] == {name: pytest.approx(0.05) for name in ("median", "min", "max")}
    table = arms_table([line], reference="one", columns=columns)
    assert table.lines == [("one", "2", "0.600", "0.500", "-", "10", "1,000", "6")]
    assert table.markdown().splitlines()[1:] == [
        "|" + "---|" * 8, "| one | 2 | 0.600 | 0.500 | - | 10 | 1,000 | 6 |",
    ]  # fmt: skip


def test_figures_of_a_row_are_formulas() -> None:
    row = row_of(Arm("one", "recipes/quickstart.toml"), 0, [(0, 0.0, 0.2), (2, 1.0, 0.6)])
    row["series"]["actor/entropy"] = [None, None, 0.5, 0.25]
    for formula, value in {
        "tokens['generated'] / updates": 250.0,
        "average(metric('actor/entropy')[-1:])": 0.25,
        "updates_of('actor/entropy')": [1.0, 2.0],
        "min(lengths)": 10.0,
        "generated": [200.0, 400.0],
        "versions": [0.0, 2.0],
    }.items():
        assert figure_of(row, formula) == value


def test_answers_are_told_by_their_lines() -> None:
    def row(terms: int, correct: bool | None, **parts: float) -> dict[str, Any]:
        return {"info": json.dumps({"terms": terms}), "correct": correct,
                "reward_parts": json.dumps(parts)}  # fmt: skip

    rows = [
        row(2, True, lines=2, neutral=0),
        row(2, False, lines=4, neutral=0.5),
        row(5, True, lines=5, neutral=0),
        row(6, False, lines=6, neutral=0),
        row(8, True, lines=8, neutral=0),
        row(7, None),
    ]
    assert program_figures(rows) == {"short": 0.5, "long": 0.3333, "lines": 5.0, "neutral": 0.1}
    assert program_figures([])["long"] == 0.0


def test_metrics_are_counted_from_the_first_update_of_the_policy() -> None:
    row = row_of(Arm("one", "recipes/quickstart.toml"), 0, [(0, 0.0, 0.2), (2, 1.0, 0.6)])
    row["series"]["actor/entropy"] = [None, None, 0.5, 0.25]
    assert metric_of(row, "actor/entropy") == [(1, 0.5), (2, 0.25)]
    assert metric_of(row, "actor/unknown") == []


def test_an_error_of_our_own_ends_a_study_at_once(tmp_path: Path) -> None:
    begun: list[int] = []

    def run(arm: Arm, seed: int, root: Path, *, remove: bool) -> dict[str, Any]:
        begun.append(seed)
        raise ValueError("facts")

    one = Arm("one", "recipes/quickstart.toml")
    with pytest.raises(ValueError, match="facts"):
        Runner("s", ResultFile(tmp_path / "rows.jsonl"), run).run_all([(one, s, 0) for s in (0, 1)])
    assert begun == [0]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["race", "--jobs", "2", "--list"], "rows are of 1 run at a time"),
        (["race", "--tokens", "--arms", "tppo", "--list"], "arms and seeds of its own"),
    ],
)
def test_options_that_would_spoil_rows_are_refused(
    words: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(words)
    assert reason in capsys.readouterr().err
