"""Prompts, groups and trajectories: issued, growing, ended, scored."""

import functools
import math
from collections import defaultdict
from typing import Any

import numpy as np
from sqlalchemy import Connection, bindparam, case, func, or_, select, update

from headrace.protocol.records.record_types import ChunkArrived, LinesScored, RewardArrived
from headrace.protocol.token_spans import Reward
from storage.database.tables import Group, LineScore, Prompt, Trajectory
from storage.projection.rows import (
    PlacedRecord,
    PreparedStatement,
    SqlRow,
    clean_text,
    finite,
    insert_rows,
    update_rows,
    upsert_rows,
)

Scored = ChunkArrived | LinesScored | RewardArrived
_GROUP = ("group_id", "position", "purpose")
_LINE_SCORE = ("at", "trajectory_id", "source", "status", "through", "seconds")
"""Columns that are a record's fields as they are."""


@functools.cache
def _extending(starts: bool, inserts: bool) -> PreparedStatement:
    """Adds what new chunks say of a trajectory to what its row says.

    Columns with an index are set only where they change: SQLite writes the index anew for each row
    whose statement names them."""
    t = Trajectory
    length = bindparam("b_length", type_=t.length.type)
    low = bindparam("b_low", type_=t.min_version.type)
    high = bindparam("b_high", type_=t.max_version.type)
    first_at = bindparam("b_at", type_=t.first_token_at.type)
    first = bindparam("b_first", type_=t.first_offset.type)
    no_low, no_high = t.min_version.is_(None), t.max_version.is_(None)
    extended = (
        update(Trajectory)
        .where(t.run == bindparam("b_run"), t.trajectory_id == bindparam("b_key"))
        .values(
            finish=bindparam("b_finish"),
            length=case((length > t.length, length), else_=t.length),
            sampled=t.sampled + bindparam("b_sampled"),
            surprise=t.surprise + bindparam("b_surprise"),
            min_version=case((or_(no_low, low < t.min_version), low), else_=t.min_version),
            max_version=case((or_(no_high, high > t.max_version), high), else_=t.max_version),
            first_token_at=func.coalesce(t.first_token_at, first_at),
            first_offset=func.coalesce(t.first_offset, first),
            last_offset=bindparam("b_last"),
        )
    )
    if starts:
        running = case((t.status == "issued", "running"), else_=t.status)
        extended = extended.values(status=running)
    if inserts:
        extended = extended.values(inserted=t.inserted + bindparam("b_inserted"))
    return PreparedStatement(extended)


def issue_groups(connection: Connection, run: int, records: list[PlacedRecord]) -> None:
    """Prompts, groups and their trajectories exist from now on."""
    prompts: dict[str, SqlRow] = {}
    groups: list[SqlRow] = []
    trajectories: list[SqlRow] = []
    for offset, r in records:
        prompt_id = clean_text(r.prompt_id) or ""
        prompts.setdefault(
            prompt_id,
            {
                "prompt_id": prompt_id,
                "text": clean_text(r.prompt),
                "answer": clean_text(r.answer),
                "info": clean_text(r.info),
                "prompt_ids": r.prompt_ids.astype("<i4").tobytes(),
                "images": [run.digest for run in r.media] or None,
                "offset": offset,
            },
        )
        groups.append(
            {
                **{name: getattr(r, name) for name in _GROUP},
                "prompt_id": prompt_id,
                "domain": clean_text(r.domain),
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
                "sampled": 0,
                "inserted": 0,
                "surprise": 0.0,
                "issued_at": r.at,
                "offset": offset,
            }
            for attempt, (trajectory_id, seed) in enumerate(
                zip(r.trajectory_ids, r.seeds, strict=True)
            )
        )
    upsert_rows(connection, run, Prompt, list(prompts.values()), keep=True)
    insert_rows(connection, run, Group, groups)
    insert_rows(connection, run, Trajectory, trajectories)


def assign_leases(connection: Connection, run: int, records: list[PlacedRecord]) -> None:
    """Set each trajectory's generator to the last assigned one.

    A batch is projected kind by kind, and may hold chunks of an earlier one."""
    latest = {r.trajectory_id: {"generator": r.generator} for _, r in records}
    update_rows(connection, run, Trajectory.trajectory_id, latest)


