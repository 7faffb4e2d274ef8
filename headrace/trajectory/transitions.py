"""Transitions of windows and value trajectories by records; the only code for these.

In: one record, nothing else. Out: the moves it names. Promise: folding the moves of a run's records
in order gives each window's state; `account` folds them in memory, `storage.projection` in SQL.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

from headrace.protocol.records import record_types as r
from headrace.trajectory.windows import WindowState

ValueState = Literal["waiting", "taken", "trained", "dropped"]
NO_MASK: list[r.MaskedRun] = []


class WindowMove(NamedTuple):
    """A window goes into `state`. `update` is set where an update takes, trains or skips it, and
    None where it belongs to no update (any more). `masked` is set where an update takes it. `final`
    is True where the trajectory turns out to end with it, None where nothing changes. `lines` says
    what became of the lines of a window that gets ready; None: there are none, or no news."""

    window_id: int
    state: WindowState
    update: int | None = None
    masked: list[r.MaskedRun] = NO_MASK
    reason: r.DropReason | None = None
    final: bool | None = None
    lines: r.LinesState | None = None


class ValueMove(NamedTuple):
    """A trajectory goes into `state` for the value model; `update` as in `WindowMove`."""

    trajectory_id: int
    state: ValueState
    update: int | None = None


def moves(record: r.Record) -> Iterator[WindowMove]:
    """Yield a record's moves of windows, in its order."""
    match record:
        case r.WindowsClosed():
            for closed in record.windows:
                yield WindowMove(closed.window_id, "closed", final=closed.final)
        case r.WindowsReady():
            for window_id in record.window_ids:
                yield WindowMove(window_id, "ready", lines=record.lines.get(window_id))
        case r.WindowsRecalled():
            for window_id in record.window_ids:
                yield WindowMove(window_id, "closed", final=True)
        case r.WindowsDropped():
            for window_id in record.window_ids:
                yield WindowMove(window_id, "dropped", reason=record.reason)
        case r.BatchTaken():
            for taken in record.windows:
                yield WindowMove(taken.window_id, "taken", record.update, taken.masked)
        case r.BatchReturned() | r.LineageBegan():
            for window_id in record.window_ids:
                yield WindowMove(window_id, "ready")
        case r.UpdateCommitted(skipped=None):
            for window_id in record.window_ids:
                yield WindowMove(window_id, "trained", record.update)
        case r.UpdateCommitted():
            for window_id in record.window_ids:
                yield WindowMove(window_id, "dropped", record.update, reason="non_finite")


def value_moves(record: r.Record) -> Iterator[ValueMove]:
    """Yield a record's moves of trajectories for the value model, in its order."""
    match record:
        case r.WindowsDropped():
            for trajectory_id in record.value_trajectories:
                yield ValueMove(trajectory_id, "dropped")
        case r.BatchTaken():
            for trajectory_id in record.value_trajectories:
                yield ValueMove(trajectory_id, "taken", record.update)
        case r.BatchReturned() | r.LineageBegan():
            for trajectory_id in record.value_trajectories:
                yield ValueMove(trajectory_id, "waiting")
        case r.UpdateCommitted():
            state: ValueState = "dropped" if record.skipped else "trained"
            for trajectory_id in record.value_trajectories:
                yield ValueMove(trajectory_id, state, record.update)
