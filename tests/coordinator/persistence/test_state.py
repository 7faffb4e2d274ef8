"""The state is a fold over records: replays, rollbacks, failures, and the books at every step."""

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.connections import versions
from coordinator.persistence.state import State
from headrace.protocol.records.record_types import (
    BatchReturned,
    CheckpointWritten,
    Forgotten,
    LineageBegan,
    WindowsDropped,
    WindowsReady,
    WindowsRecalled,
)
from headrace.trajectory.token_ledger import Ledger, LedgerError
from headrace.trajectory.windows import Window, trajectory_of
from tests.coordinator.world import World, counts, make_config, policy_windows


def streaming_world(**schedule: object) -> World:
    settings = {"mode": "streaming", "max_staleness": 1, "batch_windows": 3} | schedule
    return World(make_config(schedule=settings))


def play(world: World, seed: int, steps: int, *, restarts: bool = False) -> None:
    """Random but legal life: chunks, ends, some told behind a border, failures, rewards, updates,
    checkpoints, deaths of the learner and of the coordinator."""
    rng = random.Random(seed)
    checkpoint = 0
    for _ in range(steps):
        world.fill(5 - len(world.leased()))
        for trajectory in world.leased():
            if trajectory.windows and not trajectory.open_tokens and rng.random() < 0.1:
                world.chunk(trajectory, 0, "stop")  # which is told behind the border
                world.reward(trajectory, rng.choice([0.0, 1.0, None]))
                continue
            room = min(12 - trajectory.length, trajectory.open_start + 4 - trajectory.length)
            tokens = rng.randint(1, room)
            full = trajectory.length + tokens == 12
            finish = "length" if full else rng.choice([None, None, "stop", "held"])
            world.chunk(trajectory, tokens, finish)
            if trajectory.ended:
                world.reward(trajectory, rng.choice([0.0, 1.0, None]))
            elif finish is None and world.must_hold(trajectory):
                world.chunk(trajectory, 0, "held")
            elif rng.random() < 0.02:
                world.end(trajectory, "failed")
        event = rng.random()
        if world.account.taken is None:
            world.take()
        elif event < 0.6:
            world.commit(skipped="nan" if event < 0.1 else None)
            if rng.random() < 0.2:
                checkpoint = world.state.update
                world.note(CheckpointWritten(at=0.0, update=checkpoint, lineage=0, path="p"))
                world.note(Forgotten(at=0.0, update=checkpoint))
        elif event < 0.7:
            world.give_back()
        if event > 0.95:
            world.roll_back(rng.randint(checkpoint, _committed(world)))
        if restarts and rng.random() < 0.1:
            world.restart()
        assert world.account.ledger.balance() == 0
        assert_books_match(world)


def _committed(world: World) -> int:
    return world.state.update - (world.account.taken is not None)


def assert_books_match(world: World) -> None:
    """The accounts and queues recounted from the windows themselves, as far as they are known."""
    account = world.account
    ready = in_flight = closed = 0
    for trajectory in account.trajectories.values():
        if trajectory.purpose != "train":
            continue
        in_flight += trajectory.open_tokens
        for window in trajectory.windows:
            ready += window.tokens * (window.state in ("ready", "taken"))
            in_flight += window.tokens * (window.state == "closed")
            closed += window.state == "closed"
            assert (window.window_id in account.ready) == (window.state == "ready")
    assert account.ledger.accounts["ready"] == ready
    assert account.ledger.accounts["in_flight"] == in_flight
    assert account.closed == closed
    waiting = sum(t.sampled for t in account.trajectories.values() if t.value in WAITING)
    assert account.ledger.value_accounts["waiting"] == waiting
    assert account.ledger.value_accounts.total() == account.ledger.value_finished
    assert account.ledger.dropped.total() == account.ledger.accounts["dropped"]


WAITING = ("waiting", "taken")


def picture(value: Any) -> Any:
    """Everything an object holds, as plain comparable values."""
    if isinstance(value, np.ndarray):
        return [repr(x) for x in value.tolist()]
    if isinstance(value, dict):
        return [(picture(k), picture(v)) for k, v in value.items()]
    if isinstance(value, list | tuple):
        return [picture(x) for x in value]
    if isinstance(value, set):
        return sorted(picture(x) for x in value)
    # Slots of a struct are the fields of its own class alone.
    names = getattr(value, "__dict__", None) or getattr(value, "__struct_fields__", None)
    names = names or getattr(value, "__slots__", None)
    if names and not isinstance(value, str | int | float | bool):
        return {name: picture(_settled(value, name)) for name in names}
    return value


