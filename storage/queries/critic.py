"""Values that the critic gave to ended answers, beside their returns: a sample.

In: a run and a range of updates. Out: one row per token and one row per cut, of answers whose last
window was trained in the range. Promises: no return is a guess. The learner reports returns of last
windows, where nothing is left to come; the return of a token of an earlier window is the return at
the last window's first token, discounted, and the rewards on the way. A divergence in the reward is
reported in last windows only, so that of earlier ones is left out. The sample is the same for the
same range, and bounded in answers, tokens and updates that are read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sqlalchemy import func, select

from headrace.protocol.messages.diagnostics import TokenDiagnostics
from storage.database.reader import RunReader, open_run, read_config
from storage.database.tables import Trajectory, Update, Window
from storage.journal.diagnostics import DiagnosticsReader, WindowKey

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
MAX_UPDATES = 48
MAX_ANSWERS = 1200
MAX_TOKENS = 400_000
_TOKENS = (
    *("trajectory_id", "window", "position", "length", "left", "finished", "in_loss"),
    *("value", "advantage", "return", "lam"),
)
_CUTS = (
    *("trajectory_id", "window", "position", "length", "update", "lam"),
    *("value", "next_value", "realised"),
)


@dataclass(frozen=True)
class CriticSample:
    """`answers` of the `of` answers that ended in the updates from `first` to `last`.

    A row of `tokens`: trajectory_id, window (its index), position, length (of the answer), left
    (sampled tokens after it in its window), finished (the answer ends with its window), in_loss,
    value (before the token, when its update began), advantage (as the loss read it), return (what
    came from the token on) and lam (of its window).

    A row of `cuts`, the ends of windows where the answer went on (with the boundary "outcome" those
    trained before it was scored): trajectory_id, window, position (of the first token after it),
    length, update, lam, value (at the window's last token), next_value (at the token after it, in
    the update that trained that; NaN where none did) and realised (what came after the cut)."""

    first: int
    last: int
    answers: int
    of: int
    tokens: "pd.DataFrame"
    cuts: "pd.DataFrame"


def critic_sample(run_dir: Path, first: int, last: int) -> CriticSample:
    """Sample the answers whose last window was trained in updates `first` to `last`: with
    `algorithm.turns = "turn"` that window alone. Empty where the learner reported no values."""
    import pandas as pd

    reader = open_run(run_dir)
    answers, of = _answers(reader, first, last)
    algorithm = read_config(run_dir).get("algorithm", {})
    advantages = algorithm.get("advantages") or {}
    gamma = float(advantages.get("gamma", 1.0))
    taken: dict[tuple[int, int], float] = {}
    if advantages.get("boundary") == "outcome":
        batches = select(Update.lineage, Update.update, Update.taken_at)
        rows = reader.rows(batches.where(Update.run == reader.key))
        taken = {(lineage, update): at for lineage, update, at in rows}
    # Where credit ends with a turn, nothing stored says what windows before the last one earned.
    kept = slice(-1 if algorithm.get("turns") == "turn" else None, None)
    windows = _windows(reader, list(answers))
    keys = [_key(w) for rows in windows.values() for w in rows if w.state == "trained"]
    seen = DiagnosticsReader(reader.diagnostics).read(keys) if keys else {}
    tokens: list[dict[str, Any]] = []
    cuts: list[tuple[Any, ...]] = []
    found = 0
    for answer, row in answers.items():
        parts = _parts(windows[answer], seen, row.rewards or [], gamma)[kept]
        tokens += [_token_columns(part, answer, row.length) for part in parts]
        cuts += _cut_rows(parts, row, taken)
        found += bool(parts)
    columns = {
        name: np.concatenate([np.zeros(0), *(part[name] for part in tokens)]) for name in _TOKENS
    }
    whole = ("trajectory_id", "window", "position", "length", "left")
    kinds: dict[str, Any] = dict.fromkeys(whole, np.int64)
    frame = pd.DataFrame(columns).astype(kinds | {"finished": bool, "in_loss": bool})
    ends = pd.DataFrame(cuts, columns=list(_CUTS)).astype(
        {name: float for name in ("lam", "value", "next_value", "realised")}
    )
    return CriticSample(first, last, found, of if found else 0, frame, ends)


def _answers(reader: RunReader, first: int, last: int) -> tuple[dict[int, Any], int]:
    """The sampled answers' rows by id, and the number of all."""
    ended = (
        Window.run == reader.key,
        Window.final.is_(True),
        Window.state == "trained",
        Window.update.between(first, last),
    )
    counts = reader.rows(select(Window.update, func.count()).where(*ended).group_by(Window.update))
    updates = sorted(update for update, _ in counts)
    if not updates:
        return {}, 0
    places = np.unique(np.linspace(0, len(updates) - 1, MAX_UPDATES).round().astype(int))
    chosen = [updates[place] for place in places]
    t = Trajectory
    # An order that has nothing to do with when an answer was begun, and does not change.
    order = (t.trajectory_id % 65536) * 40503 % 65536
    query = (
        select(t.trajectory_id, t.length, t.sampled, t.rewards, t.rewarded_at)
        .join(Window, (Window.run == t.run) & (Window.trajectory_id == t.trajectory_id))
        .where(*ended, Window.update.in_(chosen))
        .order_by(order, t.trajectory_id)
        .limit(MAX_ANSWERS)
    )
    rows: dict[int, Any] = {}
    room = MAX_TOKENS
    for row in reader.rows(query):
        room -= row.sampled
        if room < 0 and rows:
            break
        rows[row.trajectory_id] = row
    return dict(sorted(rows.items())), sum(count for _, count in counts)


