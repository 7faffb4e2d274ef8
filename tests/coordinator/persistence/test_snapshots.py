"""A restart from a snapshot gives the state that the whole journal gives, whatever happened, and
does not grow with the run."""

import logging
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import cast

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.persistence import snapshots as module
from coordinator.persistence.snapshots import StateValues, restored, snapshot_of
from coordinator.persistence.state import State
from coordinator.run import build
from coordinator.training.replayed_batch import past_batch
from headrace.config.sections.run import RunConfig
from headrace.protocol.records.record_types import (
    AuditArrived,
    CheckpointWritten,
    Forgotten,
    GroupIssued,
    LineScore,
    LinesScored,
    Milestone,
    Record,
    Snapshot,
)
from headrace.protocol.token_spans import Coefficient, Mark, Piece, Reward, Span, Streams, Weight
from headrace.run_files.run_folder import read_config
from storage.audit import audit_run
from storage.journal.record_batches import SegmentWalk
from storage.journal.segments import segment_paths
from storage.run_store import RunStore
from tests.coordinator.persistence.test_state import picture, play, streaming_world
from tests.coordinator.stage import assert_sound, endless, staged
from tests.coordinator.world import World, make_config
from tests.storage.lives import Life


class Kept:
    """A journal in memory; `read`: how many records were read of it."""

    def __init__(self, records: list[Record]) -> None:
        self.records, self.read = records, 0

    def snapshots(self) -> Iterator[tuple[int, Snapshot]]:
        for offset in range(len(self.records) - 1, -1, -1):
            record = self.records[offset]
            if isinstance(record, Snapshot):
                yield offset, record

    def replay(
        self, first: int = 0, end: int | None = None, *, only: Sequence[type[Record]] = ()
    ) -> Iterator[Record]:
        for record in self.records[first:end]:
            self.read += 1
            if not only or isinstance(record, tuple(only)):
                yield record


def folded(config: RunConfig, records: list[Record]) -> State:
    state = State(config)
    for record in records:
        state.apply(record)
    return state


def with_snapshots(config: RunConfig, records: list[Record], seed: int) -> list[Record]:
    """The same history with snapshots among its records, some while records were on their way."""
    rng, state, written = random.Random(seed), State(config), list[Record]()

    def write(record: Record) -> None:
        state.apply(record)
        written.append(record)

    for record in records:
        write(record)
        if rng.random() < 0.1:
            snapshot = snapshot_of(state, max(0, len(written) - rng.randint(0, 9)))
            assert snapshot is not None
            write(snapshot)
    return written


# -- the same state --------------------------------------------------------------------------------


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10_000), st.sampled_from(["window", "trajectory", "group"]))
def test_a_snapshot_and_what_follows_give_the_state_of_the_whole_journal(
    seed: int, unit: str
) -> None:
    """Evaluations, tools, rollbacks, failures and restarts included, after any record."""
    config = make_config(
        schedule={"mode": "streaming", "unit": unit, "num_generations": 2, "window": 4}
    )
    life = Life(config, seed)
    life.live(150)
    records = with_snapshots(config, life.records, seed)
    for end in {len(records), *random.Random(seed).sample(range(len(records)), 12)}:
        state = restored(config, cast(RunStore, Kept(records[:end])))
        assert picture(state) == picture(folded(config, records[:end]))
        account = state.account
        assert all(account.window(key) is window for key, window in account.ready.items())
        assert all(account.trajectories[key] is each for key, each in account.active.items())


class Restarting(World):
    """A world whose coordinators begin with a snapshot."""

    def replayed(self) -> State:
        state = restored(self.config, cast(RunStore, Kept(self.records)))
        assert picture(state) == picture(super().replayed())
        return state


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 10_000), st.sampled_from(["streaming", "windowed"]))
def test_a_run_goes_on_from_a_snapshot(seed: int, mode: str) -> None:
    """The books balance and every replay is the live state, after any number of restarts."""
    schedule = {"mode": mode, "max_staleness": 1, "batch_windows": 4, "num_generations": 2}
    world = Restarting(make_config(schedule=schedule))
    for _ in range(6):
        play(world, seed, 6, restarts=True)
        snapshot = snapshot_of(world.state, len(world.records))
        assert snapshot is not None
        world.note(snapshot)
        assert picture(world.replayed()) == picture(world.state)
        seed += 1


def test_everything_in_the_state_is_in_a_snapshot() -> None:
    names = set(StateValues.__struct_fields__) | {"milestones"}
    # What begins with an underscore is of the configuration.
    assert names - {"format"} == {n for n in vars(State(make_config())) if n[0] != "_"}


