"""Windows and value trajectories: the moves of a batch of records, folded to one write a row.

`sequence.moves` says what a record does; here the last word on each row is found in memory and
written, so a window that is closed, made ready and taken in one batch of records costs one insert.
"""

from sqlalchemy import Connection

from headrace.protocol.records import (
    BatchReturned,
    BatchTaken,
    ClosedWindow,
    LineageBegan,
    UpdateCommitted,
    WindowsClosed,
    WindowsDropped,
    WindowsReady,
    WindowsRecalled,
)
from sequence.moves import moves, value_moves
from storage.projection.rows import Placed, Row, insert_rows, update_rows, upsert_rows
from storage.tables import ValueUse, Window

BATCHES = (BatchTaken, BatchReturned, UpdateCommitted, LineageBegan)
"""Records that say what became of batches."""
WINDOWS = (WindowsClosed, WindowsReady, WindowsRecalled, WindowsDropped, *BATCHES)
"""Records that move windows."""


def move_windows(connection: Connection, run: int, records: list[Placed]) -> None:
    """Write the last state of each window that the records moved."""
    made: dict[int, Row] = {}
    changed: dict[int, Row] = {}
    for offset, record in records:
        if isinstance(record, WindowsClosed):
            made.update((window.window_id, _row(window)) for window in record.windows)
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


def move_values(connection: Connection, run: int, records: list[Placed]) -> None:
    """Write the last state of each value trajectory that the records moved."""
    rows: dict[int, Row] = {}
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


def _row(window: ClosedWindow) -> Row:
    return {
        "window_id": window.window_id,
        "trajectory_id": window.trajectory_id,
        "index": window.index,
        "start": window.start,
        "end": window.end,
        "tokens": window.tokens,
        "min_version": window.min_version,
        "max_version": window.max_version,
        "final": window.final,
        "lines": None,
    }