def _windows(reader: RunReader, answers: Sequence[int]) -> dict[int, list[Any]]:
    """All windows of the answers, each answer's in order."""
    query = (
        select(Window.__table__)
        .where(Window.run == reader.key, Window.trajectory_id.in_(answers))
        .order_by(Window.trajectory_id, Window.index)
    )
    found: dict[int, list[Any]] = {answer: [] for answer in answers}
    for row in reader.rows(query) if answers else []:
        found[row.trajectory_id].append(row)
    return found


def _key(window: Any) -> WindowKey:
    return window.lineage, window.update, window.window_id


class _WindowFigures(NamedTuple):
    """Reported figures of a trained window's sampled tokens, which are its `places`."""

    places: Ints
    values: Floats
    advantages: Floats
    returns: Floats
    lam: float


class _WindowReturns(NamedTuple):
    """A trained window with what came: of its tokens (`returns`), and after it."""

    window: Any
    figures: _WindowFigures
    returns: Floats
    after: float


def _parts(
    windows: Sequence[Any],
    seen: Mapping[WindowKey, TokenDiagnostics],
    points: Sequence[Sequence[float]],
    gamma: float,
) -> list[_WindowReturns]:
    """An answer's trained windows with returns; none without figures of its last window."""
    last, figures = windows[-1], [_figures(window, seen) for window in windows]
    final = figures[-1]
    if final is None or not last.final:
        return []
    firsts = np.cumsum([0, *(window.tokens for window in windows)])
    border, closing = int(firsts[-2]), float(final.returns[0])
    paid = [(_earner(windows, firsts, figures, int(at)), value) for value, at in points]
    before = [(token, value) for token, value in paid if token < border]
    parts = []
    for window, first, known in zip(windows[:-1], firsts.tolist(), figures, strict=False):
        if known is not None:
            index = np.arange(first, first + len(known.places) + 1)
            *returns, after = returns_before(index, border, closing, before, gamma)
            parts.append(_WindowReturns(window, known, np.array(returns), float(after)))
    return [*parts, _WindowReturns(last, final, final.returns, 0.0)]


def returns_before(
    index: Ints, border: int, closing: float, paid: Sequence[tuple[int, float]], gamma: float
) -> Floats:
    """Returns of an answer's sampled tokens before number `border`.

    `closing`: return of token `border`; `paid`: (number of the token, its reward).

    R_i = gamma^(border - i) R_border + sum over tokens j, i <= j < border, of gamma^(j - i) r_j
    """
    found = closing * gamma ** (border - index).astype(np.float64)
    for token, value in paid:
        earlier = index <= token
        found[earlier] += value * gamma ** (token - index[earlier]).astype(np.float64)
    return found


def _figures(window: Any, seen: Mapping[WindowKey, TokenDiagnostics]) -> _WindowFigures | None:
    """None where no values were reported, or no returns of a last window."""
    row = seen.get(_key(window)) if window.state == "trained" else None
    if row is None or not {"values", "returns"} <= set(row.columns):
        return None
    places = np.flatnonzero(np.isfinite(row.columns["values"]))
    values, advantages, returns = (
        np.asarray(row.columns[name], np.float64)[places]
        for name in ("values", "advantages", "returns")
    )
    if not len(places) or (window.final and not np.isfinite(returns).all()):
        return None
    return _WindowFigures(places, values, advantages, returns, row.lam)


def _earner(
    windows: Sequence[Any], firsts: Ints, figures: Sequence[_WindowFigures | None], position: int
) -> int:
    """Number of the sampled token that earned a reward at a position: the last up to there."""
    place = max(0, sum(window.start <= position for window in windows) - 1)
    known, inside = figures[place], position - windows[place].start
    if known is None:
        before = min(inside + 1, windows[place].tokens)
    else:
        before = int(np.searchsorted(known.places, inside, side="right"))
    return int(firsts[place]) + before - 1


def _token_columns(part: _WindowReturns, answer: int, length: int) -> dict[str, npt.NDArray[Any]]:
    window, figures = part.window, part.figures
    positions, size = window.start + figures.places, len(figures.places)
    in_loss = np.ones(size, bool)
    for _, start, end, _ in window.masked:
        in_loss &= (positions < start) | (positions >= end)
    return {
        "trajectory_id": np.full(size, answer),
        "window": np.full(size, window.index),
        "position": positions,
        "length": np.full(size, length),
        "left": np.arange(size)[::-1],
        "finished": np.full(size, window.final),
        "in_loss": in_loss,
        "value": figures.values,
        "advantage": figures.advantages,
        "return": part.returns,
        "lam": np.full(size, figures.lam),
    }


def _cut_rows(
    parts: Sequence[_WindowReturns], row: Any, taken: Mapping[tuple[int, int], float]
) -> list[tuple[Any, ...]]:
    """`row`: the answer's. `taken`: when batches were taken, where outcomes known by then count."""
    firsts = {part.window.index: float(part.figures.values[0]) for part in parts}
    return [
        (
            *(row.trajectory_id, window.index, window.end, row.length, window.update, figures.lam),
            float(figures.values[-1]),
            firsts.get(window.index + 1, np.nan),
            after,
        )
        for window, figures, _, after in parts
        if not (window.final or (taken and row.rewarded_at <= taken[_key(window)[:2]]))
    ]
