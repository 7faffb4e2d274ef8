"""One response as the browser gets it: each token's text, colour, numbers and fate.

In: a trajectory's detail. Out: plain lists, of which `static/tokens.js` makes the text. A response
is untrusted: it goes there as text and is never made part of HTML. What is not known is None.
"""

import json
import math
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from dashboard.components.tokens import (
    FIGURES,
    MAX_TOKENS,
    Scale,
    ages,
    background,
    colour_scale,
    colour_values,
    fate,
    window_cuts,
)
from dashboard.formatting import reason_name
from headrace.metrics.registry import METRICS
from storage.queries import MARKS, REASONS, SOURCES, TrajectoryDetail

DIGITS = 6
"""Significant digits of a number."""


def answer_data(
    detail: TrajectoryDetail,
    by: str,
    first: int = 0,
    *,
    scale: Scale | None = None,
    differs: npt.NDArray[np.bool_] | None = None,
) -> dict[str, Any]:
    """Tokens [first, first + MAX_TOKENS) of the response for the browser.

    Args:
        detail: the trajectory. by: what colours the tokens, of `tokens.COLOURINGS`. first: the
        first token. scale: of the colours, where it is not that of this response alone. differs:
        [T] the tokens that another answer does not have.

    `palette` has the colours and `colours` each token's place in it; `left_out` the tokens that
    are kept out of the loss; `borders` are [position, kind, text]; `columns` are the numbers by
    name, and `why` says of each token's place in `fates` whether it was trained.
    """
    here = slice(first, first + MAX_TOKENS)
    values = colour_values(detail, by)
    scale = scale or colour_scale(values, by)
    css = [background(float(value), by, scale) or "" for value in values[here]]
    palette = list(dict.fromkeys(css))
    places = {colour: place for place, colour in enumerate(palette)}
    every = fates(detail)[here]
    why = list(dict.fromkeys(every))
    size = len(values)
    return {
        "trajectory": int(detail.row["trajectory_id"]),
        "first": first,
        "size": size,
        "texts": texts(detail)[here],
        "palette": palette,
        "colours": [places[colour] for colour in css],
        "left_out": np.flatnonzero(detail.tokens.mask_reasons[here] >= 0).tolist(),
        "differs": [] if differs is None else np.flatnonzero(differs[here]).tolist(),
        "borders": [b for b in borders(detail) if first <= b[0] < first + MAX_TOKENS],
        "columns": {name: values[here] for name, values in columns(detail).items()},
        "why": why,
        "fates": [why.index(text) for text in every],
    }


def texts(detail: TrajectoryDetail) -> list[str]:
    """Each token's text; its id where there is no tokenizer."""
    if detail.pieces is not None:
        return list(detail.pieces)
    return [f"[{token}]" for token in detail.tokens.token_ids.tolist()]


def columns(detail: TrajectoryDetail) -> dict[str, list[Any]]:
    """Recorded columns of the tokens, by name; empty columns are left out."""
    t = detail.tokens
    is_sampled = t.versions >= 0
    found: dict[str, list[Any]] = {
        "id": t.token_ids.tolist(),
        "source": [SOURCES[code] for code in t.sources.tolist()],
        "turn": t.turns.tolist() if t.turns.any() else [],
        "mark": [MARKS[code] if code >= 0 else None for code in t.marks.tolist()],
        "weights": [v if v >= 0 else None for v in t.versions.tolist()],
        "logprob": _numbers(np.where(is_sampled, t.logprobs, np.nan)),
        **{name: _numbers(t.figures[column.name]) for name, column in FIGURES.items()},
        "ratio": _numbers(colour_values(detail, "ratio")),
        "age": _numbers(ages(detail)),
        "window": [w if w >= 0 else None for w in t.window_index.tolist()],
        "update": [u if u >= 0 else None for u in t.trained_at_update.tolist()],
        "loss weight": _numbers(colour_values(detail, "loss weight")),
    }
    return {name: values for name, values in found.items() if any(v is not None for v in values)}


def fates(detail: TrajectoryDetail) -> list[str]:
    """Why each token was trained or was not, [T]."""
    t = detail.tokens
    windows = {int(w["index"]): w for w in detail.windows.to_dict("records")}
    never = "" if detail.row["purpose"] == "train" else "never trained: it is of an evaluation"

    @cache
    def told(source: int, is_sampled: bool, window: int, reason: int, weight: float) -> str:
        if never and is_sampled:
            return never
        return _fate(SOURCES[source], is_sampled, windows.get(window), reason, weight)

    parts = (t.sources, t.versions >= 0, t.window_index, t.mask_reasons, t.loss_weights)
    return [told(*each) for each in zip(*(part.tolist() for part in parts), strict=True)]


def _fate(
    source: str, is_sampled: bool, window: dict[Any, Any] | None, reason: int, weight: float
) -> str:
    if not is_sampled:
        return f"not trained: it was inserted ({source}), and is context of what follows"
    if window is None:
        return "not trained yet: its window is not complete"
    if reason >= 0:
        name = REASONS[reason]
        info = METRICS.get(f"ledger/dropped/{name}")
        where = "with all of its window"
        if window["state"] != "dropped":
            where = f"its window was {fate(window)}"
        more = f" ({info.meaning})" if info else ""
        return f"not in the loss: {reason_name(name)}{more}, {where}"
    if window["state"] != "trained":
        return f"not trained yet: its window {fate(window)}"
    times = "" if weight == 1 else f", and counted {weight:g} times"
    return f"{fate(window)}{times}"


def borders(detail: TrajectoryDetail) -> list[list[Any]]:
    """[position, kind, text] of what begins before a token: a window (kind "cut"), a turn or what
    another has written ("turn"), and tokens of other weights ("weights")."""
    t = detail.tokens
    found: list[list[Any]] = [[at, "cut", text] for at, text in window_cuts(detail)]
    changes = np.flatnonzero((np.diff(t.turns) != 0) | (np.diff(t.sources) != 0)) + 1
    others = (t.sources != SOURCES.index("policy")).any() or t.turns.any()
    for i in [0, *changes.tolist()] if others and len(t.token_ids) else []:
        found.append([i, "turn", f"turn {t.turns[i]}: {SOURCES[t.sources[i]]}"])
    places = np.flatnonzero(t.versions >= 0)
    for place in np.flatnonzero(np.diff(t.versions[places])) + 1:
        i = int(places[place])
        found.append([i, "weights", f"weights {t.versions[i]}"])
    order = ("cut", "turn", "weights")
    return sorted(found, key=lambda border: (border[0], order.index(border[1])))


def answer_json(detail: TrajectoryDetail) -> str:
    """All that is known of a response, token by token, as JSON."""
    row = {k: v for k, v in detail.row.items() if v is not None}
    known, said, why = columns(detail), texts(detail), fates(detail)
    tokens = [
        {"position": i, "text": text, "why": why[i]}
        | {name: values[i] for name, values in known.items() if values[i] is not None}
        for i, text in enumerate(said)
    ]
    told = {"trajectory": row, "reward_parts": detail.reward_parts, "tokens": tokens}
    return json.dumps(told, ensure_ascii=False, indent=1, default=str)


def _numbers(values: npt.NDArray[Any]) -> list[float | None]:
    """Numbers rounded to the digits worth sending."""
    return [
        float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None for value in values.tolist()
    ]