def extend_responses(connection: Connection, run: int, records: list[PlacedRecord]) -> None:
    """Lengths, versions and journal positions grow, folded to one row per trajectory."""
    rows: dict[int, SqlRow] = {}
    started: set[int] = set()
    for offset, r in records:
        row = rows.setdefault(
            r.trajectory_id,
            {
                "b_at": None,
                "b_low": None,
                "b_high": None,
                "b_first": offset,
                "b_length": 0,
                "b_sampled": 0,
                "b_inserted": 0,
                "b_surprise": 0.0,
            },
        )
        row["b_last"], row["b_finish"] = offset, r.finish
        if r.start == 0:
            started.add(r.trajectory_id)
        if tokens := len(r.token_ids):
            if row["b_at"] is None:
                row["b_at"] = r.at
            row["b_length"] = max(row["b_length"], r.start + tokens)
            sampled = 0
            for span in r.spans:
                sampled += span.end - span.start
                low, high = row["b_low"], row["b_high"]
                row["b_low"] = span.version if low is None else min(low, span.version)
                row["b_high"] = span.version if high is None else max(high, span.version)
            row["b_sampled"] += sampled
            row["b_inserted"] += tokens - sampled
            # Inserted tokens have a logprob of 0.
            said = float(np.add.reduce(r.logprobs))
            if not math.isfinite(said):
                said = float(np.sum(r.logprobs, where=np.isfinite(r.logprobs)))
            row["b_surprise"] -= said
    shapes: dict[tuple[bool, bool], list[SqlRow]] = defaultdict(list)
    # In the order of the key: SQLite walks its pages once.
    for key in sorted(rows):
        row = {"b_run": run, "b_key": key, **rows[key]}
        shapes[key in started, row["b_inserted"] > 0].append(row)
    for shape, parameters in shapes.items():
        _extending(*shape).run(connection, parameters)


def end_trajectories(connection: Connection, run: int, records: list[PlacedRecord]) -> None:
    """No more tokens will come."""
    rows = {
        r.trajectory_id: {
            "status": r.status,
            "length": r.length,
            "error": clean_text(r.error),
            "finished_at": r.at,
        }
        for _, r in records
    }
    update_rows(connection, run, Trajectory.trajectory_id, rows)


def score_trajectories(connection: Connection, run: int, records: list[PlacedRecord]) -> None:
    """Write rewards, their parts, times and errors; earlier rewards of lines and turns stay."""
    rows: dict[int, SqlRow] = {}
    told = [
        (r, found)
        for _, r in records
        if (found := _rewards_of(r)) or not isinstance(r, ChunkArrived)
    ]
    more = [r for r, found in told if found or getattr(r, "status", "ok") != "ok"]
    earned = _earned(connection, run, more)
    for r, found in told:
        row = rows.setdefault(r.trajectory_id, {})
        if found or isinstance(r, RewardArrived):
            row["rewards"] = earned.setdefault(r.trajectory_id, [])
            row["rewards"] += [[finite(reward.value), reward.position] for reward in found]
        if isinstance(r, RewardArrived):
            row |= {
                "reward": finite(r.reward),
                "correct": r.correct,
                "reward_source": r.source,
                "reward_model": r.model,
                "reward_status": r.status,
                "reward_parts": {name: finite(part) for name, part in r.parts.items()},
                "reward_seconds": r.seconds,
                "reward_error": clean_text(r.error),
                "rewarded_at": r.at,
            }
    scored = {key: row for key, row in rows.items() if row}
    update_rows(connection, run, Trajectory.trajectory_id, scored)


def _rewards_of(record: Scored) -> list[Reward]:
    if isinstance(record, ChunkArrived):
        return record.streams.rewards if record.streams is not None else []
    return record.rewards


def _earned(connection: Connection, run: int, records: list[Scored]) -> dict[int, list[Any]]:
    """The rewards that the trajectories of some records have earned already."""
    keys = list({r.trajectory_id for r in records})
    if not keys:
        return {}
    query = select(Trajectory.trajectory_id, Trajectory.rewards).where(
        Trajectory.run == run, Trajectory.trajectory_id.in_(keys)
    )
    return {key: list(rewards or []) for key, rewards in connection.execute(query)}


def add_line_scores(connection: Connection, run: int, records: list[PlacedRecord]) -> None:
    """Scorings of lines, one row each."""
    rows = [
        {
            "offset": offset,
            **{name: getattr(r, name) for name in _LINE_SCORE},
            "lines": [[line.position, line.score] for line in r.lines],
            "rewards": [[reward.value, reward.position] for reward in r.rewards],
            "error": clean_text(r.error),
        }
        for offset, r in records
    ]
    insert_rows(connection, run, LineScore, rows)


def audit_trajectories(connection: Connection, run: int, records: list[PlacedRecord]) -> None:
    """Write the scores of an audit's second source."""
    rows = {
        r.trajectory_id: {
            "audit_source": r.source,
            "audit_status": r.status,
            "audit_reward": finite(r.reward),
            "audit_correct": r.correct,
            "audit_parts": {name: finite(part) for name, part in r.parts.items()},
            "audit_seconds": r.seconds,
            "audit_error": clean_text(r.error),
        }
        for _, r in records
    }
    update_rows(connection, run, Trajectory.trajectory_id, rows)
