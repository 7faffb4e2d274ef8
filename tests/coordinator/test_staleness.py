"""Staleness (golden case G16): how old a trained token is, the mask, and what may be under way."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.training.batches import PreparedBatch
from headrace.protocol.records.record_types import (
    BatchTaken,
    LineageBegan,
    UpdateCommitted,
    VersionPublished,
    WindowsClosed,
)
from headrace.protocol.token_spans import Span
from tests.coordinator.world import World, counts, make_config, policy_windows

CAP = 12


def publish(world: World, version: int) -> None:
    """The weights after update `version` get this version."""
    world.state.update = version
    world.publish(version)


def trained(max_staleness: int) -> PreparedBatch:
    """Token versions 3, 3, 4, 5, trained by version 6."""
    schedule = {"mode": "streaming", "max_staleness": max_staleness, "batch_windows": 1}
    world = World(make_config(schedule=schedule))
    publish(world, 3)
    (trajectory, *_) = world.fill(1)
    for version, tokens in ((3, 2), (4, 1), (5, 1)):
        publish(world, version)
        world.chunk(trajectory, tokens, "stop" if version == 5 else None)
    world.reward(trajectory)
    publish(world, 6)
    prepared = world.take()
    assert prepared is not None
    return prepared


def test_staleness_of_a_mixed_window_golden_case_16() -> None:
    prepared = trained(max_staleness=3)
    (window,) = policy_windows(prepared)
    assert window.loss_weights.tolist() == [1, 1, 1, 1]
    assert prepared.metrics == {"staleness/mean": 2.25, "staleness/max": 3.0}
    versions = [s.version for s in window.spans for _ in range(s.start, s.end)]
    assert versions == [3, 3, 4, 5]


def test_tokens_over_the_bound_are_masked_golden_case_16() -> None:
    """eta = 2; what is left out is counted, and the figures are of what is trained."""
    prepared = trained(max_staleness=2)
    (window,) = policy_windows(prepared)
    assert window.loss_weights.tolist() == [0, 0, 1, 1]
    (record,) = prepared.taken.windows
    assert counts(record.masked) == {"stale": 2}
    assert prepared.metrics == {"staleness/mean": 1.5, "staleness/max": 2.0}


@pytest.mark.parametrize(
    ("eta", "version", "accepted", "running", "capacity"),
    [(0, 0, 0, 0, 8), (2, 0, 8, 10, 6), (2, 3, 40, 6, 2), (4, 3, 40, 30, -6)],
)
def test_capacity_golden_case_16(
    eta: int, version: int, accepted: int, running: int, capacity: int
) -> None:
    """(eta + i + 1) B - (accepted + running), B = 8: what was trained is in both terms, so that it
    is what the bound of windows in play leaves. A window is a whole response here."""
    config = make_config(
        schedule={"mode": "streaming", "max_staleness": eta, "batch_windows": 8, "window": CAP}
    )
    world = World(config)
    # Whatever the bound says, as after a restart under a smaller one.
    for _ in range(accepted):
        (trajectory,) = world.issue()
        world.lease(trajectory)
        world.chunk(trajectory, 3, "stop")
        world.reward(trajectory)
    for _ in range(version):
        assert world.take() is not None
        world.commit()
    for _ in range(running):
        (trajectory,) = world.issue()
        world.lease(trajectory)
    assert world.state.versions.current == version
    assert world.scheduler.bound - world.scheduler.in_play() == capacity
    carried, groups = world.scheduler.next_leases(1000)
    assert carried == []
    assert groups == max(0, capacity)


def lived_through(seed: int) -> World:
    """A stream with weights published now and then only, skipped updates, learners that go back and
    coordinators that die."""
    rng = random.Random(seed)
    config = make_config(
        schedule={"mode": "streaming", "max_staleness": rng.randint(1, 3), "batch_windows": 3},
        algorithm={"value": {"warmup_updates": rng.randint(0, 2)}},
    )
    world, line = World(config), Line()
    for _ in range(60):
        world.fill(6 - len(world.leased()))
        for trajectory in world.leased():
            border = trajectory.open_start + config.window
            end = min(CAP, border, trajectory.length + rng.randint(1, 4))
            over = end == CAP or rng.random() < 0.2
            world.chunk(trajectory, end - trajectory.length, "stop" if over else None)
            if over:
                world.reward(trajectory)
            elif world.must_hold(trajectory):
                world.chunk(trajectory, 0, "held")
        if world.account.taken is None:
            prepared = world.take()
            if prepared is not None:
                line.see(world)
                for window in policy_windows(prepared):
                    for span in window.spans:
                        age = line.age(span.version)
                        held = window.loss_weights[span.start - window.start] == 0
                        assert held == (age > config.schedule.max_staleness), (age, span)
        elif rng.random() < 0.8:
            skipped = "nan" if rng.random() < 0.1 else None
            world.commit(skipped=skipped, publish=rng.random() < 0.5)
        if rng.random() < 0.05:
            committed = world.state.update - (world.account.taken is not None)
            world.roll_back(rng.randint(max(0, committed - 3), committed))
        if rng.random() < 0.05:
            world.restart()
    return world


class Line:
    """Ages told slowly: the policy's updates that the surviving line has, and how many each version
    had behind it when it was published. A line that was rolled back takes the same batches again,
    so a version of the line that was given up counts by its own number of updates."""

    def __init__(self) -> None:
        self._read = 0
        self._updates: list[tuple[int, bool]] = []
        self._version: dict[int, int] = {}
        self._taken: BatchTaken | None = None
        self._tokens: dict[int, int] = {}

    def see(self, world: World) -> None:
        """Read the records that are new."""
        for record in world.records[self._read :]:
            match record:
                case WindowsClosed():
                    self._tokens |= {w.window_id: w.tokens for w in record.windows}
                case BatchTaken():
                    self._taken = record
                case UpdateCommitted():
                    assert self._taken is not None
                    moved = record.skipped is None and any(
                        self._tokens[w.window_id] > sum(run.tokens for run in w.masked)
                        for w in self._taken.windows
                    )
                    self._updates.append((record.update, moved))
                case LineageBegan():
                    self._updates = [u for u in self._updates if u[0] <= record.update]
                case VersionPublished():
                    self._version[record.version] = self._moved()
        self._read = len(world.records)

    def _moved(self) -> int:
        return sum(moved for _, moved in self._updates)

    def age(self, version: int) -> int:
        """How many updates of the policy lie between a version's weights and those of today."""
        return max(0, self._moved() - self._version[version])


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10_000))
def test_age_counts_the_policys_updates_on_the_surviving_line(seed: int) -> None:
    """However often weights are published, whoever dies and how far the learner goes back."""
    world = lived_through(seed)
    assert sum(isinstance(record, UpdateCommitted) for record in world.records) > 3


