"""One response as HTML, each token coloured by what is known of it.

In: a trajectory's detail. Out: HTML. A response is untrusted: whatever it says is escaped and shown
as text. Colour says how much or which; the exact numbers are in each token's tooltip. What the
learner reports can be a colour as soon as `headrace.protocol.diagnostics` names it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dashboard.palette import BLUE, ORANGE, PURPLE, TEAL, tint
from headrace.protocol.diagnostics import TOKEN_COLUMNS, TokenColumn
from storage.queries import MARKS, REASONS, SOURCES, TrajectoryDetail

_FIGURES = {column.singular: column for column in TOKEN_COLUMNS}
_STRONG = {"sequential": "Strong: high.", "diverging": "Blue: above 0. Orange: below."}


def _meaning(column: TokenColumn) -> str:
    return f"{column.meaning[0].upper()}{column.meaning[1:]}. {_STRONG[column.scale]}"


COLOURINGS: dict[str, str] = {
    "logprob": "Surprise: -logprob under the weights that sampled the token. Strong: unlikely.",
    **{name: _meaning(column) for name, column in _FIGURES.items()},
    "version": "The weights that sampled the token. The colour changes where new weights came in.",
    "source": "Who wrote the token: the policy, or a template, a tool or the environment.",
}
"""What tokens can be coloured by, and what it says."""
KINDS = ("version", "source")
"""Colourings that say which, and not how much."""
MAX_TOKENS = 2000
"""Most tokens on the page at once."""
_COLOURS = (BLUE, ORANGE, TEAL, PURPLE)
_STRONGEST = 0.62
_VISIBLE = {"\n": "\u21b5\n", "\r": "\u240d", "\t": "\u21e5\t", "": "\u2205"}


class Scale(NamedTuple):
    """The range that colours span; `middle` is where there is none."""

    low: float
    middle: float
    high: float


@dataclass(frozen=True)
class Cut:
    """A window begins at `position`."""

    position: int
    text: str


def colour_values(detail: TrajectoryDetail, by: str) -> npt.NDArray[np.float64]:
    """The number behind each token's colour, [T]; NaN where it is not known."""
    tokens = detail.tokens
    if by in _FIGURES:
        return np.asarray(tokens.figures[_FIGURES[by].name], dtype=np.float64)
    if by == "source":
        return np.asarray(tokens.sources, dtype=np.float64)
    values = tokens.versions if by == "version" else -tokens.logprobs
    return np.where(tokens.versions >= 0, values, np.nan).astype(np.float64)


def colour_scale(values: npt.NDArray[np.float64], by: str) -> Scale:
    """The scale of the colours. It ends at the 2nd and 98th percentile, so that a single extreme
    token does not make all others pale."""
    known = values[np.isfinite(values)]
    if not known.size:
        return Scale(0.0, 0.0, 1.0)
    low, high = (float(v) for v in np.percentile(known, (2, 98)))
    if _is_diverging(by):
        reach = max(abs(low), abs(high), 1e-6)
        return Scale(-reach, 0.0, reach)
    low = 0.0 if by == "logprob" else low
    return Scale(low, low, max(high, low + 1e-6))


def background(value: float, by: str, scale: Scale) -> str | None:
    """A token's background as CSS; None where nothing is known."""
    if not math.isfinite(value):
        return None
    if by in KINDS:
        return tint(_COLOURS[int(value) % len(_COLOURS)], 0.3)
    if _is_diverging(by):
        strength = min(1.0, abs(value) / scale.high)
        return tint(BLUE if value >= 0 else ORANGE, strength * _STRONGEST)
    strength = (value - scale.low) / (scale.high - scale.low)
    colour = ORANGE if by == "logprob" else TEAL
    return tint(colour, min(1.0, max(0.0, strength)) * _STRONGEST)


def _is_diverging(by: str) -> bool:
    return by in _FIGURES and _FIGURES[by].scale == "diverging"


def window_cuts(detail: TrajectoryDetail) -> list[Cut]:
    """Where windows begin, and what became of each."""
    rows = detail.windows.to_dict("records")
    return [Cut(int(w["start"]), f"window {w['index']}: {_fate(w)}") for w in rows]


