"""Tuning: one pass for all arms, the best from the rows, and `tuned` that cannot be claimed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.kit.arms import key
from benchmarks.kit.rows import ResultFile
from benchmarks.kit.study_file import Grid, Point
from benchmarks.kit.study_plan import Study, score
from benchmarks.kit.tuning import Score, walk
from benchmarks.studies.comparison_figures import tuning_lines
from tests.benchmarks.race_rows import (
    PAIR,
    add,
    points_of,
    race_row,
    rising,
    small_race,
    start_of,
)

GRID = Grid(start={"a": 1, "b": 1}, alternatives={"a": (2, 4), "b": (3,)})


def test_every_arm_has_as_many_points_to_try(tmp_path: Path) -> None:
    race = small_race(tmp_path)
    assert set(race.tuning().grids) == set(race.file.arms)
    assert {grid.budget for grid in race.file.grids.values()} == {11}


def test_points_of_a_grid_are_different_arms(tmp_path: Path) -> None:
    race = small_race(tmp_path)
    for mode in race.file.arms:
        points = points_of(race, mode)
        assert len({race.arm(mode, point).digest() for point in points}) == 11


def test_every_arm_is_tuned_on_half_the_prompts_half_as_often(tmp_path: Path) -> None:
    race = small_race(tmp_path)
    for mode in race.file.arms:
        tuned, raced = (
            dict(one.split("=") for one in race.arm(mode, start_of(race, mode), tuned=t).overrides)
            for t in (True, False)
        )
        assert int(tuned["evaluation.num_prompts"]) * 2 == int(raced["evaluation.num_prompts"])
        assert float(tuned["evaluation.spacing"]) == 2 * float(raced["evaluation.spacing"])
        assert (float(tuned["stop.accuracy"]), raced["stop.accuracy"]) == (race.target, "null")
        changed = {name for name in raced if raced[name] != tuned.get(name)}
        assert {name.partition(".")[0] for name in changed} == {"evaluation", "stop"}


def followed(*qualities: Mapping[tuple[int, int], int]) -> list[tuple[Any, Any, int]]:
    """The runs that the pass asks for one after the other, (a, b, seed), and at last the best with
    -1. `qualities`: seconds at each point, seed by seed."""
    known: dict[tuple[Any, Any, int], float] = {}
    order: list[tuple[Any, Any, int]] = []

    def at(point: Point, seeds: Sequence[int]) -> Score | None:
        found = [known.get((point["a"], point["b"], seed)) for seed in seeds]
        return None if None in found else (0.0, sum(one for one in found if one), 0.0)

    while (found := walk(GRID, range(len(qualities)), at)).missing:
        point, seed = found.missing
        place = (point["a"], point["b"])
        order.append((*place, seed))
        known[*place, seed] = qualities[seed][int(point["a"]), int(point["b"])]
    assert [(point["a"], point["b"]) for point in found.tried] == list(
        dict.fromkeys((a, b) for a, b, _ in order)
    )
    return [*order, (found.best["a"], found.best["b"], -1)]


def test_the_pass_goes_on_from_the_best_of_each_coordinate() -> None:
    found = followed({(1, 1): 30, (2, 1): 10, (4, 1): 20, (2, 3): 15})
    assert found == [(1, 1, 0), (2, 1, 0), (4, 1, 0), (2, 3, 0), (2, 1, -1)]
    found = followed({(1, 1): 30, (2, 1): 40, (4, 1): 50, (1, 3): 15})
    assert found[-2:] == [(1, 3, 0), (1, 3, -1)]


def test_only_what_wins_on_the_first_seed_is_run_on_the_second() -> None:
    first = {(1, 1): 30, (2, 1): 10, (4, 1): 20, (4, 3): 25, (2, 3): 25, (1, 3): 40}
    assert followed(first, {(1, 1): 30, (2, 1): 60, (4, 1): 20}) == [
        *[(1, 1, 0), (1, 1, 1)],
        *[(2, 1, 0), (2, 1, 1), (4, 1, 0), (4, 1, 1)],
        *[(4, 3, 0), (4, 1, -1)],
    ]
    # What wins on the first and loses on both is not taken over.
    assert followed(first, {(1, 1): 30, (2, 1): 60, (4, 1): 60})[-2:] == [(1, 3, 0), (1, 1, -1)]


def test_a_point_is_better_that_crosses_then_that_is_faster_then_that_ends_higher() -> None:
    def of(*curves: list[tuple[int, float, float]]) -> Score:
        return score([race_row("a", 1, curve) for curve in curves], target=0.8)

    fast, slow = rising(0.1), rising(0.05)
    never, worse = rising(0.05, top=0.7), rising(0.05, top=0.6)
    assert of(fast) < of(slow) < of(never) < of(worse)
    assert of(slow, slow) < of(fast, never)
    assert of(never) < score([{"failed": "no memory"}], target=0.8)


def test_without_a_target_the_final_accuracy_decides_whenever_it_was_measured() -> None:
    """Its only evaluation, at the end, is no crossing."""
    early = {"final": 0.1, "train_time_s": 450.0, "evaluations": [[20, 450.0, 0.1, 9.0]]}
    late = {"final": 0.2, "train_time_s": 460.0, "evaluations": [[20, 460.0, 0.2, 9.0]]}
    assert score([late], target=0.0) < score([early], target=0.0)


def tuned(race: Study, rows: ResultFile, mode: str) -> None:
    """All that tuning asks for, four optimizer steps being the best."""
    tuning = race.tuning(rows)
    while missing := tuning.walk(mode).missing:
        point, seed = missing
        slope = 0.1 if point["steps"] == 4 and point["policy_lr"] == 1 else 0.05
        add(race, rows, mode, point, seed, rising(slope))


def test_the_race_takes_the_best_point_of_a_tuning_that_is_over(tmp_path: Path) -> None:
    race = small_race(tmp_path)
    rows, start = ResultFile(race.path("tuning")), start_of(race, "streaming")
    assert race.best("streaming") == start
    tuned(race, rows, "streaming")
    assert race.best("streaming") == {**start, "steps": 4}
    assert len(rows.rows) == 11
    table = tuning_lines(race, ["streaming"], rows)
    assert [line["best"] for line in table].count(True) == 1
    assert {line["crossed"] for line in table} == {1}


def test_tuned_is_said_of_equal_budgets_and_of_other_seeds_alone(tmp_path: Path) -> None:
    race, rows = small_race(tmp_path), ResultFile(tmp_path / "rows.jsonl")
    tuning = race.tuning(rows)
    assert not tuning.is_fair([], [1, 2])
    tuned(race, rows, "streaming")
    assert tuning.is_fair(["streaming"], [1, 2])
    assert not tuning.is_fair(PAIR, [1, 2]), "PPO is not tuned"
    tuned(race, rows, "synchronous")
    assert tuning.is_fair(PAIR, [1, 2])
    assert not tuning.is_fair(PAIR, [1, 101]), "a seed that was tuned on"


def test_a_point_that_others_disturbed_is_run_again(tmp_path: Path) -> None:
    race, rows = small_race(tmp_path), ResultFile(tmp_path / "rows.jsonl")
    start = start_of(race, "synchronous")
    name = key(race.arm("synchronous", start, tuned=True), 101)
    row = race_row("small/synchronous", 101, rising(0.1), disturbed=True)
    rows.add(f"{name}/disturbed-0", row)
    assert race.tuning(rows).walk("synchronous").missing == (start, 101)


def test_budgets_that_differ_are_not_fair(tmp_path: Path) -> None:
    race, rows = small_race(tmp_path), ResultFile(tmp_path / "rows.jsonl")
    shorter = Grid(start=dict(start_of(race, "synchronous")), alternatives={"steps": (1, 4)})
    grids = {**race.file.grids, "turns": shorter}
    race = Study(race.name, race.file.model_copy(update={"grids": grids}), "small", tmp_path)
    for mode in PAIR:
        tuned(race, rows, mode)
    assert race.tuning(rows).walk("synchronous").missing is None
    assert not race.tuning(rows).is_fair(PAIR, [1])
