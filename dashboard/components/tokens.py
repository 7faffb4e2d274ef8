"""Colours of a response's tokens, and where two responses differ.

In: a trajectory's detail. Out: arrays, CSS and HTML. A response is untrusted: whatever of it gets
into HTML is escaped. Colour says how much or which; the exact numbers are those of `token_facts`.
What the learner reports can be a colour as soon as `headrace.protocol.messages.diagnostics` names
it.
"""

import math
from collections.abc import Sequence
from difflib import SequenceMatcher
from html import escape
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dashboard.palette import BLUE, ORANGE, PURPLE, TEAL, tint
from headrace.protocol.messages.diagnostics import TOKEN_COLUMNS, TokenColumn
from storage.queries import SOURCES, TrajectoryDetail

Floats = npt.NDArray[np.float64]
FIGURES = {column.singular.replace("_", " "): column for column in TOKEN_COLUMNS}
_STRONG = {"sequential": "Strong: high.", "diverging": "Blue: above 0. Orange: below."}


def _meaning(column: TokenColumn) -> str:
    return f"{column.meaning[0].upper()}{column.meaning[1:]}. {_STRONG[column.scale]}"


COLOURINGS: dict[str, str] = {
    "logprob": "Surprise: -logprob under the weights that sampled the token. Strong: unlikely.",
    "entropy": "How many ways the policy might have gone on from here.",
    **{name: _meaning(column) for name, column in FIGURES.items()},
    "ratio": "The learner's probability of the token when the update began, over the sampler's. "
    "Blue: above 1. Orange: below.",
    "age": "How many weight versions the learner was ahead of those that sampled the token when "
    "its window was taken. Strong: old.",
    "version": "The weights that sampled the token. The colour changes where new weights came in.",
    "loss weight": "How much the token counted in the policy's loss; 0: it was left out. Strong: "
    "much.",
    "source": "Who wrote the token: the policy, or a template, a tool or the environment.",
}
"""What tokens can be coloured by, and what it says."""
KINDS = ("version", "source")
"""Colourings that say which, and not how much."""
MAX_TOKENS = 2000
"""Maximum number of tokens on the page."""
_COLOURS = (BLUE, ORANGE, TEAL, PURPLE)
_STRONGEST = 0.62
_MIDDLES = {"ratio": 1.0, **{n: 0.0 for n, c in FIGURES.items() if c.scale == "diverging"}}
"""Where colourings that go both ways have no colour."""
_FROM_ZERO = ("logprob", "age", "loss weight")


class Scale(NamedTuple):
    """The range that colours span; `middle` is where there is none."""

    low: float
    middle: float
    high: float


def colour_values(detail: TrajectoryDetail, by: str) -> Floats:
    """The number behind each token's colour, [T]; NaN where it is not known."""
    tokens = detail.tokens
    if by in FIGURES:
        return np.asarray(tokens.figures[FIGURES[by].name], dtype=np.float64)
    match by:
        case "source":
            return np.asarray(tokens.sources, dtype=np.float64)
        case "entropy":
            return np.full(len(tokens.token_ids), np.nan)
        case "ratio":
            return np.exp(_sampled(detail, tokens.figures["learner_logprobs"] - tokens.logprobs))
        case "age":
            return ages(detail)
        case "loss weight":
            said = (tokens.trained_at_update >= 0) | (tokens.mask_reasons >= 0)
            return _sampled(detail, np.where(said, tokens.loss_weights * tokens.loss_mask, np.nan))
        case _:
            return _sampled(detail, tokens.versions if by == "version" else -tokens.logprobs)


def ages(detail: TrajectoryDetail) -> Floats:
    """[T] how many versions the newest weights were ahead of those that sampled the token when its
    window was taken; NaN where none was."""
    newest = np.full(len(detail.tokens.token_ids), np.nan)
    for window in detail.windows.to_dict("records"):
        if window["version"] is not None:
            newest[window["start"] : window["end"]] = window["version"]
    return _sampled(detail, newest - detail.tokens.versions)


def _sampled(detail: TrajectoryDetail, values: npt.NDArray[Any]) -> Floats:
    """NaN where nobody sampled."""
    return np.where(detail.tokens.versions >= 0, values, np.nan).astype(np.float64)


def unknown(detail: TrajectoryDetail, by: str) -> str:
    """Why no token has such a number."""
    if by == "entropy":
        return "not recorded for single tokens: its mean over each update is on Learning"
    if detail.row["purpose"] != "train":
        return "not known: no update trains the answers of an evaluation"
    if not (detail.tokens.trained_at_update >= 0).any():
        return "not known yet: no update has trained this response"
    if by == "return":
        return "not recorded: returns are known in the last window of an answer, once it is trained"
    return "not recorded: the run has no value model, or storage.token_diagnostics is off"


