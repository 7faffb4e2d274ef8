"""From journal records to SQL rows.

Records of a batch are grouped by kind, folded to one row a trajectory in memory and written with
executemany, so nothing is paid per record that can be paid per batch. `apply` runs inside the
caller's transaction and moves `projection.next_offset` in it: each record is applied exactly once,
whatever is replayed. The kinds that move windows between states keep their order.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence

from sqlalchemy import Connection, delete, select, update

from headrace.protocol.records import (
    BatchReturned,
    BatchTaken,
    CheckpointWritten,
    ChunkArrived,
    EvaluationDone,
    GroupIssued,
    Incident,
    LeaseIssued,
    LineageBegan,
    MetricsSampled,
    ProcessChanged,
    Record,
    RewardArrived,
    RunPhase,
    TokensDropped,
    TrajectoryEnded,
    UpdateCommitted,
    VersionLoaded,
    VersionPublished,
)
from storage.projection.batches import move_batches
from storage.projection.history import (
    add_checkpoints,
    add_drops,
    add_evaluations,
    add_incidents,
    add_loads,
    add_samples,
    add_versions,
    change_phase,
    change_processes,
)
from storage.projection.rows import Placed
from storage.projection.trajectories import (
    assign_leases,
    end_trajectories,
    extend_responses,
    issue_groups,
    score_trajectories,
)
from storage.tables import Base, Projection, Run

_SHARED: dict[type[Record], type[Record]] = {
    BatchReturned: BatchTaken,
    UpdateCommitted: BatchTaken,
    LineageBegan: BatchTaken,
}
_ORDER: dict[type[Record], Callable[[Connection, int, list[Placed]], None]] = {
    GroupIssued: issue_groups,
    LeaseIssued: assign_leases,
    ChunkArrived: extend_responses,
    TrajectoryEnded: end_trajectories,
    RewardArrived: score_trajectories,
    BatchTaken: move_batches,
    TokensDropped: add_drops,
    VersionPublished: add_versions,
    VersionLoaded: add_loads,
    EvaluationDone: add_evaluations,
    CheckpointWritten: add_checkpoints,
    MetricsSampled: add_samples,
    ProcessChanged: change_processes,
    Incident: add_incidents,
    RunPhase: change_phase,
}


def next_offset(connection: Connection, run: int) -> int:
    """The first journal offset that SQL does not have."""
    query = select(Projection.next_offset).where(Projection.run == run)
    return connection.execute(query).scalar_one()


def forget(connection: Connection, run: int) -> None:
    """Remove all rows of a run but its own, so that the journal can be projected anew."""
    for table in reversed(Base.metadata.sorted_tables):
        if "run" in table.c and table.name != Projection.__tablename__:
            connection.execute(delete(table).where(table.c.run == run))
    connection.execute(
        update(Projection).where(Projection.run == run).values(next_offset=0, last_at=None)
    )


def apply(connection: Connection, run: int, records: Sequence[tuple[int, Record]]) -> None:
    """Bring SQL up to the last of `records`, skipping what it has; one call a journal batch."""
    first = next_offset(connection, run)
    kinds: dict[type[Record], list[Placed]] = defaultdict(list)
    for offset, record in records:
        if offset >= first:
            kinds[_SHARED.get(type(record), type(record))].append((offset, record))
    if not kinds:
        return
    for kind, project in _ORDER.items():
        if kind in kinds:
            project(connection, run, kinds[kind])
    last_offset, last = records[-1]
    connection.execute(
        update(Projection)
        .where(Projection.run == run)
        .values(next_offset=last_offset + 1, last_at=last.at)
    )
    if first == 0:
        started = update(Run).where(Run.id == run).values(started_at=records[0][1].at)
        connection.execute(started)
