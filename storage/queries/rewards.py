"""Sources of rewards: how each has scored, what an audit says of it, how length and reward go
together."""

from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import CTE, ColumnElement, case, func, literal, select

from storage.database.reader import RunReader, open_run
from storage.database.tables import Event, Run, Trajectory

if TYPE_CHECKING:
    import pandas as pd

ALERT = "reward_alert"
"""The kind of event that the monitors of rewards write."""
MOST_SCORINGS = 20_000
STATUSES = ("ok", "timeout", "crashed", "invalid")


def reward_sources(run_dir: Path) -> "pd.DataFrame":
    """One row a source that has scored training answers: source, answers, ok, timeout, crashed,
    invalid (how many), reward, correct, length (means), seconds and slowest (mean and most seconds
    of a scoring), error (the newest), audits, audits_failed (how many were audited, and in vain),
    audit_error (the newest), gap (mean reward less mean audited reward of those audited)."""
    import pandas as pd

    return pd.DataFrame(source_rows(open_run(run_dir)))


def source_rows(reader: RunReader) -> list[dict[str, Any]]:
    """`reward_sources` of a run that is open."""
    t = Trajectory
    both = t.audit_reward.is_not(None)
    right = case((t.correct.is_(True), 1.0), (t.correct.is_(False), 0.0))
    query = (
        select(
            t.reward_source.label("source"),
            func.count().label("answers"),
            *(func.sum(_one(t.reward_status == status)).label(status) for status in STATUSES),
            func.avg(t.reward).label("reward"),
            func.avg(right).label("correct"),
            func.avg(t.sampled * 1.0).label("length"),
            func.avg(t.reward_seconds).label("seconds"),
            func.max(t.reward_seconds).label("slowest"),
            func.sum(_one(t.audit_status.is_not(None))).label("audits"),
            func.sum(_one(t.audit_status != "ok")).label("audits_failed"),
            func.avg(case((both, t.reward - t.audit_reward))).label("gap"),
        )
        .where(*_scored(reader))
        .group_by(t.reward_source)
        .order_by(t.reward_source)
    )
    rows = [_plain(row._mapping) for row in reader.rows(query)]
    for row in rows:
        row["error"] = _newest(reader, row["source"], t.reward_error, t.rewarded_at)
        row["audit_error"] = _newest(reader, row["source"], t.audit_error, t.rewarded_at)
    return rows


def reward_lengths(run_dir: Path, *, newest: int = 1000) -> "pd.DataFrame":
    """Columns source, length (sampled tokens), reward, correct of the newest training answers with
    a reward, newest first."""
    reader = open_run(run_dir)
    t = Trajectory
    query = (
        select(t.reward_source.label("source"), t.sampled.label("length"), t.reward, t.correct)
        .where(*_scored(reader), t.reward.is_not(None))
        .order_by(t.trajectory_id.desc())
        .limit(newest)
    )
    return reader.frame(query)


def reward_sample(run_dir: Path, *, most: int = MOST_SCORINGS) -> "pd.DataFrame":
    """Columns x (seconds since the run's first record), source, status, reward, correct, seconds,
    parts (a dict, or None) of scored training answers in the order in which they were scored: all
    of them, or, of more than `most`, every so many by their ids."""
    reader, t = open_run(run_dir), Trajectory
    started_at = reader.rows(select(Run.started_at).where(Run.id == reader.key))[0][0] or 0.0
    last = reader.rows(select(func.max(t.trajectory_id)).where(t.run == reader.key))[0][0] or 0
    query = select(
        (t.rewarded_at - started_at).label("x"),
        t.reward_source.label("source"),
        t.reward_status.label("status"),
        t.reward,
        t.correct,
        t.reward_seconds.label("seconds"),
        t.reward_parts.label("parts"),
    )
    step = -(-(last + 1) // most)
    if step > 1:
        ids = _every(step, last)
        query = query.select_from(ids).join(t, t.trajectory_id == ids.c.id)
    return reader.frame(query.where(*_scored(reader)).order_by(t.rewarded_at, t.trajectory_id))


def alert_texts(reader: RunReader) -> list[str]:
    """What the monitors of rewards said, in order."""
    query = (
        select(Event.text)
        .where(Event.run == reader.key, Event.kind == ALERT)
        .order_by(Event.offset)
    )
    return [text for (text,) in reader.rows(query)]


def _scored(reader: RunReader) -> list[ColumnElement[bool]]:
    t = Trajectory
    return [t.run == reader.key, t.purpose == "train", t.reward_status.is_not(None)]


def _one(condition: ColumnElement[bool]) -> Any:
    return case((condition, 1), else_=0)


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """PostgreSQL sums and averages to decimals."""
    return {name: _number(name, value) for name, value in row.items()}


def _number(name: str, value: Any) -> Any:
    if not isinstance(value, Decimal):
        return value
    return int(value) if name in (*STATUSES, "audits", "audits_failed") else float(value)


def _newest(reader: RunReader, source: str, error: Any, at: Any) -> str | None:
    """The newest error of a source."""
    query = (
        select(error)
        .where(*_scored(reader), Trajectory.reward_source == source, error.is_not(None))
        .order_by(at.desc())
        .limit(1)
    )
    found = reader.rows(query)
    return found[0][0] if found else None


def _every(step: int, last: int) -> CTE:
    """0, step, 2 step and so on up to `last`: each id is one step in the primary key, where a scan
    would read every answer of a long run."""
    ids = select(literal(0).label("id")).cte("ids", recursive=True)
    return ids.union_all(select(ids.c.id + step).where(ids.c.id + step <= last))