def test_everything_that_is_known_of_a_token_comes_back() -> None:
    """Streams, lines and what they were paid, a score with its parts, an audit; an aside."""
    world = streaming_world()
    (trajectory,) = world.fill(1)
    key = trajectory.trajectory_id
    streams = Streams(
        pieces=[Piece("policy", "assistant", 0, 0, 2), Piece("tool", "tool", 0, 2, 3)],
        weights=[Weight(0.5, 0, 1)],
        rewards=[Reward(0.25, 1)],
        coefficients=[Coefficient("kl", 0.1, 0, 2)],
        marks=[Mark("hot", 0, 1)],
    )
    world.chunk(trajectory, 3, spans=[Span(0, 0, 2)], streams=streams)
    world.note(
        LinesScored(
            at=1.0, trajectory_id=key, source="lines", status="ok", through=2,
            lines=[LineScore(0, 0.5), LineScore(1, None)], rewards=[Reward(0.1, 0)],
        )
    )  # fmt: skip
    world.chunk(trajectory, 2, "stop")
    world.reward(trajectory)
    world.note(
        AuditArrived(at=1.0, trajectory_id=key, source="second", status="timeout", reward=None)
    )
    issued = next(r for r in world.records if isinstance(r, GroupIssued))
    changed = msgspec.structs.replace(issued, aside=np.arange(3, dtype=np.int32), messages="[]")
    world.records[world.records.index(issued)] = changed
    world.account.groups[trajectory.group_id] = changed
    snapshot = snapshot_of(world.state, len(world.records))
    assert snapshot is not None
    world.note(snapshot)
    state = restored(world.config, cast(RunStore, Kept(world.records)))
    assert picture(state) == picture(world.state)
    assert state.account.trajectories[key].tokens.tolist() == [0, 1, 2, 3, 4]


# -- what does not grow ----------------------------------------------------------------------------


def train(world: World, updates: int) -> None:
    """Updates, each with a checkpoint that makes the one before final."""
    for _ in range(updates):
        for trajectory in world.fill(4):
            world.chunk(trajectory, 4, None)
            world.chunk(trajectory, 2, "stop")
            world.reward(trajectory)
        assert world.take() is not None
        world.commit()
        update = world.state.update
        world.note(CheckpointWritten(at=0.0, update=update, lineage=0, path="p"))
        world.note(Forgotten(at=0.0, update=max(0, update - 1)))


def test_neither_a_snapshot_nor_what_a_restart_reads_grows_with_the_run() -> None:
    world = streaming_world(batch_windows=4, max_staleness=8)
    sizes, held, milestones, read = list[int](), list[int](), list[int](), list[int]()
    for _ in range(8):
        train(world, 20)
        snapshot = snapshot_of(world.state, len(world.records))
        assert snapshot is not None
        world.note(snapshot)
        journal = Kept(world.records)
        assert picture(restored(world.config, cast(RunStore, journal))) == picture(world.state)
        sizes.append(len(snapshot.state))
        held.append(len(world.account.trajectories))
        milestones.append(len(snapshot.milestones))
        read.append(journal.read)
    assert sizes[-1] < 1.1 * sizes[0]
    assert held[-1] <= held[0] + 4
    assert max(milestones) == 2
    # From the last snapshot but one on: the oldest group was issued behind it.
    assert max(read[1:]) <= 1.1 * read[1]
    assert len(world.records) > 6 * read[-1]


def test_a_state_that_is_too_large_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    world = streaming_world()
    world.fill(3)
    assert snapshot_of(world.state, 0) is not None
    monkeypatch.setattr(module, "MOST", 2)
    assert snapshot_of(world.state, 0) is None


