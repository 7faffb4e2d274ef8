"""A real coordinator process over real sockets, scripted peers: runs, deaths, resumes."""

import asyncio
import math
from pathlib import Path

import pytest

from coordinator.loop import IntervalTimer, sampling_interval
from headrace.config.sections.run import RunConfig
from headrace.protocol.messages import control as m
from headrace.protocol.records.record_types import (
    AnyRecord,
    BatchTaken,
    EvaluationDone,
    Incident,
    LineageBegan,
    MetricsSampled,
    RunPhase,
    UpdateCommitted,
)
from storage.journal.segments import digest_at
from storage.run_store import RunStore
from tests.coordinator.peers import (
    MODEL,
    CoordinatorProcess,
    ScriptedGenerator,
    ScriptedLearner,
    ScriptedReward,
    until,
)
from tests.metric_values import number


def run_config(mode: str = "streaming", **sections: object) -> RunConfig:
    base: dict[str, object] = {
        "model": {"path": str(MODEL)},
        "task": {"kind": "chain_sums", "max_prompt_length": 80, "max_response_length": 12},
        "algorithm": {
            "advantages": {"kind": "egae"},
            "value": {"warmup_updates": 1, "warmup_epochs": 2},
        },
        "schedule": {"mode": mode, "window": 4, "batch_windows": 8, "max_staleness": 1},
        "evaluation": {"num_prompts": 16},
        "stop": {"updates": 6},
        "storage": {"commit_interval_ms": 5},
        "transport": {"heartbeat_s": 0.2, "heartbeat_timeout_s": 15.0, "stall_timeout_s": 20.0},
    }
    sections = base | sections
    transport = sections["transport"]
    assert isinstance(transport, dict)
    # Scripted peers count what they are told.
    return RunConfig.model_validate(sections | {"transport": {"self_test_s": None} | transport})


def records_of(run_dir: Path) -> list[AnyRecord]:
    store = RunStore.open(run_dir)
    try:
        return list(store.replay())  # type: ignore[arg-type]
    finally:
        store.close()


def assert_balanced(records: list[AnyRecord]) -> None:
    """generated = trained + ready + in flight + dropped, at every update and at the end."""
    sampled = [r for r in records if isinstance(r, UpdateCommitted | MetricsSampled)]
    assert sampled
    for record in sampled:
        if not record.metrics:
            continue  # Nobody reported the update: it was found in a learner's weights.
        ledger = {
            name: number(value)
            for name, value in record.metrics.items()
            if name.startswith("ledger/")
        }
        assert ledger["ledger/generated"] == (
            ledger["ledger/trained_policy"]
            + ledger["ledger/ready"]
            + ledger["ledger/in_flight"]
            + ledger["ledger/dropped"]
        )


@pytest.mark.parametrize("mode", ["streaming", "windowed", "synchronous"])
async def test_a_whole_run_in_each_mode(tmp_path: Path, mode: str) -> None:
    coordinator = CoordinatorProcess(tmp_path / "run-1", run_config(mode))
    address = coordinator.start()
    generator = ScriptedGenerator(address, "generator-0", capacity=8)
    peers = [
        generator,
        ScriptedReward(address, "reward-0"),
        ScriptedLearner(address, "learner-0"),
    ]
    await asyncio.wait_for(asyncio.gather(*(peer.run() for peer in peers)), 90)
    assert coordinator.wait() == 0
    assert all(peer.shutdown == "finished" for peer in peers)
    records = records_of(coordinator.run_dir)
    labels = [r.label for r in records if isinstance(r, EvaluationDone)]
    assert labels == ["before", "after"]
    updates = [r.update for r in records if isinstance(r, UpdateCommitted)]
    assert updates == [1, 2, 3, 4, 5, 6]
    assert_balanced(records)
    last = [r for r in records if isinstance(r, MetricsSampled)][-1].metrics
    assert last["ledger/in_flight"] == last["ledger/ready"] == 0
    assert last["ledger/trained_policy"] > 0
    leases = [x for s in generator.seen if isinstance(s, m.Leases) for x in s.leases]
    seeds = {(lease.trajectory_id, lease.seed) for lease in leases}
    assert len(seeds) == len(dict(seeds)), "a resumed trajectory has another seed"
    sent = [s for s in peers[2].seen if isinstance(s, m.Batch)]
    assert [batch.value_epochs for batch in sent] == [2, 1, 1, 1, 1, 1], "first the warm-up"
    ends = [batch.journal for batch in sent]
    for end, batch in zip(ends, (r for r in records if isinstance(r, BatchTaken)), strict=True):
        assert end is not None
        assert digest_at(coordinator.run_dir / "journal", end.records) == end.digest
        assert records.index(batch) < end.records
    if mode == "windowed":
        assert 4 in [lease.stop_at for lease in leases]
        batches = [r for r in records if isinstance(r, BatchTaken)]
        masked = [run for batch in batches for w in batch.windows for run in w.masked]
        assert not any(run.reason == "stale" for run in masked)


