"""Tokens that were not trained, each once, with the reason.

A window was dropped as a whole, or an update trained it without some of its tokens: both are
written down in the windows table, and nothing else is asked.
"""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import ColumnElement, and_, func, or_, select

from storage.reader import RunReader, open_run
from storage.tables import Trajectory, Window

if TYPE_CHECKING:
    import pandas as pd

_COLUMNS = ["trajectory_id", "window", "start", "end", "update", "reason", "tokens", "at"]


def dropped_windows(run_dir: Path, *, limit: int = 1000, offset: int = 0) -> "pd.DataFrame":
    """One row a dropped window or masked run of tokens, newest first: trajectory_id, window (its
    index), start, end, update (empty where no update had it), reason, tokens, at."""
    import pandas as pd

    reader = open_run(run_dir)
    most = offset + limit
    query = (
        select(Window.__table__)
        .where(Window.run == reader.key, or_(is_dropped(), is_masked()))
        .order_by(Window.at.desc(), Window.window_id)
        .limit(most)
    )
    rows = [
        (w.trajectory_id, w.index, start, end, w.update, reason, tokens, w.at)
        for w in reader.rows(query)
        for reason, start, end, tokens in (
            w.masked if w.state == "trained" else [(w.reason, w.start, w.end, w.tokens)]
        )
    ]
    return pd.DataFrame(rows[offset:most], columns=_COLUMNS)


def dropped_tokens(run_dir: Path) -> dict[str, int]:
    """Tokens by reason: what `ledger/dropped/REASON` counts."""
    return count_dropped(open_run(run_dir))


def count_dropped(reader: RunReader) -> dict[str, int]:
    """`dropped_tokens` of a run that is open."""
    counts: Counter[str] = Counter()
    whole = (
        select(Window.reason, func.sum(Window.tokens))
        .where(Window.run == reader.key, is_dropped())
        .group_by(Window.reason)
    )
    for reason, tokens in reader.rows(whole):
        counts[reason] += int(tokens)
    parts = select(Window.masked).where(Window.run == reader.key, is_masked())
    for (masked,) in reader.rows(parts):
        for reason, _, _, tokens in masked:
            counts[reason] += tokens
    return dict(sorted(counts.items()))


def losses_by_length(run_dir: Path, parts: int = 10) -> "pd.DataFrame":
    """Training answers that ended, the shortest first, in `parts` parts of as many answers each:
    longest (tokens of the longest answer), tokens (of all of them), and a column for each reason
    with the tokens that were not trained for it. Answers whose windows all lie in the value
    model's warm-up are left out: no policy update could have had them."""
    import pandas as pd

    reader = open_run(run_dir)
    lost: dict[int, Counter[str]] = {}
    whole = select(Window.trajectory_id, Window.reason, Window.tokens)
    for trajectory_id, reason, tokens in reader.rows(
        whole.where(Window.run == reader.key, is_dropped())
    ):
        lost.setdefault(trajectory_id, Counter())[reason] += tokens
    some = select(Window.trajectory_id, Window.masked)
    for trajectory_id, masked in reader.rows(some.where(Window.run == reader.key, is_masked())):
        for reason, _, _, tokens in masked:
            lost.setdefault(trajectory_id, Counter())[reason] += tokens
    ended = reader.rows(
        select(Trajectory.trajectory_id, Trajectory.sampled)
        .where(
            Trajectory.run == reader.key,
            Trajectory.purpose == "train",
            Trajectory.status.in_(["finished", "truncated"]),
        )
        .order_by(Trajectory.sampled, Trajectory.trajectory_id)
    )
    kept = [
        (sampled, found)
        for trajectory_id, sampled in ended
        if (found := lost.get(trajectory_id, Counter())).get("value_warmup", 0) < sampled
    ]
    reasons = sorted({reason for _, found in kept for reason in found})
    rows = []
    for part in range(parts):
        mine = kept[len(kept) * part // parts : len(kept) * (part + 1) // parts]
        if mine:
            together = sum((found for _, found in mine), Counter[str]())
            tokens = sum(sampled for sampled, _ in mine)
            rows.append((mine[-1][0], tokens, *(together[reason] for reason in reasons)))
    return pd.DataFrame(rows, columns=["longest", "tokens", *reasons])


def is_dropped() -> ColumnElement[bool]:
    """A window that was dropped as a whole."""
    return Window.state == "dropped"


def is_masked() -> ColumnElement[bool]:
    """A window that was trained without some of its tokens."""
    return and_(Window.state == "trained", Window.masked_tokens > 0)
