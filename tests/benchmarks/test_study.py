"""Studies: what is run, what a row keeps, what the table says."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import (
    code_prm,
    dapo_parts,
    egae,
    schedule,
    staleness,
    untuned_race,
    vapo_parts,
    vcppo,
)
from benchmarks.archive import measured_arms, study_rows
from benchmarks.arm_run import area, figures, metric_of
from benchmarks.censored import at_least, exactly
from benchmarks.rows import Rows
from benchmarks.study import core_shares, main_of, run_all
from benchmarks.study_plan import Arm, Column, Study, key, rows_of
from benchmarks.study_table import cells, table
from benchmarks.untuned_race import (
    CURVE,
    MAIN,
    Crossing,
    compare,
    figures_at,
    ratio_line,
    summarise,
)
from headrace.config.checks import problems
from headrace.config.load import load_recipe
from headrace.install import ROOT

MODULES = (untuned_race, vapo_parts, vcppo, egae, staleness, dapo_parts, code_prm)
STUDIES = [module.STUDY for module in MODULES]


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.name)
def test_every_arm_is_a_configuration_that_starts(study: Study) -> None:
    for arm in study.arms:
        config = load_recipe(ROOT / arm.recipe, [f"seed={study.seeds}", *arm.overrides])
        assert problems(config) == []


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.name)
def test_arms_have_names_of_their_own_and_the_reduced_ones_exist(study: Study) -> None:
    names = [arm.name for arm in study.arms]
    assert len(set(names)) == len(names)
    assert {*study.reduced_arms, study.reference} <= set(names)
    assert len({key(arm, 0) for arm in study.arms}) == len(names)


def test_plan_runs_all_arms_of_a_seed_before_the_next_seed() -> None:
    one, two = Arm("one", "recipes/quickstart.toml"), Arm("two", "recipes/quickstart.toml", seeds=1)
    study = Study("s", (one, two), seeds=2, reduced_arms=("two",), reduced_seeds=1, reference="one")
    assert study.plan(reduced=False) == [(one, 0), (two, 0), (one, 1)]
    assert study.plan(reduced=True) == [(two, 0)]


def test_listing_a_study_prepares_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[str] = []
    one = Arm("one", "recipes/quickstart.toml")
    study = Study(
        "s", (one,), seeds=1, reduced_arms=("one",), reduced_seeds=1, reference="one",
        prepare=lambda: made.append("model"),
    )  # fmt: skip
    assert main_of(study, None, ["--list", "--rows", str(tmp_path / "rows.jsonl")]) == 0
    assert capsys.readouterr().out.startswith("missing  seed 0  one: recipes/quickstart.toml")
    assert made == []


def test_a_changed_value_is_another_row() -> None:
    arm = Arm("one", "recipes/quickstart.toml")
    assert key(arm, 0) != key(replace(arm, overrides=("seed=1",)), 0)
    assert key(arm, 0) != key(replace(arm, environment=("A=1",)), 0)


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


def row_of(
    arm: Arm, seed: int, points: list[tuple[int, float, float]], **more: object
) -> dict[str, Any]:
    return {
        "key": key(arm, seed),
        "arm": arm.name,
        "seed": seed,
        "updates": points[-1][0] + 2,
        "evaluations": [[version, seconds, acc, 10.0] for version, seconds, acc in points],
        "series": {
            "update": list(range(1, points[-1][0] + 3)),
            "ledger/generated": [100 * u for u in range(1, points[-1][0] + 3)],
            "rollout/finished_length": [8.0, 10.0],
        },
        "final": points[-1][2],
        "mean": 0.5,
        "final_length": 10.0,
        "max_length": 80,
        "train_time_s": points[-1][1],
        "tokens": {"trained_policy": 1000, "generated": 1000},
        "idle_share": {"generator": 0.1, "learner": 0.3},
        **more,
    }


def test_crossing_needs_two_successive_evaluations() -> None:
    arm = MAIN.arm("streaming")
    row = row_of(
        arm, 0, [(0, 0.0, 0.2), (4, 5.0, 0.8), (8, 9.0, 0.7), (12, 14.0, 0.8), (16, 20.0, 0.9)]
    )
    assert figures_at(row, 0.8) == Crossing(True, exactly(14.0), exactly(1400.0))
    assert figures_at(row, 0.85) == Crossing(False, at_least(20.0), at_least(1800.0))


SLOW = [(0, 0.0, 0.2), (4, 10.0, 0.9), (8, 30.0, 0.5), (12, 40.0, 0.6)]
GOOD = [(0, 0.0, 0.2), (4, 10.0, 0.9), (8, 30.0, 0.9), (12, 40.0, 0.9)]
FAST = [(0, 0.0, 0.2), (4, 5.0, 0.9), (8, 10.0, 0.9), (12, 20.0, 0.9)]


def race(
    synchronous: list[list[tuple[int, float, float]]],
    streaming: list[list[tuple[int, float, float]]],
) -> dict[str, dict[int, dict[str, Any]]]:
    curves = {"synchronous": synchronous, "streaming": streaming}
    return {
        mode: {seed: row_of(MAIN.arm(mode), seed, points) for seed, points in enumerate(found)}
        for mode, found in curves.items()
    }


def test_ratio_is_of_the_same_seed() -> None:
    result = compare(race([GOOD], [FAST]))
    assert result["target"] == pytest.approx(0.855)
    assert result["ratio"]["median"] == [2.0, 2.0]
    assert result["arms"]["synchronous"]["ratio"]["median"] == [1.0, 1.0]


def test_where_ppo_never_crossed_its_seed_is_counted_with_a_bound() -> None:
    result = compare(race([SLOW, GOOD, GOOD], [FAST, FAST, FAST]))
    ppo, ours = result["arms"]["synchronous"], result["arms"]["streaming"]
    assert (ppo["never_crossed"], ours["never_crossed"]) == (1, 0)
    assert ppo["seconds"] == {"median": [10.0, 10.0], "min": [10.0, 10.0], "max": [40.0, None]}
    assert ours["ratio_of_seed"] == {0: [8.0, None], 1: [2.0, 2.0], 2: [2.0, 2.0]}
    assert result["ratio"] == {"median": [2.0, 2.0], "min": [2.0, 2.0], "max": [8.0, None]}
    assert ours["tail"]["median"] == 8.0


def test_the_line_about_the_ratio_names_every_seed_and_what_it_is_of() -> None:
    by_mode = race([SLOW, GOOD], [FAST, FAST])
    rows = {row["key"]: row for found in by_mode.values() for row in found.values()}
    line = ratio_line(summarise(rows))
    assert "at least 8.00, 2.00; median at least 5.00" in line
    assert "not tuned" in line


def test_where_streaming_never_crossed_its_seed_is_counted_too() -> None:
    """Leaving it out would leave out a race that it lost."""
    result = compare(race([GOOD, GOOD], [FAST, SLOW]))
    assert result["arms"]["streaming"]["ratio_of_seed"] == {0: [2.0, 2.0], 1: [0.0, 0.25]}
    assert result["ratio"]["min"] == [0.0, 0.25]
    assert result["ratio"]["median"] == [1.0, 1.125]


def test_what_is_not_evaluated_on_the_way_has_no_crossings() -> None:
    result = compare(race([GOOD], [FAST]), raced=False)
    arm = result["arms"]["streaming"]
    assert (arm["seeds"], arm["never_crossed"], arm["seconds"], arm["ratio"]) == (1, 0, None, None)
    assert arm["speed"]["median"] == 2.0


def test_schedule_leaves_no_seed_out(tmp_path: Path) -> None:
    rows = Rows(tmp_path / "rows.jsonl")
    for mode, seconds in (("streaming", (10.0, None, 10.0)), ("synchronous", (20.0, 15.0, None))):
        for seed, value in enumerate(seconds):
            row = {"seconds": value, "evaluations": [[0, 0.0, 0.1], [8, 60.0, 0.2]]}
            rows.add(f"{mode}/{seed}/0.75", row)
    result = schedule.summarise(rows, 3, 0.75)
    assert (result["ratio_min"], result["ratio"], result["ratio_max"]) == (0.0, 2.0, 6.0)
    assert (result["repeats"], result["missed"]) == (3, 2)


def test_a_run_that_others_disturbed_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice disturbed, then not: all three rows are kept, and the last one counts."""
    one = Arm("one", "recipes/quickstart.toml")
    study = Study("s", (one,), seeds=1, reduced_arms=(), reduced_seeds=1, reference="one")
    others = iter([0.4, 0.2, 0.01])

    def run(arm: Arm, seed: int, root: Path, **options: object) -> dict[str, Any]:
        share = next(others)
        row = row_of(arm, seed, [(0, 0.0, 0.2), (4, 1.0, 0.6)])
        return {**row, "others_cpu_share": share, "disturbed": share > 0.05}

    monkeypatch.setattr("benchmarks.study.run_arm", run)
    rows = Rows(tmp_path / "rows.jsonl")
    assert run_all(study, [(one, 0)], rows, jobs=1) == []
    assert [row["others_cpu_share"] for row in rows.rows.values()] == [0.4, 0.2, 0.01]
    assert rows_of(one, rows.rows)[0]["others_cpu_share"] == 0.01