def _fate(window: dict[Any, Any]) -> str:
    match window["state"]:
        case "trained":
            return f"trained in update {int(window['update'])}"
        case "taken":
            return f"is with update {int(window['update'])}"
        case "dropped":
            return f"dropped, {str(window['reason']).replace('_', ' ')}"
        case "ready":
            return "is ready"
        case _:
            return "waits for its reward or its group"


def token_html(detail: TrajectoryDetail, by: str, first: int = 0) -> str:
    """Tokens [first, first + MAX_TOKENS) of the response."""
    values = colour_values(detail, by)
    scale = colour_scale(values, by)
    cuts = {cut.position: cut.text for cut in window_cuts(detail)}
    last = min(len(values), first + MAX_TOKENS)
    spans: list[str] = []
    for i in range(first, last):
        if i in cuts:
            spans.append(f'<span class="cut">{escape(cuts[i])}</span>')
        spans.append(_token(detail, i, background(float(values[i]), by, scale)))
    return f'<div class="hr-tokens">{"".join(spans)}</div>'


def scale_html(detail: TrajectoryDetail, by: str) -> str:
    """The legend of the colours."""
    values = colour_values(detail, by)
    known = values[np.isfinite(values)]
    if not known.size:
        return '<div class="hr-scale">not known yet: no update has trained this response</div>'
    if by in KINDS:
        return f'<div class="hr-scale">{_keys(sorted({int(v) for v in known}), by)}</div>'
    scale = colour_scale(values, by)
    steps = [scale.low + (scale.high - scale.low) * k / 8 for k in range(9)]
    colours = ",".join(background(step, by, scale) or "transparent" for step in steps)
    return (
        f'<div class="hr-scale">{scale.low:.3g}'
        f'<i style="background:linear-gradient(90deg,{colours})"></i>{scale.high:.3g}</div>'
    )


def prompt_html(text: str) -> str:
    """The prompt, escaped."""
    return f'<div class="hr-prompt">{escape(text)}</div>'


def _token(detail: TrajectoryDetail, i: int, colour: str | None) -> str:
    piece = detail.pieces[i] if detail.pieces is not None else f"[{detail.tokens.token_ids[i]}]"
    style = f' style="background:{colour}"' if colour else ""
    kind = ' class="out"' if detail.tokens.mask_reasons[i] >= 0 else ""
    text = escape(_VISIBLE.get(piece, piece))
    return f'<span{kind}{style} title="{escape(_tooltip(detail, i, piece))}">{text}</span>'


def _tooltip(detail: TrajectoryDetail, i: int, piece: str) -> str:
    t = detail.tokens
    lines = [f"{piece!r} (id {t.token_ids[i]}) at {i}"]
    if t.versions[i] >= 0:
        lines.append(f"logprob {t.logprobs[i]:.4f}, weights {t.versions[i]}")
    else:
        lines.append(f"inserted: {SOURCES[t.sources[i]]}")
    if t.marks[i] >= 0:
        lines.append(MARKS[t.marks[i]])
    if t.trained_at_update[i] >= 0:
        lines.append(f"window {t.window_index[i]}, update {t.trained_at_update[i]}")
    if t.mask_reasons[i] >= 0:
        lines.append(f"not in the loss: {REASONS[t.mask_reasons[i]].replace('_', ' ')}")
    elif t.versions[i] >= 0 and t.loss_weights[i] != 1:
        lines.append(f"counts {t.loss_weights[i]:g} times in the loss")
    for name, column in _FIGURES.items():
        value = t.figures[column.name][i]
        if math.isfinite(value):
            lines.append(f"{name.replace('_', ' ')} {value:.4f}")
    return "\n".join(lines)


def _keys(codes: Sequence[int], by: str) -> str:
    shown = codes[:12]
    keys = "".join(
        f'<span><span class="hr-dot" style="background:'
        f'{tint(_COLOURS[code % len(_COLOURS)], 0.6)}"></span>'
        f"{SOURCES[code] if by == 'source' else code}</span>"
        for code in shown
    )
    what = "written by" if by == "source" else "weights"
    return f"{what} {keys}" + (" ..." if len(codes) > len(shown) else "")