def test_a_restart_says_that_it_reads_the_tokens_of_a_snapshot(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where updates take ten minutes that takes minutes, and a supervisor ends who says nothing."""
    world = streaming_world(batch_windows=4, max_staleness=8)
    train(world, 2)
    snapshot = snapshot_of(world.state, len(world.records))
    assert snapshot is not None
    world.note(snapshot)
    monkeypatch.setattr(module, "SAY_EVERY_S", -1.0)
    with caplog.at_level(logging.INFO):
        restored(world.config, cast(RunStore, Kept(world.records)))
    assert "and 0 records, in" in caplog.text, "nothing follows the snapshot"
    assert "records of the journal are read" in caplog.text


def test_a_replay_reads_no_further_than_a_rollback_could_undo_its_update() -> None:
    world, read = streaming_world(batch_windows=4, max_staleness=8), list[Record]()
    train(world, 6)

    def records() -> Iterator[Record]:
        for record in world.records:
            read.append(record)
            yield record

    assert past_batch(records(), world.config, 2, {}).commit.update == 2
    assert [record.update for record in read if isinstance(record, Forgotten)] == [0, 1, 2]


# -- snapshots that cannot be used -----------------------------------------------------------------


def of_another_format(snapshot: Snapshot) -> Snapshot:
    values = msgspec.msgpack.decode(snapshot.state) | {"format": 0}
    return msgspec.structs.replace(snapshot, state=msgspec.msgpack.encode(values))


def with_other_bytes(snapshot: Snapshot) -> Snapshot:
    return msgspec.structs.replace(snapshot, state=snapshot.state[:-7])


def with_a_late_milestone(snapshot: Snapshot) -> Snapshot:
    return msgspec.structs.replace(snapshot, milestones=[Milestone(10**6, 0)])


@pytest.mark.parametrize("spoil", [of_another_format, with_other_bytes, with_a_late_milestone])
@pytest.mark.parametrize("left", [0, 1])
def test_a_snapshot_that_cannot_be_used_is_passed_over_and_told(
    spoil: Callable[[Snapshot], Snapshot], left: int, caplog: pytest.LogCaptureFixture
) -> None:
    world = streaming_world(batch_windows=4, max_staleness=8)
    for _ in range(2):
        train(world, 3)
        world.fill(2)
        snapshot = snapshot_of(world.state, len(world.records))
        assert snapshot is not None
        world.note(snapshot)
    expected = picture(world.replayed())
    places = [n for n, record in enumerate(world.records) if isinstance(record, Snapshot)]
    for place in places[left:]:
        record = world.records[place]
        assert isinstance(record, Snapshot)
        world.records[place] = spoil(record)
    with caplog.at_level(logging.INFO):
        state = restored(world.config, cast(RunStore, Kept(world.records)))
    state.milestones = world.state.milestones
    assert picture(state) == expected
    for place in places[left:]:
        assert f"the snapshot at record {place} cannot be used" in caplog.text
    assert (f"the snapshot at record {places[0]} and" in caplog.text) == (left == 1)


# -- in the journal --------------------------------------------------------------------------------


def small_segments() -> RunConfig:
    """A run of many segments that does not end."""
    config = endless()
    storage = config.storage.model_copy(update={"segment_mib": 0.02})
    checkpoint = config.checkpoint.model_copy(update={"every_updates": 2, "keep_last": 1})
    return config.model_copy(update={"storage": storage, "checkpoint": checkpoint})


async def test_a_coordinator_writes_snapshots_and_its_successor_begins_with_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("storage.journal.store.SNAPSHOT_GROWTH", 1)
    run_dir = tmp_path / "run"
    async with staged(small_segments(), run_dir) as stage:
        for _ in range(150):
            await stage.work()
            await stage.hub.recorder.flush()
    assert_sound(stage)
    store = RunStore.open(run_dir)
    found = dict(store.snapshots())
    records = list(store.replay())
    store.close()
    assert len(found) >= 2
    assert sum(isinstance(record, Snapshot) for record in records) == len(found)
    for offset, snapshot in found.items():
        again = records[offset]
        assert isinstance(again, Snapshot)
        assert again.state == snapshot.state
    with caplog.at_level(logging.INFO):
        second, store = build(stage.config, run_dir, resume=True)
    assert f"the snapshot at record {max(found)} and" in caplog.text
    try:
        whole = folded(stage.config, list(store.replay()))
        ledger = second.hub.state.account.ledger
        assert ledger.as_metrics() == whole.account.ledger.as_metrics()
        assert second.hub.state.account.trajectories.keys() == whole.account.trajectories.keys()
    finally:
        second.hub.router.close()
        store.close()
    # The scripted learner reports figures of one window alone.
    assert {finding.kind for finding in audit_run(run_dir).findings} <= {"diagnostics"}


def journal_with_snapshot(run_dir: Path, *, snapshots: int = 1) -> State:
    """A run in a store, a segment for each batch, with snapshots; the state at its end."""
    world = streaming_world(batch_windows=4, max_staleness=8)
    config = world.config.model_copy(
        update={"storage": world.config.storage.model_copy(update={"segment_mib": 1e-6})}
    )
    store = RunStore.create(run_dir, "run", config)
    written = 0
    for left in range(snapshots, -1, -1):
        train(world, 2)
        store.append(world.records[written:])
        written = len(world.records)
        if left:
            snapshot = snapshot_of(world.state, store.end.records)
            assert snapshot is not None
            world.note(snapshot)
    store.close()
    return world.state


def test_a_torn_snapshot_was_never_there(tmp_path: Path) -> None:
    state = journal_with_snapshot(tmp_path / "run", snapshots=2)
    paths = segment_paths(tmp_path / "run" / "journal")
    data = paths[-1].read_bytes()
    paths[-1].write_bytes(data[:-100])
    for path in (tmp_path / "run").glob("headrace.sqlite*"):
        path.unlink()
    store = RunStore.open(tmp_path / "run")
    offsets = [offset for offset, _ in store.snapshots()]
    assert len(offsets) == 1
    records = list(store.replay())
    config = read_config(tmp_path / "run")
    assert picture(restored(config, store)) == picture(folded(config, records))
    store.close()
    assert state.milestones


def test_a_restart_does_not_read_what_the_state_no_longer_needs(tmp_path: Path) -> None:
    """Damage there is found by whoever reads it, and by an audit."""
    state = journal_with_snapshot(tmp_path / "run", snapshots=5)
    first, *_ = segment_paths(tmp_path / "run" / "journal")
    data = bytearray(first.read_bytes())
    data[SegmentWalk(first).done().end - 9] ^= 1
    first.write_bytes(data)
    store = RunStore.open(tmp_path / "run")
    config = read_config(tmp_path / "run")
    assert picture(restored(config, store)) == picture(state)
    store.close()
    assert "damaged" in {finding.kind for finding in audit_run(tmp_path / "run").findings}
