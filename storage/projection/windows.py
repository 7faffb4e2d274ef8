"""Windows, value trajectories and updates: what batches of records do to them.

`headrace.trajectory.transitions` says what a record does to windows and value trajectories; here
the last word on each row is found in memory and written, so a window that is closed, made ready and
taken in one batch of records costs one insert.
"""

from typing import Any

import msgspec
from sqlalchemy import Connection, update

from headrace.protocol.records.record_types import (
    BatchReturned,
    BatchTaken,
    LineageBegan,
    UpdateCommitted,
    WindowsClosed,
    WindowsDropped,
    WindowsReady,
    WindowsRecalled,
)
from headrace.trajectory.transitions import moves, value_moves
from storage.database.tables import Run, Update, ValueUse, Window
from storage.projection.rows import (
    PlacedRecord,
    SqlRow,
    add_event,
    add_metrics,
    clean_text,
    insert_rows,
    update_rows,
    upsert_rows,
)

BATCHES = (BatchTaken, BatchReturned, UpdateCommitted, LineageBegan)
"""Records that say what became of batches."""
VALUES = (WindowsDropped, *BATCHES)
"""Records that move value trajectories."""
WINDOWS = (WindowsClosed, WindowsReady, WindowsRecalled, *VALUES)
"""Records that move windows."""


def move_windows(connection: Connection, run: int, records: list[PlacedRecord]) -> None:
    """Write the last state of each window that the records moved."""
    made: dict[int, SqlRow] = {}
    changed: dict[int, SqlRow] = {}
    for offset, record in records:
        if isinstance(record, WindowsClosed):
            for window in record.windows:
                made[window.window_id] = {**msgspec.structs.asdict(window), "lines": None}
        for move in moves(record):
            row = made.get(move.window_id)
            if row is None:
                row = changed.setdefault(move.window_id, {})
            row["state"], row["reason"], row["update"] = move.state, move.reason, move.update
            row["at"], row["offset"] = record.at, offset
            if move.final is not None:
                row["final"] = move.final
            if move.lines is not None:
                row["lines"] = move.lines
            if isinstance(record, BatchTaken):
                row["lineage"], row["version"] = record.lineage, record.version
                row["masked"] = [[m.reason, m.start, m.end, m.tokens] for m in move.masked]
                row["masked_tokens"] = sum(m.tokens for m in move.masked)
            elif move.state != "trained":  # what was to be masked is moot
                row["masked"], row["masked_tokens"] = [], 0
                if move.update is None:
                    row["lineage"] = row["version"] = None
    insert_rows(connection, run, Window, [made[key] for key in sorted(made)])
    update_rows(connection, run, Window.window_id, changed)


def move_values(connection: Connection, run: int, records: list[PlacedRecord]) -> None:
    """Write the last state of each value trajectory that the records moved."""
    rows: dict[int, SqlRow] = {}
    for offset, record in records:
        for move in value_moves(record):
            rows[move.trajectory_id] = {
                "trajectory_id": move.trajectory_id,
                "state": move.state,
                "update": move.update,
                "lineage": None if move.update is None else record.lineage,
                "offset": offset,
            }
    upsert_rows(connection, run, ValueUse, [rows[key] for key in sorted(rows)])


def move_updates(connection: Connection, run: int, records: list[PlacedRecord]) -> None:
    """Write batches taken, returned, committed and rolled back, in the order of the records."""
    for offset, record in records:
        match record:
            case BatchTaken():
                _taken(connection, run, offset, record)
            case BatchReturned():
                _returned(connection, run, offset, record)
            case UpdateCommitted():
                _committed(connection, run, offset, record)
            case LineageBegan():
                _rolled_back(connection, run, offset, record)


def _taken(connection: Connection, run: int, offset: int, r: BatchTaken) -> None:
    row = {
        "lineage": r.lineage,
        "update": r.update,
        "version": r.version,
        "state": "taken",
        "taken_at": r.at,
        "num_windows": len(r.windows),
        "num_values": len(r.value_trajectories),
        "offset": offset,
    }
    upsert_rows(connection, run, Update, [row])


def _returned(connection: Connection, run: int, offset: int, r: BatchReturned) -> None:
    connection.execute(_this_update(run, r).values(state="returned"))
    line = f"the batch of update {r.update} is ready again: {r.reason}"
    add_event(connection, run, offset, r.at, "warning", "batch_returned", line)


def _committed(connection: Connection, run: int, offset: int, r: UpdateCommitted) -> None:
    connection.execute(
        _this_update(run, r).values(
            state="skipped" if r.skipped else "committed",
            version=r.version,
            committed_at=r.at,
            train_time_s=r.train_time_s,
            trained_tokens=r.trained_tokens,
            skipped=clean_text(r.skipped),
            abandoned=False,
            offset=offset,
        )
    )
    add_metrics(connection, run, [(offset, r)])
    if r.skipped:
        line = f"update {r.update} was skipped: {r.skipped}"
        add_event(connection, run, offset, r.at, "warning", "update_skipped", line)


def _rolled_back(connection: Connection, run: int, offset: int, r: LineageBegan) -> None:
    later = update(Update).where(Update.run == run, Update.update > r.update)
    connection.execute(later.where(Update.state == "taken").values(state="returned"))
    done = Update.state.in_(["committed", "skipped"])
    connection.execute(later.where(done).values(abandoned=True))
    connection.execute(update(Run).where(Run.id == run).values(lineage=r.lineage))
    line = f"lineage {r.lineage} goes on from update {r.update}: {r.reason}"
    add_event(connection, run, offset, r.at, "info", "lineage_began", line)


def _this_update(run: int, r: BatchReturned | UpdateCommitted) -> Any:
    return update(Update).where(
        Update.run == run, Update.lineage == r.lineage, Update.update == r.update
    )