def grown(world: World, windows: int) -> None:
    """So many answers of one window, scored, as far as the bound lets them begin."""
    for trajectory in world.fill(windows):
        world.chunk(trajectory, 3, "stop")
        world.reward(trajectory)


def test_rollbacks_of_any_length_give_back_nothing_that_is_not_trained_again() -> None:
    """A stream of staleness 1 whose learner goes back seven updates, three times over, the second
    time before it is through, and coordinators that die: the same batches are taken again in their
    order, every token of them, and what was in flight is not too old when they are through."""
    config = make_config(
        schedule={"mode": "streaming", "max_staleness": 1, "batch_windows": 3, "window": CAP}
    )
    world = World(config)
    taken: dict[int, list[int]] = {}
    for goes_back_at in (9, 6, 9, 14):
        while world.state.committed < goes_back_at:
            grown(world, 6)
            prepared = world.take()
            assert prepared is not None
            ids = [window.window_id for window in prepared.taken.windows]
            assert taken.setdefault(prepared.taken.update, ids) == ids
            assert all(w.loss_weights.all() for w in policy_windows(prepared))
            world.commit()
        if goes_back_at < 14:
            world.take()
            world.roll_back(2)
            world.restart()
    account = world.account
    assert not account.again
    trained = [w for t in account.trajectories.values() for w in t.windows if w.state == "trained"]
    assert len(trained) == 3 * 14
    assert account.ledger.dropped.total() == 0
    assert account.ledger.abandoned == (7 + 4 + 7) * 9


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10_000))
def test_what_comes_back_is_taken_again_as_it_was(seed: int) -> None:
    """Whatever else happens: the same windows and the same answers, before anything new."""
    world = lived_through(seed)
    for _ in range(len(world.account.again) + 1):
        if world.account.taken is not None:
            world.commit()
        first = world.account.again[0] if world.account.again else None
        prepared = world.take()
        if first is None:
            break
        assert prepared is not None
        assert [w.window_id for w in prepared.taken.windows] == [w.window_id for w in first.windows]
        assert prepared.taken.value_trajectories == first.value_trajectories
    assert not world.account.again


