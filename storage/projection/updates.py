"""Updates: taken, returned, committed, rolled back."""

from typing import Any

from sqlalchemy import Connection, update

from headrace.protocol.records import BatchReturned, BatchTaken, LineageBegan, UpdateCommitted
from storage.projection.rows import Placed, add_metrics, clean_text, event, upsert_rows
from storage.tables import Run, Update


def move_updates(connection: Connection, run: int, records: list[Placed]) -> None:
    """Write which batches were taken, returned, committed and rolled back, in the order of the
    records."""
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
    event(connection, run, offset, r.at, "warning", "batch_returned", line)


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
        event(connection, run, offset, r.at, "warning", "update_skipped", line)


def _rolled_back(connection: Connection, run: int, offset: int, r: LineageBegan) -> None:
    later = update(Update).where(Update.run == run, Update.update > r.update)
    connection.execute(later.where(Update.state == "taken").values(state="returned"))
    done = Update.state.in_(["committed", "skipped"])
    connection.execute(later.where(done).values(abandoned=True))
    connection.execute(update(Run).where(Run.id == run).values(lineage=r.lineage))
    line = f"lineage {r.lineage} goes on from update {r.update}: {r.reason}"
    event(connection, run, offset, r.at, "info", "lineage_began", line)


def _this_update(run: int, r: BatchReturned | UpdateCommitted) -> Any:
    return update(Update).where(
        Update.run == run, Update.lineage == r.lineage, Update.update == r.update
    )
