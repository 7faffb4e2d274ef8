"""Evaluations along the stream: training goes on, and nothing that judges a run reads them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.rollouts.along import AlongEvaluation
from headrace.protocol.records.record_types import (
    EvaluationDone,
    GroupIssued,
    LeaseIssued,
    MetricsSampled,
    RunPhase,
    TrajectoryEnded,
    UpdateCommitted,
)
from headrace.run_files.update_log import compare
from storage import queries
from storage.audit import audit_run
from tests.coordinator.rollouts.test_evaluation import whole_run
from tests.coordinator.test_loop import run_config
from tests.coordinator.world import World, make_config


@pytest.mark.parametrize("evaluated", [4, 24])
async def test_held_out_prompts_are_answered_beside_training(
    tmp_path: Path, evaluated: int
) -> None:
    """On one of four slots. Those that the end leaves open, of many prompts, are given up."""
    config = run_config(
        evaluation={"num_prompts": evaluated, "mode": "along", "every_updates": 3},
        stop={"updates": 12},
        storage={"commit_interval_ms": 5, "token_diagnostics": False},
    )
    records = await whole_run(tmp_path, config)
    phases = [r.phase for r in records if isinstance(r, RunPhase)]
    assert phases.count("training") == 1
    assert phases.count("evaluating") == 2
    results = [
        {name: value for name, value in r.metrics.items() if isinstance(value, float)}
        for r in records
        if isinstance(r, UpdateCommitted | MetricsSampled) and "along/accuracy" in r.metrics
    ]  # fmt: skip
    issued = [r for r in records if isinstance(r, GroupIssued) and r.purpose == "along"]
    begun = [group.position for group in issued].count(0)
    assert begun >= 1
    assert len(issued) == begun * evaluated
    assert begun - len(results) in (0, 1)
    assert evaluated > 4 or results
    for metrics in results:
        assert 0 <= metrics["along/accuracy"] <= 1
        assert 1 <= metrics["along/response_length"] <= 12
        assert 0 <= metrics["along/first_version"] <= metrics["along/last_version"] <= 12
    mine = {key for group in issued for key in group.trajectory_ids}
    ends = [r for r in records if isinstance(r, TrajectoryEnded) and r.trajectory_id in mine]
    assert {r.trajectory_id for r in ends} == mine
    assert begun > len(results) or all(r.status != "aborted" for r in ends)
    held: set[int] = set()
    for record in records:
        if isinstance(record, LeaseIssued) and record.trajectory_id in mine:
            held.add(record.trajectory_id)
        elif isinstance(record, TrajectoryEnded):
            held.discard(record.trajectory_id)
        assert len(held) <= 1
    assert [r.label for r in records if isinstance(r, EvaluationDone)] == ["before", "after"]
    assert [r.update for r in records if isinstance(r, UpdateCommitted)] == list(range(1, 13))
    run_dir = tmp_path / "run-1"
    assert len(queries.evaluations(run_dir)) == 2
    assert compare(run_dir).problems == []
    assert [f for f in audit_run(run_dir).findings if f.kind != "checkpoint"] == []


def test_figures_are_those_of_all_that_were_asked() -> None:
    """Two tokens of version 0 that are right and earn nothing, four of version 1 that are wrong and
    earn something, and three without a score."""
    world = World(make_config(schedule={"num_generations": 3}))
    answers = world.issue("along")
    scores = ((2, 0.0, True), (4, 1.0, False), (3, None, True))
    for answer, (tokens, reward, correct) in zip(answers, scores, strict=True):
        world.chunk(answer, tokens, "stop")
        world.reward(answer, reward, correct=correct)
        world.publish(1)
    hub: Any = SimpleNamespace(state=world.state, account=world.account)
    nobody: Any = None
    evaluation = AlongEvaluation(hub, nobody, lambda figures: None)
    assert not evaluation.open
    evaluation._asked = answers
    assert evaluation._result() == {
        "along/accuracy": pytest.approx(1 / 3),
        "along/response_length": 3.0,
        "along/first_version": 0.0,
        "along/last_version": 1.0,
    }