def _settled(value: Any, name: str) -> Any:
    """A field; token arrays are joined, whatever pieces they came in."""
    if name in ("_tokens", "_logprobs"):
        return np.concatenate([np.zeros(0, np.float32), *getattr(value, name)])
    return getattr(value, name)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10_000))
def test_books_balance_whatever_happens(seed: int) -> None:
    play(streaming_world(), seed, 60)


def test_lives_by_chance_have_every_turn_that_a_window_can_take() -> None:
    worlds = [streaming_world() for _ in range(5)]
    for seed, world in enumerate(worlds):
        play(world, seed, 60, restarts=True)
    seen = {type(record) for world in worlds for record in world.records}
    turns = {WindowsReady, WindowsRecalled, WindowsDropped, BatchReturned, LineageBegan, Forgotten}
    assert turns <= seen


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10_000), st.sampled_from(["window", "trajectory", "group"]))
def test_a_replay_of_any_prefix_is_the_live_state(seed: int, unit: str) -> None:
    """Kills, rollbacks and checkpoints included; everything that is held in memory, no more."""
    world = streaming_world(unit=unit, num_generations=2, batch_windows=4)
    for _ in range(8):
        play(world, seed, 6, restarts=True)
        assert picture(world.replayed()) == picture(world.state)
        seed += 1


def test_what_a_checkpoint_made_final_is_let_go_in_a_replay_as_well() -> None:
    world = streaming_world(batch_windows=2, max_staleness=8)
    for _ in range(5):
        for trajectory in world.fill(2):
            world.chunk(trajectory, 3, "stop")
            world.reward(trajectory)
        assert world.take() is not None
        world.commit()
    assert len(world.account.trajectories) == 10
    world.note(CheckpointWritten(at=0.0, update=3, lineage=0, path="p"))
    world.note(Forgotten(at=0.0, update=3))
    assert sorted(world.account.trajectories) == [6, 7, 8, 9]
    assert sorted(world.replayed().account.trajectories) == [6, 7, 8, 9]
    # And a rollback after a restart gives back what the lost updates had.
    world.restart()
    world.roll_back(3)
    assert sorted(trajectory_of(i)[0] for i in world.account.ready) == [6, 7, 8, 9]
    assert world.account.ledger.accounts["ready"] == 12


def test_rollback_returns_what_was_committed_after_the_cut() -> None:
    world = streaming_world(batch_windows=2, max_staleness=8)
    for _ in range(3):
        for trajectory in world.fill(2):
            world.chunk(trajectory, 3, "stop")
            world.reward(trajectory)
        assert world.take() is not None
        world.commit()
    assert world.account.ledger.accounts["trained_policy"] == 18
    world.roll_back(1)
    ledger = world.account.ledger
    assert (ledger.accounts["trained_policy"], ledger.accounts["ready"]) == (6, 12)
    assert ledger.abandoned == 12
    assert ledger.value_accounts["trained"] == 6
    assert world.state.update == 1
    prepared = world.take()
    assert prepared is not None
    assert [trajectory_of(w.window_id)[0] for w in prepared.taken.windows] == [2, 3]


