"""The lives of windows and of trajectories in the value model's hands, as the records tell them."""

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.trajectory.transitions import ValueState, moves, value_moves
from headrace.trajectory.windows import WindowState, trajectory_of, window_id
from tests.coordinator.persistence.test_state import play
from tests.coordinator.world import World, make_config

LIVES: dict[WindowState | None, set[WindowState]] = {
    None: {"closed"},
    "closed": {"closed", "ready", "dropped"},
    "ready": {"closed", "taken", "dropped"},
    "taken": {"ready", "trained", "dropped"},
    "trained": {"ready"},
    "dropped": set(),
}
"""Which state may follow which. A window that turns out to be the last one waits again; only a
rollback makes a trained one ready."""
VALUE_LIVES: dict[ValueState, set[ValueState]] = {
    "waiting": {"taken"},
    "taken": {"waiting", "trained", "dropped"},
    "trained": {"waiting"},
    "dropped": set(),
}


@settings(deadline=None, max_examples=25)
@given(
    st.integers(0, 10_000),
    st.sampled_from(["window", "trajectory", "group"]),
    st.booleans(),
)
def test_only_legal_lives_and_a_fold_of_the_moves_is_the_account(
    seed: int, unit: str, restarts: bool
) -> None:
    schedule = {"mode": "streaming", "unit": unit, "num_generations": 2, "batch_windows": 4}
    world = World(make_config(schedule=schedule | {"max_staleness": 1}))
    play(world, seed, 50, restarts=restarts)
    states: dict[int, WindowState] = {}
    updates: dict[int, int | None] = {}
    values: dict[int, ValueState] = {}
    for record in world.records:
        for move in moves(record):
            assert move.state in LIVES[states.get(move.window_id)], (record, move)
            states[move.window_id], updates[move.window_id] = move.state, move.update
            # An update is named where one has the window, and a reason where it is dropped.
            by_update = move.state in ("taken", "trained") or move.reason == "non_finite"
            assert (move.update is not None) == by_update
            assert (move.reason is not None) == (move.state == "dropped")
        for change in value_moves(record):
            before = values.get(change.trajectory_id, "waiting")
            assert change.state in VALUE_LIVES[before], (record, change)
            values[change.trajectory_id] = change.state
    known = [w for t in world.account.trajectories.values() for w in t.windows]
    for window in known:
        assert window.state == states[window.window_id]
        update = updates[window.window_id]
        assert window.update == (-1 if update is None else update)
    for trajectory in world.account.trajectories.values():
        if trajectory.value is not None:
            assert trajectory.value == values.get(trajectory.trajectory_id, "waiting")


@given(st.integers(0, 2**40), st.integers(0, 2**16 - 1))
def test_a_window_id_is_its_trajectory_and_index(trajectory_id: int, index: int) -> None:
    assert trajectory_of(window_id(trajectory_id, index)) == (trajectory_id, index)