async def test_a_learner_that_dies_is_rolled_back_and_nothing_is_trained_twice(
    tmp_path: Path,
) -> None:
    config = run_config(checkpoint={"every_updates": 2}, stop={"updates": 8})
    coordinator = CoordinatorProcess(tmp_path / "run-1", config)
    address = coordinator.start()
    first = ScriptedLearner(address, "learner-0")
    first.die_at = 6
    others = [
        ScriptedGenerator(address, "generator-0", capacity=8),
        ScriptedReward(address, "reward-0"),
    ]
    tasks = [asyncio.create_task(peer.run()) for peer in [*others, first]]
    await until(lambda: any(isinstance(s, m.Batch) and s.update == 6 for s in first.seen))
    tasks[2].cancel()
    first.dealer.close()
    second = ScriptedLearner(address, "learner-0", update=4, resumed_from="step_4")
    second.batch_id = first.trained[4]
    await asyncio.wait_for(asyncio.gather(*tasks[:2], second.run()), 90)
    assert coordinator.wait() == 0
    records = records_of(coordinator.run_dir)
    assert_balanced(records)
    (rollback,) = [r for r in records if isinstance(r, LineageBegan)]
    assert (rollback.update, rollback.lineage) == (4, 1)
    lineages: dict[int, dict[int, BatchTaken]] = {}
    surviving: dict[int, BatchTaken] = {}
    for record in records:
        if isinstance(record, BatchTaken):
            lineages.setdefault(record.lineage, {})[record.update] = record
        if isinstance(record, UpdateCommitted):
            surviving[record.update] = lineages[record.lineage][record.update]
        if isinstance(record, LineageBegan):
            surviving = {u: b for u, b in surviving.items() if u <= record.update}
    windows = [w.window_id for batch in surviving.values() for w in batch.windows]
    assert sorted(surviving) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert len(windows) == len(set(windows))
    versions = [b.version for b in surviving.values()]
    assert versions == sorted(versions)


async def test_a_killed_coordinator_is_resumed_from_its_journal(tmp_path: Path) -> None:
    config = run_config(checkpoint={"every_updates": 1}, stop={"updates": 12})
    coordinator = CoordinatorProcess(tmp_path / "run-1", config)
    address = coordinator.start()
    learner = ScriptedLearner(address, "learner-0")
    peers = [
        learner,
        ScriptedGenerator(address, "generator-0", capacity=8),
        ScriptedReward(address, "reward-0"),
    ]
    tasks = [asyncio.create_task(peer.run()) for peer in peers]
    await until(lambda: learner.update >= 4)
    coordinator.kill()
    for task, peer in zip(tasks, peers, strict=True):
        task.cancel()
        peer.dealer.close()
    committed = [
        r.update for r in records_of(coordinator.run_dir) if isinstance(r, UpdateCommitted)
    ]
    address = coordinator.start(resume=True)
    restored = ScriptedLearner(address, "learner-0", update=committed[-1])
    restored.batch_id = learner.trained[committed[-1]]
    peers = [
        restored,
        ScriptedGenerator(address, "generator-0", capacity=8),
        ScriptedReward(address, "reward-0"),
    ]
    await asyncio.wait_for(asyncio.gather(*(peer.run() for peer in peers)), 90)
    assert coordinator.wait() == 0
    records = records_of(coordinator.run_dir)
    assert_balanced(records)
    done = [r for r in records if isinstance(r, UpdateCommitted)]
    assert [r.update for r in done] == list(range(1, 13))
    assert [r.label for r in records if isinstance(r, EvaluationDone)] == ["before", "after"]
    trained = [window_id for r in done for window_id in r.window_ids]
    assert len(trained) == len(set(trained)) > 0
    taken = {w.window_id for r in records if isinstance(r, BatchTaken) for w in r.windows}
    assert taken >= set(trained)


async def test_bad_chunks_are_refused_and_the_run_goes_on(tmp_path: Path) -> None:
    coordinator = CoordinatorProcess(tmp_path / "run-1", run_config(stop={"updates": 3}))
    address = coordinator.start()

    class Liar(ScriptedGenerator):
        lied = 0

        def generate(self, lease: m.Lease) -> list[m.TrajectoryChunk]:
            good = super().generate(lease)
            if self.lied < 3 and lease.purpose == "train":
                self.lied += 1
                wrong = [
                    self.chunk(lease, 5, lease.prefix_ids.size, lease.prefix_ids.size + 2, "stop"),
                    self.chunk(lease, 0, 3, 5, "stop"),
                    self.chunk(lease, 0, lease.prefix_ids.size, 40, "stop"),
                ]
                return [wrong[self.lied - 1]]
            return [*good, good[0]]

    peers = [
        Liar(address, "generator-0", capacity=8),
        ScriptedReward(address, "reward-0"),
        ScriptedLearner(address, "learner-0"),
    ]
    await asyncio.wait_for(asyncio.gather(*(peer.run() for peer in peers)), 90)
    assert coordinator.wait() == 0
    records = records_of(coordinator.run_dir)
    assert_balanced(records)
    kinds = [getattr(r, "kind", None) for r in records]
    assert kinds.count("chunk_rejected") >= 3


