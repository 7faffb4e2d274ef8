"""The state is a fold over records: replays, rollbacks, failures, and the books at every step."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.ledger import Ledger, LedgerError
from coordinator.state import State
from headrace.protocol.records import BatchReturned, LineageBegan, TokensDropped
from tests.coordinator.world import World, make_config


def streaming_world(**schedule: object) -> World:
    settings = {"mode": "streaming", "max_staleness": 1, "batch_windows": 3} | schedule
    return World(make_config(schedule=settings))


def play(world: World, seed: int, steps: int) -> None:
    """Random but legal life: chunks, ends, failures, rewards, updates, deaths of the learner."""
    rng = random.Random(seed)
    checkpoint = 0
    for _ in range(steps):
        world.fill(5 - sum(t.lease_id is not None for t in world.state.running()))
        for trajectory in [t for t in world.state.running() if t.lease_id is not None]:
            room = min(12 - trajectory.length, trajectory.open_start + 4 - trajectory.length)
            tokens = rng.randint(1, room)
            full = trajectory.length + tokens == 12
            finish = "length" if full else rng.choice([None, None, "stop", "held"])
            world.chunk(trajectory, tokens, finish)
            if trajectory.ended:
                world.reward(trajectory, rng.choice([0.0, 1.0, None]))
            elif finish is None and world.must_hold(trajectory):
                world.chunk(trajectory, 0, "held")
        event = rng.random()
        if world.state.taken is None:
            world.take()
        elif event < 0.6:
            world.commit(skipped="nan" if event < 0.1 else None)
        elif event < 0.7:
            world.note(BatchReturned(at=0.0, update=world.state.update, lineage=0, reason="killed"))
        if event > 0.95:
            if world.state.taken is not None:
                world.note(
                    BatchReturned(at=0.0, update=world.state.update, lineage=0, reason="killed")
                )
            cut = rng.randint(checkpoint, world.state.update)
            world.note(
                LineageBegan(
                    at=0.0, lineage=world.state.lineage + 1, update=cut, version=0, reason="test"
                )
            )
            world.scheduler.restart()
        assert world.state.ledger.balance() == 0
        assert_books_match(world.state)


def assert_books_match(state: State) -> None:
    """The accounts recounted from the windows themselves."""
    count = {"ready": 0, "trained": 0, "in_flight": 0}
    for trajectory in state.trajectories.values():
        if trajectory.purpose != "train":
            continue
        count["in_flight"] += trajectory.length - trajectory.open_start
        for window in trajectory.windows:
            if window.state in ("ready", "taken"):
                count["ready"] += window.tokens
            elif window.state == "waiting":
                count["in_flight"] += window.tokens
            elif window.state == "trained":
                count["trained"] += window.tokens
    accounts = state.ledger.accounts
    assert accounts["ready"] == count["ready"]
    assert accounts["in_flight"] == count["in_flight"]
    stale = sum(sum(item.dropped.values()) for b in state.committed.values() for item in b.windows)
    assert accounts["trained_policy"] + stale >= count["trained"] >= accounts["trained_policy"]
    waiting = sum(t.length for t in state.value_queue.values())
    taken = sum(
        state.trajectories[i].length
        for i in (state.taken.value_trajectories if state.taken else [])
    )
    assert state.ledger.value_accounts["waiting"] == waiting + taken


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10_000))
def test_books_balance_whatever_happens(seed: int) -> None:
    play(streaming_world(), seed, 60)


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 10_000))
def test_replay_rebuilds_the_state(seed: int) -> None:
    world = streaming_world()
    play(world, seed, 40)
    again = State(world.config)
    for record in world.records:
        again.apply(record)
    assert again.ledger == world.state.ledger
    assert list(again.ready) == list(world.state.ready)
    assert list(again.value_queue) == list(world.state.value_queue)
    assert again.update == world.state.update
    for trajectory_id, trajectory in world.state.trajectories.items():
        twin = again.trajectories[trajectory_id]
        assert twin.tokens.tolist() == trajectory.tokens.tolist()
        assert [w.state for w in twin.windows] == [w.state for w in trajectory.windows]


def test_rollback_returns_what_was_committed_after_the_cut() -> None:
    world = streaming_world(batch_windows=2, max_staleness=8)
    for _ in range(3):
        for trajectory in world.fill(2):
            world.chunk(trajectory, 3, "stop")
            world.reward(trajectory)
        assert world.take() is not None
        world.commit()
    assert world.state.ledger.accounts["trained_policy"] == 18
    world.note(LineageBegan(at=0.0, lineage=1, update=1, version=9, reason="killed"))
    ledger = world.state.ledger
    assert (ledger.accounts["trained_policy"], ledger.accounts["ready"]) == (6, 12)
    assert ledger.abandoned == 12
    assert ledger.value_accounts["trained"] == 6
    assert world.state.update == 1
    prepared = world.take()
    assert prepared is not None
    assert [w.trajectory_id for w in prepared.taken.windows] == [2, 3]


def test_failed_reward_drops_the_last_window_only() -> None:
    world = streaming_world(max_staleness=8)
    (trajectory,) = world.fill(1)
    world.chunk(trajectory, 4)
    world.chunk(trajectory, 2, "stop")
    world.reward(trajectory, None)
    assert world.state.ledger.dropped == {"reward_failed": 2}
    assert world.state.ledger.accounts["ready"] == 4
    assert not world.state.value_queue


def test_an_end_told_after_the_border_makes_the_last_window_final() -> None:
    world = streaming_world()
    (trajectory,) = world.fill(1)
    world.chunk(trajectory, 4)
    assert world.state.ledger.accounts["ready"] == 4
    world.chunk(trajectory, 0, "length")
    assert world.state.ledger.accounts["ready"] == 0
    world.reward(trajectory)
    assert world.state.ledger.accounts["ready"] == 4


def test_stale_boundary_and_non_finite_tokens_are_masked_and_counted() -> None:
    config = make_config(
        schedule={"mode": "streaming", "max_staleness": 0, "batch_windows": 1},
        algorithm={"advantages": {"kind": "egae", "boundary_mask": 1}, "value": {}},
    )
    world = World(config)
    (trajectory,) = world.fill(1)
    world.chunk(trajectory, 2)
    world.state.version = world.state.issued_version = 1
    world.chunk(trajectory, 2)
    trajectory.logprobs[2] = float("nan")
    prepared = world.take()
    assert prepared is not None
    (item,) = prepared.taken.windows
    assert item.trained == 0
    assert item.dropped == {"stale": 2, "boundary_mask": 1, "non_finite": 1}
    assert prepared.shards[0].windows == []


def test_value_warmup_spends_trajectories_without_the_policy() -> None:
    config = make_config(
        schedule={"mode": "streaming", "batch_windows": 2},
        algorithm={
            "advantages": {"kind": "egae"},
            "value": {"warmup_updates": 1, "warmup_epochs": 3},
        },
    )
    world = World(config)
    for trajectory in world.fill(2):
        world.chunk(trajectory, 3, "stop")
        world.reward(trajectory)
    selection = world.scheduler.next_batch()
    assert selection is not None
    assert (selection.windows, selection.value_epochs) == ([], 3)
    world.take()
    spent = world.state.taken.value_trajectories if world.state.taken else []
    world.commit(publish=False)
    for trajectory_id in spent:
        world.note(
            TokensDropped(
                at=0.0, trajectory_id=trajectory_id, start=0, end=3, reason="value_warmup", tokens=3
            )
        )
    assert world.state.ledger.dropped == {"value_warmup": 6}
    assert not world.scheduler.warming


def test_more_cannot_leave_an_account_than_it_holds() -> None:
    ledger = Ledger()
    ledger.arrive(3)
    with pytest.raises(LedgerError):
        ledger.move(4, "in_flight", "ready")
