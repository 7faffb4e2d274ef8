"""Scorings over the whole of a run: an even sample of them, bounded, whatever the run's length."""

from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import CTE, func, literal, select

from storage.reader import open_run
from storage.tables import Run, Trajectory

if TYPE_CHECKING:
    import pandas as pd

MOST = 20_000


def reward_sample(run_dir: Path, *, most: int = MOST) -> "pd.DataFrame":
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
    scored = (t.run == reader.key, t.purpose == "train", t.reward_status.is_not(None))
    step = -(-(last + 1) // most)
    if step > 1:
        ids = _every(step, last)
        query = query.select_from(ids).join(t, t.trajectory_id == ids.c.id)
    return reader.frame(query.where(*scored).order_by(t.rewarded_at, t.trajectory_id))


def _every(step: int, last: int) -> CTE:
    """0, step, 2 step and so on up to `last`: each id is one step in the primary key, where a scan
    would read every answer of a long run."""
    ids = select(literal(0).label("id")).cte("ids", recursive=True)
    return ids.union_all(select(ids.c.id + step).where(ids.c.id + step <= last))
