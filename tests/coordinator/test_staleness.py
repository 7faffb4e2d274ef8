"""Staleness (golden case G16): how old a trained token is, the mask, and what may be under way."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.batches import Prepared
from headrace.protocol.records import BatchTaken, LineageBegan, UpdateCommitted, VersionPublished
from tests.coordinator.world import World, counts, make_config, policy_windows

CAP = 12


def publish(world: World, version: int) -> None:
    """The weights after update `version` get this version."""
    world.state.update = version
    world.publish(version)


def trained(max_staleness: int) -> Prepared:
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
    """Ages told slowly: the policy's updates that the surviving line has, and for each version how
    many of them its weights had of those that survived."""

    def __init__(self) -> None:
        self._read = 0
        self._updates: list[tuple[int, bool]] = []
        self._version: dict[int, list[tuple[int, bool]]] = {}
        self._taken: BatchTaken | None = None

    def see(self, world: World) -> None:
        """Read the records that are new."""
        for record in world.records[self._read :]:
            match record:
                case BatchTaken():
                    self._taken = record
                case UpdateCommitted():
                    assert self._taken is not None
                    moved = bool(self._taken.windows) and record.skipped is None
                    self._updates.append((record.update, moved))
                case LineageBegan():
                    self._updates = [u for u in self._updates if u[0] <= record.update]
                    for version, known in self._version.items():
                        self._version[version] = [u for u in known if u[0] <= record.update]
                case VersionPublished():
                    self._version[record.version] = list(self._updates)
        self._read = len(world.records)

    def age(self, version: int) -> int:
        """How many updates of the policy lie between a version's weights and those of today."""
        return sum(moved for _, moved in self._updates[len(self._version[version]) :])


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10_000))
def test_age_counts_the_policys_updates_on_the_surviving_line(seed: int) -> None:
    """However often weights are published, whoever dies and how far the learner goes back."""
    world = lived_through(seed)
    assert sum(isinstance(record, UpdateCommitted) for record in world.records) > 3


def test_what_a_short_rollback_gives_back_is_trained_again() -> None:
    """Versions go up with each learner that joins, and ages do not: a stream of staleness 1 trains
    what two updates had that were rolled back, every token of it."""
    config = make_config(
        schedule={"mode": "streaming", "max_staleness": 1, "batch_windows": 3, "window": CAP}
    )
    world = World(config)
    waiting: set[int] = set()
    for step in range(6):
        for trajectory in world.fill(3):
            world.chunk(trajectory, 3, "stop")
            world.reward(trajectory)
        prepared = world.take()
        assert prepared is not None
        waiting -= {w.window_id for w in policy_windows(prepared) if w.loss_weights.all()}
        world.commit()
        if step == 3:
            last = world.state.update
            batches = [world.account.committed[update] for update in (last - 1, last)]
            waiting = {window.window_id for batch in batches for window in batch.windows}
            for _ in range(5):  # Learners that join, one after the other.
                world.roll_back(last - 2)
                world.restart()
    assert not waiting
    assert world.account.ledger.abandoned == 2 * 9
