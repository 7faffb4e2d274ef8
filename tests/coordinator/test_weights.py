"""Exactly once, in the weights too: what the ledger says was trained is what learners apply,
whoever stands still, says wrong things or dies. Real coordinator processes, scripted peers."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from headrace.protocol.messages import control as m
from headrace.protocol.messages.batches import Shard
from headrace.protocol.records.record_types import (
    BatchReturned,
    BatchTaken,
    Incident,
    LineageBegan,
    ProcessChanged,
    UpdateCommitted,
    WindowsDropped,
)
from headrace.protocol.transport.sockets import sending_heartbeats
from headrace.run_files.update_log import compare
from tests.coordinator.peers import (
    CoordinatorProcess,
    ScriptedGenerator,
    ScriptedLearner,
    ScriptedPeer,
    ScriptedReward,
    until,
)
from tests.coordinator.stage import LEARNER, endless, staged
from tests.coordinator.test_loop import assert_balanced, records_of, run_config

UPDATES = 8
QUICK = {"heartbeat_s": 0.2, "heartbeat_timeout_s": 1.5, "stall_timeout_s": 20.0}


class Run:
    """A coordinator, its peers, and the folder in which learners write down what they train."""

    def __init__(
        self,
        tmp_path: Path,
        generator: type[ScriptedGenerator] = ScriptedGenerator,
        **sections: Any,
    ) -> None:
        usual: dict[str, Any] = {
            "stop": {"updates": UPDATES},
            "checkpoint": {"every_updates": 2, "keep_last": 1},
            "evaluation": {"before": False, "after": False},
        }
        self.coordinator = CoordinatorProcess(tmp_path / "run-1", run_config(**usual | sections))
        self.run_dir = self.coordinator.run_dir
        self.address = self.coordinator.start()
        self.others: list[ScriptedPeer] = [
            generator(self.address, "generator-0", capacity=8),
            ScriptedReward(self.address, "reward-0"),
        ]
        self.tasks: list[asyncio.Task[None]] = []

    def learner(self, kind: type[ScriptedLearner] = ScriptedLearner, **at: Any) -> Any:
        return kind(self.address, "learner-0", **at).writes(self.run_dir)

    def go(self, *peers: ScriptedPeer) -> None:
        """Peers begin, each with a heart of its own."""
        self.tasks += [asyncio.create_task(beating(peer)) for peer in peers]

    async def records(self) -> Sequence[Any]:
        """Wait for the run's end. The ledger balances, and what is in the weights is what it says:
        every update, each window once."""
        await asyncio.wait_for(asyncio.gather(*self.tasks, return_exceptions=True), 60)
        assert self.coordinator.wait() == 0
        records = records_of(self.run_dir)
        assert_balanced(records)
        found = compare(self.run_dir)
        assert found.problems == []
        assert found.updates == UPDATES
        assert found.windows > 0
        return records


async def beating(peer: ScriptedPeer) -> None:
    with sending_heartbeats(peer.link, peer.identity, interval_s=0.2):
        await peer.run()


@contextlib.asynccontextmanager
async def running(tmp_path: Path, **how: Any) -> AsyncIterator[Run]:
    run = Run(tmp_path, **how)
    run.go(*run.others)
    try:
        yield run
    finally:
        for task in run.tasks:
            task.cancel()
        process = run.coordinator.process
        if process is not None and process.poll() is None:
            run.coordinator.kill()


def of(kind: type[Any], records: Sequence[Any]) -> list[Any]:
    return [record for record in records if isinstance(record, kind)]


async def test_a_coordinator_that_stood_still_takes_nobody_for_dead(tmp_path: Path) -> None:
    """Stopped right after a batch went out, for longer than any peer may be silent: it hears what
    was said meanwhile before it judges anybody, and gives nothing back."""
    async with running(tmp_path, transport=QUICK) as run:
        learner = run.learner()
        run.go(learner)
        for update in (3, 6):
            await until(lambda: has_batch(learner, update))  # noqa: B023
            assert run.coordinator.process is not None
            run.coordinator.process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(3.0)
            run.coordinator.process.send_signal(signal.SIGCONT)
        records = await run.records()
    assert [r.name for r in of(ProcessChanged, records) if r.state == "lost"] == []
    assert of(BatchReturned, records) == of(LineageBegan, records) == []
    # "the coordinator stood still for 3.1 s"; a busy machine makes it stand for half a second.
    stood = [float(r.text.split()[-2]) for r in of(Incident, records) if r.kind == "stood_still"]
    assert len([seconds for seconds in stood if seconds > 2.5]) == 2


def has_batch(learner: ScriptedLearner, update: int) -> bool:
    return any(isinstance(s, m.Batch) and s.update == update for s in learner.seen)


class Confused(ScriptedLearner):
    """Says that it is without the batch of update 3, is given another one, and trains the first."""

    first: tuple[m.Batch, list[Shard]] | None = None
    wrong = False

    async def finish(self) -> None:
        batch = self.batch
        if batch is None or batch.update != 3 or self.wrong:
            await super().finish()
        elif len(self.shards) == sum(batch.parts) and self.first is None:
            self.first = batch, self.shards
            await self.hello()
        elif len(self.shards) == sum(batch.parts):
            self.wrong, self.batch = True, None
            self.apply(*self.first)  # type: ignore[misc]
            await self.report(self.first[0])  # type: ignore[index]


async def test_a_learner_that_trained_what_was_given_back_is_brought_back(tmp_path: Path) -> None:
    async with running(tmp_path) as run:
        learner = run.learner(Confused)
        run.go(learner)
        records = await run.records()
    assert learner.wrong
    (order,) = [s for s in learner.seen if isinstance(s, m.Restore)]
    assert order.line[-1][0] == 2
    trained = {r.batch_id for r in of(UpdateCommitted, records)}
    assert learner.first is not None
    assert learner.first[0].batch_id not in trained
    assert learner.first[0].batch_id in {r.batch_id for r in of(BatchReturned, records)}
    assert "learner_brought_back" in {r.kind for r in of(Incident, records)}


@pytest.mark.parametrize(
    ("update", "batch_id"),
    [(0, None), (2, None), (4, 12345)],
    ids=["starting model", "older than the oldest checkpoint", "a checkpoint of another line"],
)
async def test_weights_off_the_surviving_line_are_never_kept(
    tmp_path: Path, update: int, batch_id: int | None
) -> None:
    """What was trained since an update that is forgotten cannot be given back any more."""
    async with running(tmp_path) as run:
        first = run.learner()
        first.die_at = 6
        run.go(first)
        await until(lambda: has_batch(first, 6))
        run.tasks[-1].cancel()
        first.dealer.close()
        second = run.learner(update=update)
        second.batch_id = batch_id
        run.go(second)
        records = await run.records()
    (order,) = [s for s in second.seen if isinstance(s, m.Restore)]
    assert [place[0] for place in order.line] == [4, 5]
    assert [r.update for r in of(LineageBegan, records)] == [4]


class DiesUnheard(ScriptedLearner):
    """Trains update 4 and dies before it says so."""

    dead = False

    async def report(self, batch: m.Batch) -> None:
        if batch.update == 4:
            self.dead = True
            await asyncio.Event().wait()
        await super().report(batch)


@pytest.mark.parametrize("restored", [True, False])
async def test_a_batch_whose_report_never_came_is_out_until_a_learner_says_what_it_has(
    tmp_path: Path, restored: bool
) -> None:
    """Committed if the weights hold it, given back if they do not, and never both."""
    async with running(tmp_path) as run:
        first = run.learner(DiesUnheard)
        run.go(first)
        await until(lambda: first.dead)
        lost = first.batch_id
        run.tasks[-1].cancel()
        first.dealer.close()
        second = run.learner(update=4 if restored else 3, resumed_from="a checkpoint")
        second.batch_id = first.trained[4 if restored else 3]
        run.go(second)
        records = await run.records()
    trained = {r.batch_id for r in of(UpdateCommitted, records)}
    returned = {r.batch_id for r in of(BatchReturned, records)}
    assert (lost in trained, lost in returned) == (restored, not restored)
    tokens = [r.trained_tokens for r in of(UpdateCommitted, records)]
    assert tokens == sorted(tokens)
    assert tokens[2] > 0, "so that an update that counts none would be out of order"
    ids = [r.batch_id for r in of(BatchTaken, records)]
    assert len(ids) == len(set(ids))


class SkipsUnheard(DiesUnheard):
    """Breaks update 4 off, writes its checkpoint, and dies before it says so."""

    def apply(self, batch: m.Batch, shards: list[Shard], skipped: str | None = None) -> None:
        super().apply(batch, shards, "not finite: loss" if batch.update == 4 else skipped)


async def test_a_skipped_batch_whose_report_never_came_is_committed_as_skipped(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as run:
        first = run.learner(SkipsUnheard)
        run.go(first)
        await until(lambda: first.dead)
        run.tasks[-1].cancel()
        first.dealer.close()
        second = run.learner(update=4, resumed_from="a checkpoint")
        second.batch_id, second.skipped = first.batch_id, first.skipped
        run.go(second)
        records = await run.records()
    skipped = {r.update: r.skipped for r in of(UpdateCommitted, records) if r.skipped}
    assert skipped == {4: "not finite: loss"}
    told = [r.text for r in of(Incident, records) if r.kind == "update_skipped"]
    assert told == ["update 4: not finite: loss"]


class OneWindow(ScriptedGenerator):
    """No answer is longer than a window, so that nothing is sampled ahead of the bound."""

    def length_of(self, trajectory_id: int) -> int:
        return 1 + trajectory_id % 4


async def test_work_that_is_rolled_back_again_and_again_is_trained_in_the_end(
    tmp_path: Path,
) -> None:
    """Staleness 1, as in the demonstration, and learners that lose six updates twice."""
    schedule = {"mode": "streaming", "window": 4, "batch_windows": 8, "max_staleness": 1}
    how = {"schedule": schedule, "checkpoint": {"every_updates": 20}}
    async with running(tmp_path, generator=OneWindow, **how) as run:
        for number in range(3):
            learner = run.learner()
            learner.die_at = 7 if number < 2 else None
            run.go(learner)
            if number < 2:
                await until(lambda: has_batch(learner, 7))  # noqa: B023
                run.tasks[-1].cancel()
                learner.dealer.close()
        records = await run.records()
    rollbacks = of(LineageBegan, records)
    assert [r.update for r in rollbacks] == [0, 0]
    back = {key for rollback in rollbacks for key in rollback.window_ids}
    surviving: dict[int, list[int]] = {}
    for record in records:
        if isinstance(record, UpdateCommitted):
            surviving[record.update] = record.window_ids
        elif isinstance(record, LineageBegan):
            surviving = {u: ids for u, ids in surviving.items() if u <= record.update}
    assert back
    assert back <= {key for ids in surviving.values() for key in ids}
    reasons = {r.reason for r in of(WindowsDropped, records)}
    assert "stale" not in reasons
    masked = [run for b in of(BatchTaken, records) for w in b.windows for run in w.masked]
    assert "stale" not in {run.reason for run in masked}


# -- one step at a time ----------------------------------------------------------------------------


async def test_weights_of_another_batch_of_its_number_do_not_commit_what_is_out(
    tmp_path: Path,
) -> None:
    async with staged(endless(), tmp_path / "run-1") as stage:
        await stage.reach(stage.update)
        account, state = stage.hub.account, stage.hub.state
        out = account.taken
        assert out is not None
        assert out.batch_id is not None
        await stage.say(LEARNER, m.Goodbye())
        back = m.Hello(
            role="learner", name=LEARNER, pid=2, host="here", update=out.update,
            batch_id=out.batch_id + 1, resumed_from="a checkpoint",
        )  # fmt: skip
        await stage.say(LEARNER, back)
        assert (state.committed, account.taken) == (out.update - 1, None)
        assert [batch.batch_id for batch in account.again] == [out.batch_id]
        assert stage.hub.peers.learner is None


async def test_a_learner_can_go_back_to_each_checkpoint_that_is_kept(tmp_path: Path) -> None:
    """Of three, the last two: what only the first one needed is forgotten."""
    base = endless()
    checkpoint = base.checkpoint.model_copy(update={"every_updates": 2, "keep_last": 2})
    config = base.model_copy(update={"checkpoint": checkpoint})
    async with staged(config, tmp_path / "run-1") as stage:
        state = stage.hub.state
        for _ in range(500):
            await stage.work()
            for update in sorted(stage.training.orders.checkpoints):
                done = m.CheckpointDone(update=update, path=f"step_{update}")
                await stage.say(LEARNER, done)
            if state.checkpoints[-1:] == [6]:
                break
        assert state.checkpoints == [4, 6]
        assert min(state.line) == 4
        await stage.say(LEARNER, m.Goodbye())
        await stage.rejoin(4)
        assert stage.hub.peers.learner is not None
        assert (state.committed, state.lineage) == (4, 1)