def colour_scale(values: Floats, by: str) -> Scale:
    """The scale of the colours. It ends at the 2nd and 98th percentile, so that a single extreme
    token does not make all others pale."""
    known = values[np.isfinite(values)]
    if not known.size:
        return Scale(0.0, 0.0, 1.0)
    low, high = (float(v) for v in np.percentile(known, (2, 98)))
    if by in _MIDDLES:
        middle = _MIDDLES[by]
        reach = max(abs(low - middle), abs(high - middle), 1e-6)
        return Scale(middle - reach, middle, middle + reach)
    low = 0.0 if by in _FROM_ZERO else low
    return Scale(low, low, max(high, low + 1e-6))


def background(value: float, by: str, scale: Scale) -> str | None:
    """A token's background as CSS; None where nothing is known."""
    if not math.isfinite(value):
        return None
    if by in KINDS:
        return tint(_COLOURS[int(value) % len(_COLOURS)], 0.3)
    strength = min(1.0, abs(value - scale.middle) / (scale.high - scale.middle))
    if by in _MIDDLES:
        return tint(BLUE if value >= scale.middle else ORANGE, strength * _STRONGEST)
    if value < scale.low:
        strength = 0.0
    return tint(ORANGE if by in ("logprob", "age") else TEAL, strength * _STRONGEST)


def window_cuts(detail: TrajectoryDetail) -> list[tuple[int, str]]:
    """(position, text) of the starts of windows, with the fate of each."""
    rows = detail.windows.to_dict("records")
    return [(int(w["start"]), f"window {w['index']}: {fate(w)}") for w in rows]


def fate(window: dict[Any, Any]) -> str:
    """Fate of a window so far."""
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


def scale_html(detail: TrajectoryDetail, by: str, scale: Scale | None = None) -> str:
    """The legend of the colours; `scale`: where it is not that of this response alone."""
    values = colour_values(detail, by)
    known = values[np.isfinite(values)]
    if not known.size:
        return f'<div class="hr-scale">{escape(unknown(detail, by))}</div>'
    if by in KINDS:
        return f'<div class="hr-scale">{_keys(sorted({int(v) for v in known}), by)}</div>'
    scale = scale or colour_scale(values, by)
    steps = [scale.low + (scale.high - scale.low) * k / 8 for k in range(9)]
    colours = ",".join(background(step, by, scale) or "transparent" for step in steps)
    return (
        f'<div class="hr-scale">{scale.low:.3g}'
        f'<i style="background:linear-gradient(90deg,{colours})"></i>{scale.high:.3g}</div>'
    )


def prompt_html(text: str) -> str:
    """The prompt, escaped."""
    return f'<div class="hr-prompt">{escape(text)}</div>'


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


LONGEST = 1500
"""Tokens of an answer that are compared; behind them everything differs."""


class Difference(NamedTuple):
    """[T] bool each, the tokens that are in one answer alone; `same` are in both, the first
    `together` of them in one piece from the beginning."""

    left: npt.NDArray[np.bool_]
    right: npt.NDArray[np.bool_]
    same: int
    together: int


def difference(left: Sequence[int], right: Sequence[int]) -> Difference:
    """Ratcliff and Obershelp's longest common pieces (`difflib`) of the first LONGEST tokens."""
    ours, theirs = list(left[:LONGEST]), list(right[:LONGEST])
    together = next(
        (i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b),
        min(len(ours), len(theirs)),
    )
    only_left, only_right = np.ones(len(left), bool), np.ones(len(right), bool)
    only_left[:together] = only_right[:together] = False
    matcher = SequenceMatcher(None, ours[together:], theirs[together:], autojunk=False)
    same = together
    for a, b, size in matcher.get_matching_blocks():
        only_left[together + a : together + a + size] = False
        only_right[together + b : together + b + size] = False
        same += size
    return Difference(only_left, only_right, same, together)


def difference_text(found: Difference, left: int, right: int) -> str:
    """Sentence on how trajectories `left` and `right` differ."""
    only_left, only_right = int(found.left.sum()), int(found.right.sum())
    if not only_left and not only_right:
        return f"Both say the same, all {found.same:,} tokens."
    return (
        f"They begin with the same {found.together:,} tokens and share {found.same:,}; "
        f"{only_left:,} are in {left} alone and {only_right:,} in {right} alone (underlined)."
    )