def test_archived_rows_are_found_where_a_recipe_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.archive.MEASURED", tmp_path)
    one = Arm("one", "recipes/quickstart.toml")
    study = Study("s", (one,), seeds=1, reduced_arms=(), reduced_seeds=1, reference="one")
    rows = Rows(tmp_path / "s.jsonl")
    rows.add("one/0/of-an-older-recipe", {"arm": "one", "seed": 0, "mean": 0.5})
    rows.add("two/0/of-an-arm-that-is-gone", {"arm": "two", "seed": 0, "mean": 0.7})
    found = study_rows(study).rows
    assert [row["mean"] for row in rows_of(one, found).values()] == [0.5]
    assert list(found) == [key(one, 0)]


def test_windows_of_a_setting_divide_its_longest_response() -> None:
    for setting in (MAIN, *CURVE):
        config = load_recipe(ROOT / "recipes" / "long-tail.toml", setting.overrides())
        assert config.task.max_response_length % config.window == 0
        assert config.task.max_response_length >= 7 * setting.max_terms + 3


def test_table_is_over_the_seeds_that_are_there(tmp_path: Path) -> None:
    """The difference to the reference is over the seeds that both have."""
    arm, other = Arm("one", "recipes/quickstart.toml"), Arm("two", "recipes/quickstart.toml")
    updates = Column("updates", lambda row: float(row["updates"]), ".0f")
    study = Study(
        "s", (arm, other), seeds=3, reduced_arms=(), reduced_seeds=1, reference="one",
        columns=(updates,),
    )  # fmt: skip
    path = tmp_path / "rows.jsonl"
    points = [(0, 0.0, 0.2), (4, 1.0, 0.6)]
    rows = [row_of(arm, seed, points) for seed in (0, 2)]
    rows += [row_of(other, seed, points, mean=0.55) for seed in (1, 2)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    line, compared = table(study, study.plan(reduced=False), Rows(path))
    assert (line["seeds"], line["against"]) == (2, None)
    assert line["final"] == {"median": 0.6, "min": 0.6, "max": 0.6}
    assert compared["against"] == {name: pytest.approx(0.05) for name in ("median", "min", "max")}
    assert cells(line, study.columns) == [
        *("one", "2", "0.600", "0.500", "-", "10", "1,000"),
        "6",
    ]


def test_rows_of_arms_that_have_changed_are_found_by_their_names_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.archive.MEASURED", tmp_path)
    one = Arm("one", "recipes/quickstart.toml")
    study = Study("s", (one,), seeds=1, reduced_arms=(), reduced_seeds=1, reference="one")
    rows = Rows(tmp_path / "s.jsonl")
    for seed in (0, 1):
        rows.add(f"gone/{seed}/then", {"arm": "gone", "seed": seed, "mean": 0.5})
    found = measured_arms(study)
    assert list(found) == ["gone"]
    assert list(found["gone"]) == [0, 1]


def test_metrics_are_counted_from_the_first_update_of_the_policy() -> None:
    row = row_of(Arm("one", "recipes/quickstart.toml"), 0, [(0, 0.0, 0.2), (2, 1.0, 0.6)])
    row["series"]["actor/entropy"] = [None, None, 0.5, 0.25]
    assert metric_of(row, "actor/entropy") == [(1, 0.5), (2, 0.25)]
    assert metric_of(row, "actor/unknown") == []
