"""From journal records to SQL rows.

Records of a batch are grouped by kind, folded to one row per trajectory or window in memory and
written with executemany, so nothing is paid per record that can be paid per batch. `apply` runs
inside the caller's transaction and moves `projection.next_offset` in it: each record is applied
exactly once, whatever is replayed. The kinds that move windows between states keep their order.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update
from sqlalchemy.exc import OperationalError

from headrace.config.sections.process import mask_password
from headrace.metrics.registry import METRICS
from headrace.protocol.records import record_types as r
from storage.database.tables import (
    Base,
    Checkpoint,
    Evaluation,
    Event,
    MetricInfo,
    Projection,
    Run,
    VersionLoad,
)  # fmt: skip
from storage.projection import history, trajectories
from storage.projection.rows import PlacedRecord, add_metrics, insert_records, upsert
from storage.projection.windows import (
    BATCHES,
    VALUES,
    WINDOWS,
    move_updates,
    move_values,
    move_windows,
)

Project = Callable[[Connection, int, list[PlacedRecord]], None]


def _rows_of(table: type[Base], *names: str) -> Project:
    """A row for each record, of its fields of these names."""
    return lambda connection, run, records: insert_records(connection, run, table, names, records)


_PROJECTIONS: tuple[tuple[tuple[type[r.Record], ...], Project], ...] = (
    ((r.GroupIssued,), trajectories.issue_groups),
    ((r.LeaseIssued,), trajectories.assign_leases),
    ((r.ChunkArrived,), trajectories.extend_responses),
    ((r.TrajectoryEnded,), trajectories.end_trajectories),
    ((r.ChunkArrived, r.LinesScored, r.RewardArrived), trajectories.score_trajectories),
    ((r.LinesScored,), trajectories.add_line_scores),
    ((r.AuditArrived,), trajectories.audit_trajectories),
    (WINDOWS, move_windows),
    (VALUES, move_values),
    (BATCHES, move_updates),
    ((r.TokensLost,), history.add_losses),
    ((r.VersionPublished,), history.add_versions),
    ((r.VersionLoaded,), _rows_of(VersionLoad, "at", "generator", "version", "gap_s", "load_s")),
    ((r.EvaluationDone,), _rows_of(Evaluation, *Evaluation.__table__.columns.keys()[2:])),
    ((r.CheckpointWritten,), _rows_of(Checkpoint, "at", "lineage", "update", "path", "accuracy")),
    ((r.MetricsSampled,), add_metrics),
    ((r.ProcessChanged,), history.change_processes),
    ((r.Incident,), _rows_of(Event, "at", "level", "kind", "text")),
    ((r.Restarted,), history.add_restarts),
    ((r.RunPhase,), history.change_phase),
)
"""The projections of each kind of record, in the order in which rows are written. VersionIssued,
Forgotten and Snapshot have no rows."""
_OF_KIND = {
    kind: [number for number, (kinds, _) in enumerate(_PROJECTIONS) if kind in kinds]
    for kinds, _ in _PROJECTIONS
    for kind in kinds
}


def register(connection: Connection, run_id: str, config: Mapping[str, Any]) -> int:
    """The run's key; a new run gets its row. `config` is the resolved configuration."""
    upsert(connection, MetricInfo, [info._asdict() for info in METRICS.values()])
    run = connection.execute(select(Run.id).where(Run.run_id == run_id)).scalar_one_or_none()
    if run is None:
        row = {"run_id": run_id, "name": config["name"], "config": _public(config)}
        run = connection.execute(insert(Run).values(**row).returning(Run.id)).scalar_one()
        connection.execute(insert(Projection).values(run=run))
    return run


def next_offset(connection: Connection, run: int) -> int:
    """The first journal offset that SQL does not have.

    On a server it locks the run's row: a transaction of a writer that is gone ends first."""
    query = select(Projection.next_offset).where(Projection.run == run).with_for_update()
    return connection.execute(query).scalar_one()


def forget(connection: Connection, run_id: str) -> None:
    """Remove all rows of a run, for another projection of the journal."""
    run = select(Run.id).where(Run.run_id == run_id).scalar_subquery()
    for table in reversed(Base.metadata.sorted_tables):
        if "run" in table.c:
            connection.execute(delete(table).where(table.c.run == run))
    connection.execute(delete(Run).where(Run.run_id == run_id))


def apply(connection: Connection, run: int, records: Sequence[tuple[int, r.Record]]) -> None:
    """Apply the records of a journal batch that SQL lacks. OperationalError: it lacks others before
    them, as a server does that was restored, or took over from one that had more."""
    first = next_offset(connection, run)
    if not records or records[-1][0] < first:
        return
    if records[0][0] > first:
        raise OperationalError("", {}, LookupError(f"it has lost records from {first:,} on"))
    parts: dict[int, list[PlacedRecord]] = defaultdict(list)
    for offset, record in records:
        if offset >= first:
            for number in _OF_KIND.get(type(record), ()):
                parts[number].append((offset, record))
    for number in sorted(parts):
        _PROJECTIONS[number][1](connection, run, parts[number])
    last_offset, last = records[-1]
    connection.execute(
        update(Projection)
        .where(Projection.run == run)
        .values(next_offset=last_offset + 1, last_at=last.at)
    )
    if first == 0:
        started = update(Run).where(Run.id == run).values(started_at=records[0][1].at)
        connection.execute(started)


def _public(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration without the database's password."""
    storage = dict(config["storage"])
    storage["database"] = storage["database"] and mask_password(storage["database"])
    return {**config, "storage": storage}
