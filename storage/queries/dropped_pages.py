"""Windows and trajectories that lost tokens, some at a time: which tokens, and why.

In: what is asked for. Out: rows with the reasons in words that the ledger uses, and how many there
are. What was lost is read from the windows table alone (see `storage.queries.drops`).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sqlalchemy import ColumnElement, Text, and_, case, cast, func, or_, select

from storage.database.reader import RunReader, open_run
from storage.database.tables import Trajectory, Window
from storage.queries.drops import is_dropped, is_masked, losses, lost_tokens

if TYPE_CHECKING:
    import pandas as pd

Unit = Literal["window", "trajectory"]
Order = Literal["newest", "most tokens", "longest"]
_LOST = case((is_dropped(), Window.tokens), else_=Window.masked_tokens)
_ABOUT = (Trajectory.status, Trajectory.length, Trajectory.reward)
_WINDOW = (
    *("trajectory_id", "window", "start", "end", "reasons", "lost", "of", "update", "at"),
    *("status", "length", "reward"),
)
_TRAJECTORY = ("trajectory_id", "windows", "reasons", "lost", "of", "status", "length", "reward")


@dataclass(frozen=True)
class DroppedPage:
    """Some rows of those that match, and how many match."""

    rows: "pd.DataFrame"
    total: int


def dropped_page(
    run_dir: Path,
    *,
    by: Unit = "window",
    reasons: Sequence[str] = (),
    lengths: tuple[int | None, int | None] = (None, None),
    order: Order = "newest",
    limit: int = 100,
    offset: int = 0,
) -> DroppedPage:
    """Rows that lost tokens, for one of `reasons` (none: for any).

    `lengths`: bounds, included, of the trajectory's length. A window's row: trajectory_id, window
    (its index), start, end, reasons (tokens by reason), lost (of those reasons together), of
    (tokens sampled in it), update (empty where none had it), at, and status, length and reward of
    its trajectory. A trajectory's row has windows (how many lost tokens) in their place, and `of`
    counts all that the policy sampled.
    """
    reader = open_run(run_dir)
    wanted = [Window.run == reader.key, _for_any(reasons), *_within(lengths)]
    if by == "window":
        return _windows(reader, wanted, reasons, order, limit, offset)
    return _trajectories(reader, wanted, reasons, order, limit, offset)


def _windows(
    reader: RunReader,
    wanted: list[ColumnElement[bool]],
    reasons: Sequence[str],
    order: Order,
    limit: int,
    offset: int,
) -> DroppedPage:
    import pandas as pd

    first = {"newest": Window.at, "most tokens": _LOST, "longest": Trajectory.length}[order]
    query = (
        _joined(select(Window.__table__, *_ABOUT))
        .where(*wanted)
        .order_by(first.desc(), Window.window_id)
        .limit(limit)
        .offset(offset)
    )
    rows = []
    for w in reader.rows(query):
        lost = _reasons(w, reasons)
        rows.append(
            (
                *(w.trajectory_id, w.index, w.start, w.end, dict(lost), lost.total(), w.tokens),
                *(w.update, w.at, w.status, w.length, w.reward),
            )
        )
    count = _joined(select(func.count())).where(*wanted)
    return DroppedPage(pd.DataFrame(rows, columns=list(_WINDOW)), reader.value(count))


def _trajectories(
    reader: RunReader,
    wanted: list[ColumnElement[bool]],
    reasons: Sequence[str],
    order: Order,
    limit: int,
    offset: int,
) -> DroppedPage:
    import pandas as pd

    key = Window.trajectory_id
    first: Any = {
        "newest": func.max(Window.at),
        "most tokens": func.sum(_LOST),
        "longest": Trajectory.length,
    }[order]
    query = (
        _joined(select(key, Trajectory.sampled, *_ABOUT))
        .where(*wanted)
        .group_by(key, Trajectory.sampled, *_ABOUT)
        .order_by(first.desc(), key)
        .limit(limit)
        .offset(offset)
    )
    found = reader.rows(query)
    lost: dict[int, Counter[str]] = {row[0]: Counter() for row in found}
    windows: Counter[int] = Counter()
    every = _joined(select(Window.__table__)).where(*wanted, key.in_(list(lost)))
    for window in reader.rows(every):
        lost[window.trajectory_id] += _reasons(window, reasons)
        windows[window.trajectory_id] += 1
    rows = [
        (i, windows[i], dict(sorted(lost[i].items())), lost[i].total(), sampled, *about)
        for i, sampled, *about in found
    ]
    count = _joined(select(func.count(key.distinct()))).where(*wanted)
    return DroppedPage(pd.DataFrame(rows, columns=list(_TRAJECTORY)), reader.value(count))


def _joined(query: Any) -> Any:
    return query.select_from(Window).join(
        Trajectory,
        (Trajectory.run == Window.run) & (Trajectory.trajectory_id == Window.trajectory_id),
    )


def _for_any(reasons: Sequence[str]) -> ColumnElement[bool]:
    if not reasons:
        return lost_tokens()
    # A list of [reason, start, end, tokens] as JSON text, in whichever database.
    masked = or_(*(cast(Window.masked, Text).contains(f'"{reason}"') for reason in reasons))
    why = or_(is_dropped() & Window.reason.in_(reasons), is_masked() & masked)
    return and_(lost_tokens(), why)


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
