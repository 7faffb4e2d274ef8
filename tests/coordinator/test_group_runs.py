"""Whole runs of a real coordinator and scripted peers: critic-free by groups, pretraining."""

import asyncio
from pathlib import Path

import pytest

from headrace.metrics.registry import METRICS, pattern_of
from headrace.protocol.messages import control as m
from headrace.protocol.records.record_types import (
    BatchTaken,
    CheckpointWritten,
    MetricsSampled,
    RunPhase,
    UpdateCommitted,
)
from storage.audit import audit_run
from tests.coordinator.peers import (
    CoordinatorProcess,
    ScriptedGenerator,
    ScriptedLearner,
    ScriptedPeer,
    ScriptedReward,
)
from tests.coordinator.stage import assert_sound, staged
from tests.coordinator.test_loop import assert_balanced, records_of, run_config
from tests.metric_values import number

SIZE = 4


class GroupReward(ScriptedReward):
    """Every third group is all right, the others are mixed."""

    async def answer(self, message: m.Message) -> None:
        if isinstance(message, m.ScoreRequest):
            scores = [
                m.Score(
                    trajectory_id=item.trajectory_id,
                    status="ok",
                    reward=float(item.trajectory_id // SIZE % 3 == 0 or item.trajectory_id % 2),
                )
                for item in message.items
            ]
            await self.dealer.send(m.Scores(scores=scores))


async def run(
    tmp_path: Path,
    *,
    reward: type[ScriptedReward],
    mode: str = "streaming",
    reward_section: object = None,
    **sections: object,
) -> tuple[Path, list[m.BatchPart]]:
    """The run's folder and the parts of its batches, after it has ended well."""
    if reward_section is not None:
        sections["reward"] = reward_section
    coordinator = CoordinatorProcess(tmp_path / "run-1", run_config(mode, **sections))
    address = coordinator.start()
    peers: list[ScriptedPeer] = [
        ScriptedGenerator(address, "generator-0", capacity=8),
        reward(address, "reward-0"),
        ScriptedLearner(address, "learner-0"),
    ]
    await asyncio.wait_for(asyncio.gather(*(peer.run() for peer in peers)), 90)
    assert coordinator.wait() == 0
    return coordinator.run_dir, [s for s in peers[2].seen if isinstance(s, m.BatchPart)]


@pytest.mark.parametrize(
    ("mode", "stale"), [("synchronous", "mask"), ("streaming", "mask"), ("streaming", "wait")]
)
async def test_groups_with_dynamic_sampling(tmp_path: Path, mode: str, stale: str) -> None:
    """Batches keep coming, of whole mixed groups; what was filtered is in the books."""
    run_dir, batches = await run(
        tmp_path,
        reward=GroupReward,
        mode=mode,
        algorithm={"advantages": {"kind": "group"}, "value": None, "admit": "mixed_groups"},
        schedule={
            "mode": mode, "unit": "group", "num_generations": SIZE, "batch_windows": 8,
            "stale": stale, "max_staleness": 1,
        },
    )  # fmt: skip
    records = records_of(run_dir)
    assert_balanced(records)
    updates = [r for r in records if isinstance(r, UpdateCommitted)]
    assert [r.update for r in updates] == [1, 2, 3, 4, 5, 6]
    seen: set[int] = set()
    for batch in batches:
        for window in batch.shard.windows:
            assert window.window_id not in seen
            seen.add(window.window_id)
        ends = [w for w in batch.shard.windows if w.finished]
        scored = {w.trajectory_id: sum(r.value for r in w.rewards) for w in ends}
        assert len(scored) == SIZE * len(batch.shard.groups)
        for group in batch.shard.groups:
            assert group.scores.tolist() == [scored[key] for key in group.trajectory_ids]
            assert len(group.trajectory_ids) == SIZE
            assert len(set(group.scores.tolist())) == 2
    metrics = updates[-1].metrics
    assert number(metrics["ledger/dropped/filtered"]) > 0
    assert metrics["ledger/value_finished"] == 0
    assert 0 < number(metrics["schedule/admitted_share"]) <= 1
    assert {name for name in metrics if pattern_of(name) not in METRICS} == set()
    if mode == "synchronous":
        assert metrics["staleness/max"] == 0
    last = [r for r in records if isinstance(r, MetricsSampled)][-1].metrics
    again = audit_run(run_dir).counts
    assert again["generated"] == last["ledger/generated"]
    assert again["trained_policy"] == last["ledger/trained_policy"]
    assert again["dropped"]["filtered"] == last["ledger/dropped/filtered"]


async def test_dropped_groups_are_forgotten_though_no_update_comes(tmp_path: Path) -> None:
    """Every answer has the same score. What is left is of the groups since the last forty."""
    config = run_config(
        algorithm={"advantages": {"kind": "egae"}, "value": {}, "admit": "mixed_groups"},
        schedule={
            "mode": "streaming", "window": 4, "batch_windows": 8, "max_staleness": 1,
            "num_generations": 2,
        },
        evaluation={"before": False, "after": False},
    )  # fmt: skip
    async with staged(config, tmp_path / "run-1") as stage:
        for _ in range(200):
            await stage.work()
        assert stage.hub.state.issued > 2 * len(stage.hub.account.trajectories)
        assert not stage.hub.state.update
    assert_sound(stage)


async def test_value_pretraining_is_a_run_of_its_own(tmp_path: Path) -> None:
    """It ends with the warm-up, has trained no policy token, and leaves a checkpoint."""
    run_dir, batches = await run(
        tmp_path,
        reward=ScriptedReward,
        algorithm={
            "advantages": {"kind": "egae"},
            "value": {"warmup_updates": 3, "warmup_epochs": 2},
        },
        stop={"after_warmup": True},
        evaluation={"num_prompts": 4, "before": False, "after": False},
    )
    records = records_of(run_dir)
    taken = [r for r in records if isinstance(r, BatchTaken)]
    assert [(r.update, r.batch_id) for r in taken] == [
        (update, batch.batch_id) for update, batch in enumerate(batches, start=1)
    ]
    assert len(taken) == 3
    assert all(not b.shard.windows and b.shard.values for b in batches)
    phases = [r for r in records if isinstance(r, RunPhase)]
    assert any("warm-up is over" in r.detail for r in phases)
    assert any(isinstance(r, CheckpointWritten) for r in records)
    last = [r for r in records if isinstance(r, MetricsSampled)][-1].metrics
    assert last["ledger/trained_policy"] == 0
    assert last["ledger/trained_value"] > 0