@pytest.mark.parametrize("mode", ["windowed", "synchronous"])
def test_rounds_are_taken_again_as_they_were(mode: str) -> None:
    world = World(make_config(schedule={"mode": mode, "batch_windows": 4, "window": CAP}))
    taken: dict[int, list[int]] = {}
    for goes_back in (True, False):
        while world.state.committed < 4:
            grown(world, 4)
            prepared = world.take()
            assert prepared is not None
            ids = [window.window_id for window in prepared.taken.windows]
            assert taken.setdefault(prepared.taken.update, ids) == ids
            world.commit()
        if goes_back:
            world.roll_back(1)
            world.restart()
    assert world.account.ledger.dropped.total() == 0


def test_a_batch_without_a_trained_token_ages_nothing() -> None:
    """The policy stays, and no newer version comes: with each such batch all would be older."""
    config = make_config(
        schedule={"mode": "streaming", "max_staleness": 0, "batch_windows": 1, "window": 12},
        algorithm={"overlong": {"filter": True}},
    )
    world = World(config)
    (trajectory,) = world.fill(1)
    world.chunk(trajectory, 12, "length")
    world.reward(trajectory, 0.0)
    prepared = world.take()
    assert prepared is not None
    assert not prepared.trains_policy
    world.commit(publish=False)
    (trajectory,) = world.fill(1)
    world.chunk(trajectory, 3, "stop")
    world.reward(trajectory)
    assert world.scheduler.selector.too_stale() == []
    prepared = world.take()
    assert prepared is not None
    assert prepared.trains_policy


@pytest.mark.parametrize("stale", ["mask", "wait"])
def test_a_window_is_dropped_whole_once_its_youngest_token_is_too_old(stale: str) -> None:
    """Of versions 0, 0 and 1, and 2; at last of 1. Each window is looked at once per update."""
    schedule = {"mode": "streaming", "max_staleness": 1, "batch_windows": 9, "stale": stale}
    world = World(make_config(schedule=schedule))

    def dropped() -> list[int]:
        stale_windows = world.scheduler.selector.too_stale()
        return sorted(window.trajectory_id for window in stale_windows)

    old, mixed, young = world.fill(3)
    world.chunk(old, 4)
    world.chunk(mixed, 2)
    publish(world, 1)
    world.chunk(mixed, 2)
    publish(world, 2)
    world.chunk(young, 4)
    found = [dropped(), dropped()]
    publish(world, 3)
    found.append(dropped())
    (late,) = world.fill(1)
    world.chunk(late, 4, spans=[Span(1, 0, 4)])
    found.append(dropped())
    expected: list[list[int]] = [[0], [], [0, 1], [3]] if stale == "mask" else [[]] * 4
    assert found == expected
