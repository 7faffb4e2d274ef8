"""Updates and their windows: taken, returned, committed, rolled back."""

from typing import Any

from sqlalchemy import Connection, update

from headrace.protocol.records import BatchReturned, BatchTaken, LineageBegan, UpdateCommitted
from storage.projection.rows import Placed, clean_text, event, insert_rows, metric_rows, upsert_rows
from storage.tables import Metric, Run, Update, ValueUse, Window


def move_batches(connection: Connection, run: int, records: list[Placed]) -> None:
    """Taken, returned, committed, rolled back: in their order."""
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
    shared = {"state": "taken", "lineage": r.lineage, "update": r.update, "offset": offset}
    windows = [
        {
            **{name: getattr(window, name) for name in window.__struct_fields__},
            **shared,
            "version": r.version,
        }
        for window in r.windows
    ]
    uses = [{**shared, "trajectory_id": trajectory} for trajectory in r.value_trajectories]
    row = {
        **shared,
        "version": r.version,
        "taken_at": r.at,
        "num_windows": len(windows),
        "num_values": len(uses),
    }
    upsert_rows(connection, run, Update, [row])
    upsert_rows(connection, run, Window, windows)
    upsert_rows(connection, run, ValueUse, uses)


def _returned(connection: Connection, run: int, offset: int, r: BatchReturned) -> None:
    _move(connection, run, r, "ready")
    connection.execute(_this_update(run, r).values(state="returned"))
    line = f"the batch of update {r.update} is ready again: {r.reason}"
    event(connection, run, offset, r.at, "warning", "batch_returned", line)


def _committed(connection: Connection, run: int, offset: int, r: UpdateCommitted) -> None:
    _move(connection, run, r, "skipped" if r.skipped else "trained")
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
    insert_rows(connection, run, Metric, metric_rows(offset, r, r.lineage))
    if r.skipped:
        line = f"update {r.update} was skipped: {r.skipped}"
        event(connection, run, offset, r.at, "warning", "update_skipped", line)


def _rolled_back(connection: Connection, run: int, offset: int, r: LineageBegan) -> None:
    for table in (Window, ValueUse):  # what was skipped stays dropped
        connection.execute(
            update(table)
            .where(table.run == run, table.update > r.update, table.state.in_(["taken", "trained"]))
            .values(state="ready")
        )
    later = update(Update).where(Update.run == run, Update.update > r.update)
    connection.execute(later.where(Update.state == "taken").values(state="returned"))
    done = Update.state.in_(["committed", "skipped"])
    connection.execute(later.where(done).values(abandoned=True))
    connection.execute(update(Run).where(Run.id == run).values(lineage=r.lineage))
    line = f"lineage {r.lineage} goes on from update {r.update}: {r.reason}"
    event(connection, run, offset, r.at, "info", "lineage_began", line)


def _move(connection: Connection, run: int, r: BatchReturned | UpdateCommitted, state: str) -> None:
    for table in (Window, ValueUse):
        connection.execute(
            update(table)
            .where(
                table.run == run,
                table.update == r.update,
                table.lineage == r.lineage,
                table.state == "taken",
            )
            .values(state=state)
        )


def _this_update(run: int, r: BatchReturned | UpdateCommitted) -> Any:
    return update(Update).where(
        Update.run == run, Update.lineage == r.lineage, Update.update == r.update
    )