def test_a_version_is_known_as_long_as_a_token_of_it_may_be_trained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answer began under version 0 and goes on under version 2 when a checkpoint comes."""
    monkeypatch.setattr(versions, "KEPT", 0)
    world = streaming_world(batch_windows=1, max_staleness=8)

    def forget(update: int) -> list[int]:
        world.note(CheckpointWritten(at=0.0, update=update, lineage=0, path="p"))
        world.note(Forgotten(at=0.0, update=update))
        return [version for version in range(9) if world.state.versions.knows(version)]

    (trajectory,) = world.fill(1)
    world.chunk(trajectory, 2)
    world.publish(1)
    world.publish(2)
    world.chunk(trajectory, 1)
    assert forget(0) == [0, 1, 2]
    world.chunk(trajectory, 1, "stop")
    world.reward(trajectory)
    assert world.take() is not None
    world.commit()
    assert forget(1) == [3]


def test_a_rollback_takes_checkpoints_and_places_of_the_line_back() -> None:
    """By the number of a later checkpoint what the line still needs would be forgotten."""
    world = streaming_world(batch_windows=1, max_staleness=8)
    state = world.state
    for update in range(1, 6):
        (trajectory,) = world.fill(1)
        world.chunk(trajectory, 3, "stop")
        world.reward(trajectory)
        assert world.take() is not None
        world.commit()
        if update % 2 == 0:
            world.note(CheckpointWritten(at=0.0, update=update, lineage=0, path="p"))
    line = dict(state.line)
    assert (state.checkpoints, sorted(line)) == ([2, 4], [0, 1, 2, 3, 4, 5])
    world.roll_back(2)
    assert (state.checkpoints, state.line) == ([2], {u: line[u] for u in (0, 1, 2)})
    assert (state.update, state.committed, state.given, state.lineage) == (2, 2, 5, 1)
    assert state.first_policy_update == 1
    assert [state.is_on_line(u, line[u]) for u in (0, 1, 2, 3)] == [True, True, True, False]
    assert not state.is_on_line(2, line[1])
    assert not state.is_on_line(2, None)


def test_a_rollback_into_a_warm_up_takes_its_end_back() -> None:
    config = make_config(
        schedule={"mode": "streaming", "batch_windows": 2, "max_staleness": 4},
        algorithm={"value": {"warmup_updates": 9, "warmup_explained_variance": 0.5}},
    )
    world = World(config)

    def stands() -> tuple[int | None, bool]:
        return world.state.first_policy_update, world.scheduler.warming

    for explained in (0.1, 0.9):
        assert stands() == (None, True)
        for trajectory in world.fill(2):
            world.chunk(trajectory, 3, "stop")
            world.reward(trajectory)
        assert world.take() is not None
        world.commit(publish=False, explained=explained)
    assert stands() == (3, False)
    world.roll_back(1)
    assert stands() == (None, True)
    assert world.take() is not None
    world.commit(publish=False, explained=0.4)
    assert stands() == (None, True)


def test_failed_reward_drops_the_last_window_only() -> None:
    world = streaming_world(max_staleness=8)
    (trajectory,) = world.fill(1)
    world.chunk(trajectory, 4)
    world.chunk(trajectory, 2, "stop")
    world.reward(trajectory, None)
    assert world.account.ledger.dropped == {"reward_failed": 2}
    assert world.account.ledger.accounts["ready"] == 4
    assert not world.account.values


def test_an_end_told_after_the_border_makes_the_last_window_final() -> None:
    world = streaming_world()
    (trajectory,) = world.fill(1)
    world.chunk(trajectory, 4)
    assert world.account.ledger.accounts["ready"] == 4
    world.chunk(trajectory, 0, "length")
    assert world.account.ledger.accounts["ready"] == 0
    world.reward(trajectory)
    assert world.account.ledger.accounts["ready"] == 4
    assert trajectory.windows[0].final


def test_stale_boundary_and_non_finite_tokens_are_masked_and_counted() -> None:
    config = make_config(
        schedule={"mode": "streaming", "max_staleness": 0, "batch_windows": 1},
        algorithm={"advantages": {"kind": "egae", "boundary_mask": 1}, "value": {}},
    )
    world = World(config)
    (trajectory,) = world.fill(1)
    world.chunk(trajectory, 2)
    world.state.update = 1
    world.publish(1)
    world.chunk(trajectory, 2)
    trajectory.logprobs[2] = float("nan")
    prepared = world.take()
    assert prepared is not None
    (item,) = prepared.taken.windows
    assert counts(item.masked) == {"stale": 2, "boundary_mask": 1, "non_finite": 1}
    assert [(run.reason, run.start, run.end) for run in item.masked] == [
        ("stale", 0, 2), ("non_finite", 2, 3), ("boundary_mask", 3, 4),
    ]  # fmt: skip
    assert policy_windows(prepared) == []


def test_value_warmup_spends_trajectories_without_the_policy() -> None:
    config = make_config(
        schedule={"mode": "streaming", "batch_windows": 2},
        algorithm={
            "advantages": {"kind": "egae"},
            "value": {"warmup_updates": 1},
        },
    )
    world = World(config)
    for trajectory in world.fill(2):
        world.chunk(trajectory, 3, "stop")
        world.reward(trajectory)
    selection = world.scheduler.next_batch()
    assert selection is not None
    assert selection.windows == []
    world.take()
    world.commit(publish=False)
    assert world.account.ledger.dropped == {"value_warmup": 6}
    assert not world.scheduler.warming


def test_more_cannot_leave_an_account_than_it_holds() -> None:
    ledger = Ledger()
    ledger.add_generated(3)
    with pytest.raises(LedgerError):
        ledger.remove_window(Window(0, 0, 0, 4, 4, 0, 0))


def test_a_fresh_state_is_empty() -> None:
    state = State(make_config())
    assert (state.update, state.versions.current, state.account.ledger.balance()) == (0, -1, 0)
