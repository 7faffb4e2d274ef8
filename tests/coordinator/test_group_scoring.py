"""Sources that see whole groups: when they are asked, about whom, and what comes back."""

from typing import Any

import pytest
from msgspec.structs import replace

from headrace.protocol.messages.control import Score, ScoreItem
from headrace.protocol.records.record_types import RewardArrived
from headrace.trajectory.trajectories import Trajectory
from tests.coordinator.line_stage import SOURCES, LineStage

TOGETHER = {**SOURCES, "outcome": {"kind": "function", "function": "m:f", "unit": "group"}}


def stage_of(size: int = 3, ends: tuple[int, ...] = ()) -> tuple[LineStage, list[Trajectory]]:
    """A group under way."""
    process = {"source": "lines" if ends else None}
    stage = LineStage(ends, sources=TOGETHER, process=process, schedule={"num_generations": size})
    group = stage.world.issue()
    for trajectory in group:
        stage.world.lease(trajectory)
    return stage, group


def fail(stage: LineStage, trajectory: Trajectory) -> None:
    """Three leases ended in an error."""
    stage.world.end(trajectory, "failed")
    stage.scoring.add(trajectory)


def answer(stage: LineStage, item: ScoreItem, *rewards: float, **values: Any) -> list[Trajectory]:
    siblings = [
        Score(trajectory_id=s.trajectory_id, status="ok", reward=r, correct=r > 0)
        for s, r in zip(item.siblings, rewards, strict=False)
    ]
    return stage.answer(item, siblings=siblings, **values)


def outcomes(stage: LineStage) -> dict[int, tuple[str, float | None]]:
    found = [r for r in stage.world.records if isinstance(r, RewardArrived)]
    assert {r.source for r in found} <= {"outcome"}
    return {r.trajectory_id: (r.status, r.reward) for r in found}


def test_a_group_is_asked_for_once_all_of_it_has_ended() -> None:
    stage, group = stage_of()
    for trajectory in group[:2]:
        stage.grow(trajectory, 2, "stop")
        assert stage.ask() == []
    stage.grow(group[2], 3, "length")
    (item,) = stage.ask()
    assert (item.unit, item.source, item.text) == ("group", "outcome", "")
    assert [s.trajectory_id for s in item.siblings] == [0, 1, 2]
    assert [s.finished for s in item.siblings] == [True, True, False]
    assert [s.text for s in item.siblings] == ["0 1 ", "0 1 ", "0 1 2 "]
    assert answer(stage, item, 1.0, 0.0, 0.5) == group
    assert outcomes(stage) == {0: ("ok", 1.0), 1: ("ok", 0.0), 2: ("ok", 0.5)}
    assert all(t.windows[-1].state == "ready" for t in group)


def test_failed_siblings_are_absent_even_where_they_end_last() -> None:
    stage, group = stage_of()
    fail(stage, group[0])
    stage.grow(group[1], 2, "stop")
    stage.grow(group[2], 2, "stop")
    (item,) = stage.ask()
    assert [s.trajectory_id for s in item.siblings] == [1, 2]
    answer(stage, item, 1.0, 0.0)
    assert outcomes(stage) == {1: ("ok", 1.0), 2: ("ok", 0.0)}
    stage, group = stage_of(2)
    stage.grow(group[0], 2, "stop")
    assert stage.ask() == []
    fail(stage, group[1])
    (item,) = stage.ask()
    assert [s.trajectory_id for s in item.siblings] == [0]


def test_a_group_of_which_nobody_has_an_end_is_not_asked_for() -> None:
    stage, group = stage_of(2)
    for trajectory in group:
        fail(stage, trajectory)
    assert stage.ask() == []


def test_siblings_that_end_together_are_asked_for_once() -> None:
    stage, group = stage_of(2)
    for trajectory in group:
        stage.world.chunk(trajectory, 2, "stop")
    for trajectory in group:
        stage.scoring.add(trajectory)
    assert len(stage.ask()) == 1
    assert stage.ask() == []


def test_a_failure_of_a_group_is_one_of_each_sibling_and_counted_once() -> None:
    stage, group = stage_of()
    for trajectory in group:
        stage.grow(trajectory, 2, "stop")
    stage.answer(stage.ask()[0], status="crashed", error="ValueError")
    assert outcomes(stage) == {i: ("crashed", None) for i in range(3)}
    assert stage.incidents == [
        "the group of trajectory 0: crashed by outcome after 0.2 s: ValueError"
    ]


@pytest.mark.parametrize("scored", [[0, 1], [0, 1, 2, 3], [0, 1, 3], [2, 1, 0]])
def test_scores_for_other_siblings_than_asked_are_invalid(scored: list[int]) -> None:
    """Fewer or more, another one, or in another order: each would have the score of another."""
    stage, group = stage_of()
    for trajectory in group:
        stage.grow(trajectory, 2, "stop")
    (item,) = stage.ask()
    siblings = [replace(item.siblings[0], trajectory_id=key) for key in scored]
    answer(stage, replace(item, siblings=siblings), 1.0, 0.0, 0.5, 0.25)
    assert outcomes(stage) == {i: ("invalid", None) for i in range(3)}


def test_each_sibling_waits_for_its_own_lines() -> None:
    """Token ids are positions, so all siblings have a line that ends at position 1."""
    stage, group = stage_of(2, ends=(1,))
    for trajectory in group:
        stage.grow(trajectory, 2, "stop")
    items = {(item.unit, item.trajectory_id): item for item in stage.ask()}
    assert set(items) == {("group", 0), ("line", 0), ("line", 1)}
    stage.answer(items["line", 1], 1.0)
    assert answer(stage, items["group", 0], 1.0, 0.0) == [group[1]]
    assert outcomes(stage) == {1: ("ok", 0.0)}
    assert stage.answer(items["line", 0], 1.0) == [group[0]]
    assert [sum(r.value for r in t.rewards) for t in group] == [1.025, 0.25]