async def test_failing_rewards_stop_the_run_with_the_reason(tmp_path: Path) -> None:
    config = run_config(reward={"max_consecutive_failures": 4}, evaluation={"before": False})
    coordinator = CoordinatorProcess(tmp_path / "run-1", config)
    address = coordinator.start()

    class Broken(ScriptedReward):
        async def answer(self, message: m.Message) -> None:
            if isinstance(message, m.ScoreRequest):
                ids = [item.trajectory_id for item in message.items]
                scores = [m.Score(trajectory_id=i, status="timeout", error="too slow") for i in ids]
                await self.dealer.send(m.Scores(scores=scores))

    peers = [
        ScriptedGenerator(address, "generator-0", capacity=8),
        Broken(address, "reward-0"),
        ScriptedLearner(address, "learner-0"),
    ]
    await asyncio.wait_for(asyncio.gather(*(peer.run() for peer in peers)), 90)
    assert coordinator.wait() == 1
    assert "rewards in a row failed" in (coordinator.run_dir / "coordinator.log").read_text()
    phases = [r.phase for r in records_of(coordinator.run_dir) if isinstance(r, RunPhase)]
    assert phases[-1] == "failed"


async def test_a_run_in_which_nobody_moves_ends_and_names_what_it_waits_for(tmp_path: Path) -> None:
    transport = {"heartbeat_s": 0.2, "heartbeat_timeout_s": 60.0, "stall_timeout_s": 6.0}
    coordinator = CoordinatorProcess(tmp_path / "run-1", run_config(transport=transport))
    address = coordinator.start()
    silent = ScriptedLearner(address, "learner-0")
    silent.die_at = 1
    peers = [
        ScriptedGenerator(address, "generator-0", capacity=8),
        ScriptedReward(address, "reward-0"),
        silent,
    ]
    await asyncio.wait_for(asyncio.gather(*(peer.run() for peer in peers)), 90)
    assert coordinator.wait() == 1
    log = (coordinator.run_dir / "coordinator.log").read_text()
    assert "nobody makes progress: the learner's update 1 for" in log


class WaitingLearner(ScriptedLearner):
    """Its disk takes nothing when it is to publish for the first time."""

    async def answer(self, message: m.Message) -> None:
        if isinstance(message, m.Welcome):
            await self.dealer.send(m.Trouble(kind="disk", text="room for 9 bytes", waits=True))
            await asyncio.sleep(9)
            await self.dealer.send(m.Trouble(kind="disk", text="", waits=True))
        await super().answer(message)


async def test_a_learner_that_waits_for_its_disk_is_waited_for(tmp_path: Path) -> None:
    """Longer than the watchdog has patience, and the history says for what."""
    transport = {"heartbeat_s": 0.2, "heartbeat_timeout_s": 30.0, "stall_timeout_s": 6.0}
    config = run_config(transport=transport, stop={"updates": 2})
    coordinator = CoordinatorProcess(tmp_path / "run-1", config)
    address = coordinator.start()
    peers = [
        ScriptedGenerator(address, "generator-0", capacity=8),
        ScriptedReward(address, "reward-0"),
        WaitingLearner(address, "learner-0"),
    ]
    await asyncio.wait_for(asyncio.gather(*(peer.run() for peer in peers)), 90)
    assert coordinator.wait() == 0
    told = [r for r in records_of(coordinator.run_dir) if isinstance(r, Incident)]
    assert [(r.level, r.kind, r.text) for r in told if r.kind == "disk"] == [
        ("error", "disk", "learner-0 waits: room for 9 bytes"),
        ("info", "disk", "learner-0 goes on"),
    ]


def test_gauges_are_recorded_at_longer_intervals_in_a_long_run() -> None:
    """A chart of a week reads a sixth of the rows that it would have by the second."""
    ages = (0.0, 20_000.0, 86_400.0, 200_000.0, 1e7)
    assert [sampling_interval(age) for age in ages] == [1.0, 1.0, 4.32, 10.0, 10.0]
    age, rows = 0.0, 0
    while age < 7 * 86_400:
        age, rows = age + sampling_interval(age), rows + 1
    assert rows == pytest.approx(20_000 * (1 + math.log(10)) + 40_480, rel=0.001)
    timer = IntervalTimer(1.0)
    timer.seconds = sampling_interval(86_400.0)
    assert [timer.is_due(now) for now in (0.0, 4.3, 4.4)] == [True, False, True]
