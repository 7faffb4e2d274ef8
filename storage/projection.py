"""From journal records to SQL rows.

Records of a batch are grouped by kind, folded to one row a trajectory in memory and written with
executemany, so nothing is paid per record that can be paid per batch. `apply` runs inside the
caller's transaction and moves `projection.next_offset` in it: each record is applied exactly once,
whatever is replayed. The kinds that move windows between states keep their order.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, case, func, insert, or_, select, update
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert

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
from storage.tables import (
    Base,
    Checkpoint,
    Drop,
    Evaluation,
    Event,
    Group,
    Metric,
    Process,
    Projection,
    Prompt,
    Run,
    Trajectory,
    Update,
    ValueUse,
    VersionLoad,
    WeightVersion,
    Window,
)

Placed = tuple[int, Any]
"""(journal offset, record)"""
Row = dict[str, Any]
FINAL_PHASES = ("finished", "failed", "interrupted")


def next_offset(connection: Connection, run: int) -> int:
    """The first journal offset that SQL does not have."""
    query = select(Projection.next_offset).where(Projection.run == run)
    return connection.execute(query).scalar_one()


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


# -- trajectories ----------------------------------------------------------------------------------


def _groups(connection: Connection, run: int, records: list[Placed]) -> None:
    prompts: dict[str, Row] = {}
    groups: list[Row] = []
    trajectories: list[Row] = []
    for offset, r in records:
        prompts.setdefault(
            r.prompt_id,
            {
                "prompt_id": r.prompt_id,
                "text": _text(r.prompt),
                "answer": _text(r.answer),
                "info": _text(r.info),
                "prompt_ids": r.prompt_ids.astype("<i4").tobytes(),
                "offset": offset,
            },
        )
        groups.append(
            {
                "group_id": r.group_id,
                "prompt_id": r.prompt_id,
                "position": r.position,
                "purpose": r.purpose,
                "size": len(r.trajectory_ids),
                "issued_at": r.at,
                "offset": offset,
            }
        )
        trajectories.extend(
            {
                "trajectory_id": trajectory_id,
                "group_id": r.group_id,
                "attempt": attempt,
                "purpose": r.purpose,
                "seed": seed,
                "status": "issued",
                "length": 0,
                "issued_at": r.at,
                "offset": offset,
            }
            for attempt, (trajectory_id, seed) in enumerate(
                zip(r.trajectory_ids, r.seeds, strict=True)
            )
        )
    _upsert(connection, run, Prompt, list(prompts.values()), keep=True)
    _insert(connection, run, Group, groups)
    _insert(connection, run, Trajectory, trajectories)


def _leases(connection: Connection, run: int, records: list[Placed]) -> None:
    latest = {r.trajectory_id: {"b_generator": r.generator} for _, r in records}
    _update_trajectories(connection, run, latest, generator=bindparam("b_generator"))


def _chunks(connection: Connection, run: int, records: list[Placed]) -> None:
    rows: dict[int, Row] = {}
    for offset, r in records:
        row = rows.setdefault(
            r.trajectory_id,
            {"b_at": None, "b_low": None, "b_high": None, "b_first": offset, "b_length": 0},
        )
        row["b_last"], row["b_generator"], row["b_finish"] = offset, r.generator, r.finish
        if len(r.token_ids):
            if row["b_at"] is None:
                row["b_at"] = r.at
            row["b_length"] = max(row["b_length"], r.start + len(r.token_ids))
            versions = [span.version for span in r.spans]
            row["b_low"] = min(versions) if row["b_low"] is None else min(row["b_low"], *versions)
            row["b_high"] = (
                max(versions) if row["b_high"] is None else max(row["b_high"], *versions)
            )
    length = bindparam("b_length", type_=Trajectory.length.type)
    low = bindparam("b_low", type_=Trajectory.min_version.type)
    high = bindparam("b_high", type_=Trajectory.max_version.type)
    no_low, no_high = Trajectory.min_version.is_(None), Trajectory.max_version.is_(None)
    _update_trajectories(
        connection,
        run,
        rows,
        status=case((Trajectory.status == "issued", "running"), else_=Trajectory.status),
        generator=bindparam("b_generator"),
        finish=bindparam("b_finish"),
        length=case((length > Trajectory.length, length), else_=Trajectory.length),
        min_version=case(
            (or_(no_low, low < Trajectory.min_version), low), else_=Trajectory.min_version
        ),
        max_version=case(
            (or_(no_high, high > Trajectory.max_version), high), else_=Trajectory.max_version
        ),
        first_token_at=func.coalesce(
            Trajectory.first_token_at, bindparam("b_at", type_=Trajectory.first_token_at.type)
        ),
        first_offset=func.coalesce(
            Trajectory.first_offset, bindparam("b_first", type_=Trajectory.first_offset.type)
        ),
        last_offset=bindparam("b_last"),
    )


def _ends(connection: Connection, run: int, records: list[Placed]) -> None:
    rows = {
        r.trajectory_id: {
            "b_status": r.status,
            "b_length": r.length,
            "b_error": _text(r.error),
            "b_at": r.at,
        }
        for _, r in records
    }
    _update_trajectories(
        connection,
        run,
        rows,
        status=bindparam("b_status"),
        length=bindparam("b_length"),
        error=bindparam("b_error"),
        finished_at=bindparam("b_at"),
    )


def _rewards(connection: Connection, run: int, records: list[Placed]) -> None:
    rows = {
        r.trajectory_id: {
            "b_reward": _finite(r.reward),
            "b_status": r.status,
            "b_parts": {name: _finite(part) for name, part in r.parts.items()},
            "b_seconds": r.seconds,
            "b_error": _text(r.error),
            "b_at": r.at,
        }
        for _, r in records
    }
    _update_trajectories(
        connection,
        run,
        rows,
        reward=bindparam("b_reward"),
        reward_status=bindparam("b_status"),
        reward_parts=bindparam("b_parts"),
        reward_seconds=bindparam("b_seconds"),
        reward_error=bindparam("b_error"),
        rewarded_at=bindparam("b_at"),
    )


# -- batches ---------------------------------------------------------------------------------------


def _batches(connection: Connection, run: int, records: list[Placed]) -> None:
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
    _upsert(connection, run, Update, [row])
    _upsert(connection, run, Window, windows)
    _upsert(connection, run, ValueUse, uses)


def _returned(connection: Connection, run: int, offset: int, r: BatchReturned) -> None:
    _move(connection, run, r, "ready")
    connection.execute(_this_update(run, r).values(state="returned"))
    text = f"the batch of update {r.update} is ready again: {r.reason}"
    _event(connection, run, offset, r.at, "warning", "batch_returned", text)


def _committed(connection: Connection, run: int, offset: int, r: UpdateCommitted) -> None:
    _move(connection, run, r, "skipped" if r.skipped else "trained")
    connection.execute(
        _this_update(run, r).values(
            state="skipped" if r.skipped else "committed",
            version=r.version,
            committed_at=r.at,
            train_time_s=r.train_time_s,
            trained_tokens=r.trained_tokens,
            skipped=_text(r.skipped),
            abandoned=False,
            offset=offset,
        )
    )
    _insert(connection, run, Metric, _metric_rows(offset, r, r.lineage))
    if r.skipped:
        text = f"update {r.update} trained nothing: {r.skipped}"
        _event(connection, run, offset, r.at, "warning", "update_skipped", text)


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
    text = f"lineage {r.lineage} goes on from update {r.update}: {r.reason}"
    _event(connection, run, offset, r.at, "info", "lineage_began", text)


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


# -- the rest --------------------------------------------------------------------------------------


def _drops(connection: Connection, run: int, records: list[Placed]) -> None:
    names = ("at", "trajectory_id", "start", "end", "reason", "tokens")
    _insert_records(connection, run, Drop, names, records)


def _published(connection: Connection, run: int, records: list[Placed]) -> None:
    rows = [
        {
            "version": r.version,
            "lineage": r.lineage,
            "update": r.update,
            "num_bytes": r.num_bytes,
            "published_at": r.at,
            "offset": offset,
        }
        for offset, r in records
    ]
    _upsert(connection, run, WeightVersion, rows)


def _loads(connection: Connection, run: int, records: list[Placed]) -> None:
    names = ("at", "generator", "version", "gap_s", "load_s")
    _insert_records(connection, run, VersionLoad, names, records)


def _evaluations(connection: Connection, run: int, records: list[Placed]) -> None:
    names = tuple(column.name for column in Evaluation.__table__.columns)[2:]
    _insert_records(connection, run, Evaluation, names, records)


def _checkpoints(connection: Connection, run: int, records: list[Placed]) -> None:
    names = ("at", "lineage", "update", "path", "accuracy")
    _insert_records(connection, run, Checkpoint, names, records)


def _samples(connection: Connection, run: int, records: list[Placed]) -> None:
    rows = [row for offset, r in records for row in _metric_rows(offset, r, None)]
    _insert(connection, run, Metric, rows)


def _processes(connection: Connection, run: int, records: list[Placed]) -> None:
    query = select(Process.name, Process.first_seen_at, Process.starts).where(Process.run == run)
    known = {name: (first, starts) for name, first, starts in connection.execute(query)}
    rows: dict[str, Row] = {}
    for offset, r in records:
        first, starts = known.get(r.name, (r.at, 0))
        known[r.name] = first, starts = first, starts + (r.state == "up")
        rows[r.name] = {
            **{name: getattr(r, name) for name in ("name", "role", "pid", "host", "state")},
            "detail": _text(r.detail),
            "first_seen_at": first,
            "changed_at": r.at,
            "starts": starts,
        }
        text = f"{r.name} is {r.state}" + (f": {r.detail}" if r.detail else "")
        level = "warning" if r.state == "lost" else "info"
        _event(connection, run, offset, r.at, level, "process", text)
    _upsert(connection, run, Process, list(rows.values()))


def _incidents(connection: Connection, run: int, records: list[Placed]) -> None:
    for offset, r in records:
        _event(connection, run, offset, r.at, r.level, r.kind, r.text)


def _phases(connection: Connection, run: int, records: list[Placed]) -> None:
    for offset, r in records:
        text = r.phase + (f": {r.detail}" if r.detail else "")
        level = "error" if r.phase == "failed" else "info"
        _event(connection, run, offset, r.at, level, "phase", text)
    last = records[-1][1]
    ended_at = last.at if last.phase in FINAL_PHASES else None
    connection.execute(
        update(Run)
        .where(Run.id == run)
        .values(status=last.phase, detail=_text(last.detail), ended_at=ended_at)
    )


# -- writing ---------------------------------------------------------------------------------------


def upsert(
    connection: Connection, table: type[Base], rows: list[Row], *, keep: bool = False
) -> None:
    """Insert rows; where the primary key exists, replace the old row (or keep it)."""
    if not rows:
        return
    on_server = connection.dialect.name == "postgresql"
    statement = (postgresql_insert if on_server else sqlite_insert)(table)
    keys = [column.name for column in table.__table__.primary_key]
    if keep:
        statement = statement.on_conflict_do_nothing(index_elements=keys)
    else:
        new = {name: statement.excluded[name] for name in rows[0] if name not in keys}
        statement = statement.on_conflict_do_update(index_elements=keys, set_=new)
    connection.execute(statement, rows)


def _insert(connection: Connection, run: int, table: type[Base], rows: list[Row]) -> None:
    if rows:
        connection.execute(insert(table), [{"run": run, **row} for row in rows])


def _upsert(
    connection: Connection, run: int, table: type[Base], rows: list[Row], *, keep: bool = False
) -> None:
    upsert(connection, table, [{"run": run, **row} for row in rows], keep=keep)


def _insert_records(
    connection: Connection,
    run: int,
    table: type[Base],
    names: tuple[str, ...],
    records: list[Placed],
) -> None:
    rows = [
        {"offset": offset, **{name: getattr(record, name) for name in names}}
        for offset, record in records
    ]
    _insert(connection, run, table, rows)


def _update_trajectories(
    connection: Connection, run: int, rows: dict[int, Row], **values: Any
) -> None:
    statement = (
        update(Trajectory)
        .where(Trajectory.run == bindparam("b_run"))
        .where(Trajectory.trajectory_id == bindparam("b_trajectory"))
        .values(**values)
    )
    # In the order of the key: two writers would not deadlock, and SQLite walks its pages once.
    parameters = [
        {"b_run": run, "b_trajectory": trajectory, **rows[trajectory]}
        for trajectory in sorted(rows)
    ]
    connection.execute(statement, parameters)


def _event(
    connection: Connection, run: int, offset: int, at: float, level: str, kind: str, text: str
) -> None:
    row = {"offset": offset, "at": at, "level": level, "kind": kind, "text": _text(text)}
    _insert(connection, run, Event, [row])


def _metric_rows(
    offset: int, r: UpdateCommitted | MetricsSampled, lineage: int | None
) -> list[Row]:
    return [
        {
            "name": name,
            "offset": offset,
            "update": r.update,
            "lineage": lineage,
            "value": _finite(value),
            "wall_time": r.at,
        }
        for name, value in r.metrics.items()
    ]


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _text(value: str | None) -> str | None:
    """PostgreSQL has no NUL in text."""
    return value.replace("\x00", "\ufffd") if value else value


_SHARED: dict[type[Record], type[Record]] = {
    BatchReturned: BatchTaken,
    UpdateCommitted: BatchTaken,
    LineageBegan: BatchTaken,
}
_ORDER = {
    GroupIssued: _groups,
    LeaseIssued: _leases,
    ChunkArrived: _chunks,
    TrajectoryEnded: _ends,
    RewardArrived: _rewards,
    BatchTaken: _batches,
    TokensDropped: _drops,
    VersionPublished: _published,
    VersionLoaded: _loads,
    EvaluationDone: _evaluations,
    CheckpointWritten: _checkpoints,
    MetricsSampled: _samples,
    ProcessChanged: _processes,
    Incident: _incidents,
    RunPhase: _phases,
}
