"""Staleness (golden case G16): how old a trained token is, the mask, and what may be under way."""

import pytest

from coordinator.batches import Prepared
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
