"""Tokens that were not trained, each once, with the reason; and what lost them, some at a time.

A window was dropped as a whole, or an update trained it without some of its tokens: both are
written down in the windows table, and nothing else is asked. Reasons are in the ledger's words.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from sqlalchemy import ColumnElement, Text, and_, case, cast, func, literal, or_, select

from storage.database.reader import RunReader, open_run
from storage.database.tables import Trajectory, Window
from storage.journal.responses import Int64
from storage.queries.trajectories import RowPage

if TYPE_CHECKING:
    import pandas as pd

_ROWS = 50_000
"""Read at a time."""
# The values are written out: only so does the index of windows that lost tokens serve.
IS_DROPPED = Window.state == literal("dropped", literal_execute=True)
"""A window was dropped as a whole."""
HAS_MASKS = Window.masked_tokens > literal(0, literal_execute=True)
"""A window's update keeps, or would have kept, some of its tokens out of the loss."""
IS_MASKED = and_(Window.state == "trained", HAS_MASKS)
"""A window was trained without some of its tokens."""
# The second part says it all; the first is the index's own condition, so that it serves.
LOST_TOKENS = and_(or_(IS_DROPPED, HAS_MASKS), or_(IS_DROPPED, IS_MASKED))
"""A window was dropped, or trained without some of its tokens."""


def dropped_tokens(run_dir: Path) -> dict[str, int]:
    """Tokens by reason: what `ledger/dropped/REASON` counts."""
    reader = open_run(run_dir)
    counts: Counter[str] = Counter()
    whole = (
        select(Window.reason, func.sum(Window.tokens))
        .where(Window.run == reader.key, IS_DROPPED)
        .group_by(Window.reason)
    )
    for reason, tokens in reader.rows(whole):
        counts[reason] += int(tokens)
    parts = select(Window.masked).where(Window.run == reader.key, IS_MASKED)
    # A long run with a boundary mask has millions.
    for (masked,) in chain.from_iterable(reader.stream(parts, _ROWS)):
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
    t = Trajectory
    query = (
        select(t.trajectory_id, t.sampled)
        .where(t.run == reader.key, t.purpose == "train", t.status.in_(["finished", "truncated"]))
        .order_by(t.trajectory_id)
    )
    # A long run has millions: as objects they would fill the memory.
    blocks = [np.array([tuple(row) for row in rows]) for rows in reader.stream(query, _ROWS)]
    ids, sampled = np.concatenate([np.zeros((0, 2), np.int64), *blocks]).T
    return ids, sampled


def _lost(reader: RunReader, ids: Int64) -> dict[str, Int64]:
    """By reason how many tokens each of the answers lost."""
    import pandas as pd

    columns = (Window.trajectory_id, Window.reason, Window.tokens, Window.state, Window.masked)
    query = select(*columns).where(Window.run == reader.key, LOST_TOKENS)
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


# -- pages -----------------------------------------------------------------------------------------

Unit = Literal["window", "trajectory"]
Order = Literal["newest", "most tokens", "longest"]
_LOST = case((IS_DROPPED, Window.tokens), else_=Window.masked_tokens)
_ABOUT = (Trajectory.status, Trajectory.length, Trajectory.reward)
_WINDOW: tuple[str, ...] = (
    *("trajectory_id", "window", "start", "end", "reasons", "lost", "of", "update", "at"),
    *("status", "length", "reward"),
)
_TRAJECTORY = ("trajectory_id", "windows", "reasons", "lost", "of", "status", "length", "reward")


def dropped_page(
    run_dir: Path,
    *,
    by: Unit = "window",
    reasons: Sequence[str] = (),
    lengths: tuple[int | None, int | None] = (None, None),
    order: Order = "newest",
    limit: int = 100,
    offset: int = 0,
) -> RowPage:
    """Rows that lost tokens, for one of `reasons` (none: for any).

    `lengths`: bounds, included, of the trajectory's length. A window's row: trajectory_id, window
    (its index), start, end, reasons (tokens by reason), lost (of those reasons together), of
    (tokens sampled in it), update (empty where none had it), at, and status, length and reward of
    its trajectory. A trajectory's row has windows (how many lost tokens) in their place, and `of`
    counts all that the policy sampled.
    """
    import pandas as pd

    reader = open_run(run_dir)
    wanted = [Window.run == reader.key, _for_any(reasons), *_within(lengths)]
    number: Any = func.count()
    query, key = select(Window.__table__, *_ABOUT), Window.window_id
    firsts = {"newest": Window.at, "most tokens": _LOST, "longest": Trajectory.length}
    first: Any = firsts[order]
    if by == "trajectory":
        key = Window.trajectory_id
        number, columns = func.count(key.distinct()), (key, Trajectory.sampled, *_ABOUT)
        query = select(*columns).group_by(*columns)
        first = func.sum(first) if order == "most tokens" else func.max(first)
    ordered = _joined(query).where(*wanted).order_by(first.desc(), key)
    found = reader.rows(ordered.limit(limit).offset(offset))
    total = reader.value(_joined(select(number)).where(*wanted))
    if by == "window":
        rows, names = _windows(found, reasons), _WINDOW
    else:
        rows, names = _trajectories(reader, found, wanted, reasons), _TRAJECTORY
    return RowPage(pd.DataFrame(rows, columns=list(names)), total)


def _windows(found: Sequence[Any], reasons: Sequence[str]) -> list[tuple[Any, ...]]:
    rows = []
    for w in found:
        lost = _reasons(w, reasons)
        rows.append(
            (
                *(w.trajectory_id, w.index, w.start, w.end, dict(lost), lost.total(), w.tokens),
                *(w.update, w.at, w.status, w.length, w.reward),
            )
        )
    return rows


def _trajectories(
    reader: RunReader,
    found: Sequence[Any],
    wanted: list[ColumnElement[bool]],
    reasons: Sequence[str],
) -> list[tuple[Any, ...]]:
    lost: dict[int, Counter[str]] = {row[0]: Counter() for row in found}
    windows: Counter[int] = Counter()
    mine = Window.trajectory_id.in_(list(lost))
    for window in reader.rows(_joined(select(Window.__table__)).where(*wanted, mine)):
        lost[window.trajectory_id] += _reasons(window, reasons)
        windows[window.trajectory_id] += 1
    return [
        (i, windows[i], dict(sorted(lost[i].items())), lost[i].total(), sampled, *about)
        for i, sampled, *about in found
    ]


def _joined(query: Any) -> Any:
    return query.select_from(Window).join(
        Trajectory,
        (Trajectory.run == Window.run) & (Trajectory.trajectory_id == Window.trajectory_id),
    )


def _for_any(reasons: Sequence[str]) -> ColumnElement[bool]:
    if not reasons:
        return LOST_TOKENS
    # A list of [reason, start, end, tokens] as JSON text, in whichever database.
    masked = or_(*(cast(Window.masked, Text).contains(f'"{reason}"') for reason in reasons))
    why = or_(IS_DROPPED & Window.reason.in_(reasons), IS_MASKED & masked)
    return and_(LOST_TOKENS, why)


def _within(lengths: tuple[int | None, int | None]) -> list[ColumnElement[bool]]:
    least, most = lengths
    found = [] if least is None else [Trajectory.length >= least]
    return found if most is None else [*found, Trajectory.length <= most]


def _reasons(window: Any, wanted: Sequence[str]) -> Counter[str]:
    """The tokens that a row of the windows table lost, by reason."""
    counts: Counter[str] = Counter()
    for reason, tokens in losses(window):
        if not wanted or reason in wanted:
            counts[reason] += tokens
    return counts
