"""Sources of rewards: scorings, audits, alerts, reward over length."""

from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import ColumnElement, case, func, literal, select

from storage.database.reader import RunReader, open_run
from storage.database.tables import Event, Trajectory, Update
from storage.queries.evaluations import answers_of

if TYPE_CHECKING:
    import pandas as pd

ALERT = "reward_alert"
"""The kind of event that the monitors of rewards write."""
MAX_SCORINGS = 20_000
SCORES = ("ok", "timeout", "crashed", "invalid")


def reward_sources(run_dir: Path, evaluation: int | None = None) -> "pd.DataFrame":
    """One row per source of rewards, over training answers or those of an evaluation.

    source, answers, ok, timeout, crashed, invalid (numbers of answers), reward, correct, length
    (means), seconds and slowest (mean and maximum of a scoring), error (the newest), audits,
    audits_failed (numbers), audit_error (the newest), gap (mean of reward less audited reward),
    paid_more and paid_less (numbers of answers that earned more and less than the audit gave)."""
    import pandas as pd

    return pd.DataFrame(source_rows(open_run(run_dir), evaluation))


def source_rows(reader: RunReader, evaluation: int | None = None) -> list[dict[str, Any]]:
    """`reward_sources` of a run that is open."""
    t, scored = Trajectory, _scored(reader, evaluation)
    both = t.audit_reward.is_not(None)
    right = case((t.correct.is_(True), 1.0), (t.correct.is_(False), 0.0))
    query = (
        select(
            t.reward_source.label("source"),
            func.count().label("answers"),
            *(func.count(case((t.reward_status == status, 1))).label(status) for status in SCORES),
            func.avg(t.reward).label("reward"),
            func.avg(right).label("correct"),
            func.avg(t.sampled * 1.0).label("length"),
            func.avg(t.reward_seconds).label("seconds"),
            func.max(t.reward_seconds).label("slowest"),
            func.count(t.audit_status).label("audits"),
            func.count(case((t.audit_status != "ok", 1))).label("audits_failed"),
            func.avg(case((both, t.reward - t.audit_reward))).label("gap"),
            func.count(case((t.reward > t.audit_reward, 1))).label("paid_more"),
            func.count(case((t.reward < t.audit_reward, 1))).label("paid_less"),
        )
        .where(*scored)
        .group_by(t.reward_source)
        .order_by(t.reward_source)
    )
    rows = [  # PostgreSQL averages to Decimals
        {name: float(x) if isinstance(x, Decimal) else x for name, x in row._mapping.items()}
        for row in reader.rows(query)
    ]
    for row in rows:
        for column, error in (("error", t.reward_error), ("audit_error", t.audit_error)):
            failed = select(error).where(*scored, t.reward_source == row["source"])
            newest = failed.where(error.is_not(None)).order_by(t.rewarded_at.desc())
            row[column] = reader.value(newest.limit(1))
    return rows


def reward_lengths(
    run_dir: Path, evaluation: int | None = None, *, newest: int = 1000
) -> "pd.DataFrame":
    """trajectory_id, source, length (sampled tokens), reward, correct of scored answers. Newest
    first: training answers, or those of an evaluation."""
    reader, t = open_run(run_dir), Trajectory
    columns = (t.trajectory_id, t.reward_source.label("source"), t.sampled.label("length"))
    query = (
        select(*columns, t.reward, t.correct)
        .where(*_scored(reader, evaluation), t.reward.is_not(None))
        .order_by(t.trajectory_id.desc())
        .limit(newest)
    )
    return reader.frame(query)


def reward_sample(
    run_dir: Path, evaluation: int | None = None, *, most: int = MAX_SCORINGS
) -> "pd.DataFrame":
    """Scorings of training answers or of an evaluation, in order; at most about `most`.

    x (seconds since the run's first record), source, status, reward, correct, seconds, parts (a
    dict, or None). Of more than `most` every n-th is taken, by its id."""
    reader, t = open_run(run_dir), Trajectory
    last = reader.value(select(func.max(t.trajectory_id)).where(t.run == reader.key)) or 0
    query = select(
        (t.rewarded_at - reader.started_at()).label("x"),
        t.reward_source.label("source"),
        t.reward_status.label("status"),
        t.reward,
        t.correct,
        t.reward_seconds.label("seconds"),
        t.reward_parts.label("parts"),
    )
    step = -(-(last + 1) // most)
    if step > 1 and evaluation is None:
        # 0, step, 2 step, ...: each is one step in the primary key; a scan would read every answer.
        first = select(literal(0).label("id")).cte("ids", recursive=True)
        ids = first.union_all(select(first.c.id + step).where(first.c.id + step <= last))
        query = query.select_from(ids).join(t, t.trajectory_id == ids.c.id)
    query = query.where(*_scored(reader, evaluation))
    return reader.frame(query.order_by(t.rewarded_at, t.trajectory_id))


class RewardFailures(NamedTuple):
    """Scorings of a source that failed in one way: number, and newest trajectory."""

    source: str
    status: str
    number: int
    trajectory_id: int


def reward_failures(run_dir: Path) -> list[RewardFailures]:
    """The scorings of training and of evaluations that gave no score, most first."""
    reader, t = open_run(run_dir), Trajectory
    query = (
        select(t.reward_source, t.reward_status, func.count(), func.max(t.trajectory_id))
        .where(t.run == reader.key, t.reward_error.is_not(None), t.purpose != "probe")
        .group_by(t.reward_source, t.reward_status)
        .order_by(func.count().desc(), t.reward_source)
    )  # fmt: skip
    return [RewardFailures(*row) for row in reader.rows(query)]


class RewardAlert(NamedTuple):
    """An alert of a source. `at`: when it was raised, seconds since the epoch; `since`, `until`:
    seconds since the run's first record, from the commit of the update before to that moment."""

    at: float
    text: str
    source: str
    since: float
    until: float


def reward_alerts(run_dir: Path, most: int) -> list[RewardAlert]:
    """The newest alerts of the monitors of rewards, newest first."""
    reader = open_run(run_dir)
    began = reader.started_at()
    before = (
        select(func.max(Update.committed_at))
        # Not by time: an update's alerts are made after its commit, and written before it.
        .where(Update.run == Event.run, Update.offset < Event.offset)
        .scalar_subquery()
    )
    query = (
        select(Event.at, Event.text, before)
        .where(Event.run == reader.key, Event.kind == ALERT)
        .order_by(Event.offset.desc())
        .limit(most)
    )
    return [
        RewardAlert(at, said, said.partition(": ")[0], (since or began) - began, at - began)
        for at, said, since in reader.rows(query)
    ]


def alert_texts(reader: RunReader) -> list[str]:
    """Texts of the alerts of the reward monitors, in order."""
    query = (
        select(Event.text)
        .where(Event.run == reader.key, Event.kind == ALERT)
        .order_by(Event.offset)
    )
    return [text for (text,) in reader.rows(query)]


def _scored(reader: RunReader, evaluation: int | None) -> list[ColumnElement[bool]]:
    t = Trajectory
    mine = [t.purpose == "train"] if evaluation is None else answers_of(reader, evaluation)
    return [t.run == reader.key, *mine, t.reward_status.is_not(None)]
