"""Tokens that were not trained, each once, with the reason.

A window was dropped as a whole, or an update trained it without some of its tokens: both are
written down in the windows table, and nothing else is asked.
"""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sqlalchemy import ColumnElement, and_, func, literal, or_, select

from storage.database.reader import RunReader, open_run
from storage.database.tables import Trajectory, Window
from storage.journal.responses import Int64

if TYPE_CHECKING:
    import pandas as pd

_ROWS = 50_000
"""Read at a time."""


def dropped_tokens(run_dir: Path) -> dict[str, int]:
    """Tokens by reason: what `ledger/dropped/REASON` counts."""
    reader = open_run(run_dir)
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
    """Tokens that were not trained, by length and reason, in `parts` equal parts of answers.

    Training answers that ended, the shortest first: longest (tokens of the part's longest answer),
    tokens (of all of them), and a column for each reason. Answers whose windows all lie in the
    value model's warm-up are left out: no policy update could have had them."""
    import pandas as pd

    reader = open_run(run_dir)
    ids, sampled = _ended(reader)
    lost = _lost(reader, ids)
    warmup = lost.get("value_warmup", np.zeros(len(ids), np.int64))
    kept = np.flatnonzero(warmup < sampled)
    kept = kept[np.lexsort((ids[kept], sampled[kept]))]
    lost = {reason: tokens[kept] for reason, tokens in sorted(lost.items()) if tokens[kept].any()}
    rows = []
    for part in range(parts):
        mine = slice(len(kept) * part // parts, len(kept) * (part + 1) // parts)
        if lengths := sampled[kept][mine].tolist():
            rows.append((lengths[-1], sum(lengths), *(int(t[mine].sum()) for t in lost.values())))
    return pd.DataFrame(rows, columns=["longest", "tokens", *lost])


def _ended(reader: RunReader) -> tuple[Int64, Int64]:
    """Ids of the training answers that ended, rising, and each one's sampled tokens."""
    query = (
        select(Trajectory.trajectory_id, Trajectory.sampled)
        .where(
            Trajectory.run == reader.key,
            Trajectory.purpose == "train",
            Trajectory.status.in_(["finished", "truncated"]),
        )
        .order_by(Trajectory.trajectory_id)
    )
    # A long run has millions: as objects they would fill the memory.
    blocks = [np.array([tuple(row) for row in rows]) for rows in reader.stream(query, _ROWS)]
    ids, sampled = np.concatenate([np.zeros((0, 2), np.int64), *blocks]).T
    return ids, sampled


def _lost(reader: RunReader, ids: Int64) -> dict[str, Int64]:
    """By reason how many tokens each of the answers lost."""
    import pandas as pd

    columns = (Window.trajectory_id, Window.reason, Window.tokens, Window.state, Window.masked)
    query = select(*columns).where(Window.run == reader.key, lost_tokens())
    found: dict[str, Int64] = {}
    for rows in reader.stream(query, _ROWS):
        lost = pd.DataFrame(
            [(row.trajectory_id, reason, n) for row in rows for reason, n in losses(row)],
            columns=["whose", "reason", "tokens"],
        )
        lost = lost[lost["whose"].isin(ids)]
        for reason, mine in lost.groupby("reason"):
            counts = found.setdefault(str(reason), np.zeros(len(ids), np.int64))
            np.add.at(counts, np.searchsorted(ids, mine["whose"]), mine["tokens"].to_numpy())
    return found


def losses(window: Any) -> list[tuple[str, int]]:
    """(reason, tokens) that a row of the windows table lost: as a whole, or per run."""
    if window.state == "dropped":
        return [(window.reason, window.tokens)]
    return [(reason, tokens) for reason, _, _, tokens in window.masked]


def is_dropped() -> ColumnElement[bool]:
    """A window that was dropped as a whole."""
    # The values are written out: only so does the index of windows that lost tokens serve.
    return Window.state == literal("dropped", literal_execute=True)


def is_masked() -> ColumnElement[bool]:
    """A window that was trained without some of its tokens."""
    return and_(Window.state == "trained", has_masks())


def has_masks() -> ColumnElement[bool]:
    """A window some of whose tokens its update keeps, or would have kept, out of the loss."""
    return Window.masked_tokens > literal(0, literal_execute=True)


def lost_tokens() -> ColumnElement[bool]:
    """A window that was dropped, or trained without some of its tokens."""
    # The second part says it all; the first is the index's own condition, so that it serves.
    return and_(or_(is_dropped(), has_masks()), or_(is_dropped(), is_masked()))
