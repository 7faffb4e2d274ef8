"""Tokens that were not trained, each with its reason."""

from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import select

from headrace.config.run import RunConfig
from headrace.run_folder import read_config
from storage.reader import RunReader, open_run
from storage.tables import Drop, Trajectory, Update, Window

if TYPE_CHECKING:
    import pandas as pd

_COLUMNS = ["trajectory_id", "start", "end", "update", "reason", "tokens", "at"]
Row = tuple[int, int, int, int | None, str, int, float | None]


def dropped_windows(run_dir: Path, *, limit: int = 1000, offset: int = 0) -> "pd.DataFrame":
    """One row a window and reason, newest first: trajectory_id, start, end, update (empty where the
    tokens were in no batch), reason, tokens, at."""
    import pandas as pd

    reader = open_run(run_dir)
    config = read_config(run_dir)
    most = offset + limit
    rows = [
        *_outside_batches(reader, most),
        *_in_batches(reader, most),
        *_unscored(reader, config, most),
    ]
    rows.sort(key=lambda row: row[-1] or 0.0, reverse=True)
    return pd.DataFrame(rows[offset:most], columns=_COLUMNS)


def _outside_batches(reader: RunReader, most: int) -> list[Row]:
    query = (
        select(Drop.trajectory_id, Drop.start, Drop.end, Drop.reason, Drop.tokens, Drop.at)
        .where(Drop.run == reader.key)
        .order_by(Drop.offset.desc())
        .limit(most)
    )
    return [
        (trajectory, start, end, None, reason, tokens, at)
        for trajectory, start, end, reason, tokens, at in reader.rows(query)
    ]


def _in_batches(reader: RunReader, most: int) -> list[Row]:
    """Masked tokens of trained windows, and all tokens of skipped updates."""
    query = (
        select(Window, Update.committed_at)
        .join(
            Update,
            (Update.run == Window.run)
            & (Update.lineage == Window.lineage)
            & (Update.update == Window.update),
        )
        .where(Window.run == reader.key, Window.state.in_(["trained", "skipped"]))
        .where((Window.trained < Window.end - Window.start) | (Window.state == "skipped"))
        .order_by(Window.offset.desc())
        .limit(most)
        .with_only_columns(*Window.__table__.columns, Update.committed_at)
    )
    return [
        (w.trajectory_id, w.start, w.end, w.update, reason, tokens, w.committed_at)
        for w in reader.rows(query)
        for reason, tokens in (
            {"non_finite": w.end - w.start} if w.state == "skipped" else w.dropped
        ).items()
    ]


def _unscored(reader: RunReader, config: RunConfig, most: int) -> list[Row]:
    """Tokens whose trajectory could not be scored or could not be finished: by the end of the
    response for unit `window`, all that no update took otherwise."""
    ended = Trajectory.status.in_(["failed", "aborted"])
    unscored = Trajectory.reward_status.is_not(None) & (Trajectory.reward_status != "ok")
    query = (
        select(Trajectory.trajectory_id, Trajectory.length, Trajectory.finished_at)
        .where(Trajectory.run == reader.key, Trajectory.purpose == "train", Trajectory.length > 0)
        .where(ended | unscored)
        .order_by(Trajectory.finished_at.desc())
        .limit(most)
    )
    rows: list[Row] = []
    for trajectory, length, at in reader.rows(query):
        start = 0
        if config.schedule.unit == "window":
            start = (length - 1) // config.window * config.window
        rows.append((trajectory, start, length, None, "reward_failed", length - start, at))
    return rows
