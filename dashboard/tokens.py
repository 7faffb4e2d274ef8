"""One response as HTML, each token coloured by what is known of it.

In: a trajectory's detail. Out: HTML. A response is untrusted: whatever it says is escaped and shown
as text. Colour says how much or which; the exact numbers are in each token's tooltip.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from dashboard.palette import BLUE, ORANGE, PURPLE, TEAL, tint
from storage.queries import TrajectoryDetail

Colouring = Literal["logprob", "value", "advantage", "version"]
COLOURINGS: dict[Colouring, str] = {
    "logprob": "Surprise: -logprob under the weights that sampled the token. Strong: unlikely.",
    "value": "What the critic expected the reward to be, before the update. Strong: high.",
    "advantage": "Blue: better than the critic expected, made likelier. Orange: worse.",
    "version": "The weights that sampled the token. The colour changes where new weights came in.",
}
MAX_TOKENS = 2000
"""Most tokens on the page at once."""
_VERSIONS = (BLUE, ORANGE, TEAL, PURPLE)
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


def colour_values(detail: TrajectoryDetail, by: Colouring) -> npt.NDArray[np.float64]:
    """The number behind each token's colour, [T]; NaN where it is not known."""
    tokens = detail.tokens
    arrays = {
        "logprob": -tokens.logprobs,
        "value": tokens.values,
        "advantage": tokens.advantages,
        "version": tokens.versions,
    }
    return np.asarray(arrays[by], dtype=np.float64)


def colour_scale(values: npt.NDArray[np.float64], by: Colouring) -> Scale:
    """Ends at the 2nd and 98th percentile, so that one token does not pale the others."""
    known = values[np.isfinite(values)]
    if not known.size:
        return Scale(0.0, 0.0, 1.0)
    low, high = (float(v) for v in np.percentile(known, (2, 98)))
    if by == "advantage":
        reach = max(abs(low), abs(high), 1e-6)
        return Scale(-reach, 0.0, reach)
    low = 0.0 if by == "logprob" else low
    return Scale(low, low, max(high, low + 1e-6))


def background(value: float, by: Colouring, scale: Scale) -> str | None:
    """A token's background as CSS; None where nothing is known."""
    if not math.isfinite(value):
        return None
    if by == "version":
        return tint(_VERSIONS[int(value) % len(_VERSIONS)], 0.3)
    if by == "advantage":
        strength = min(1.0, abs(value) / scale.high)
        return tint(BLUE if value >= 0 else ORANGE, strength * _STRONGEST)
    strength = (value - scale.low) / (scale.high - scale.low)
    colour = ORANGE if by == "logprob" else TEAL
    return tint(colour, min(1.0, max(0.0, strength)) * _STRONGEST)


def window_cuts(detail: TrajectoryDetail) -> list[Cut]:
    """Where windows begin, and what became of each."""
    words = {"trained": "trained in", "taken": "is with", "skipped": "skipped by", "ready": "from"}
    return [
        Cut(w["start"], f"window {w['index']}: {words[w['state']]} update {w['update']}")
        for w in detail.windows.to_dict("records")
    ]


def token_html(detail: TrajectoryDetail, by: Colouring, first: int = 0) -> str:
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


def scale_html(detail: TrajectoryDetail, by: Colouring) -> str:
    """The legend of the colours."""
    values = colour_values(detail, by)
    known = values[np.isfinite(values)]
    if not known.size:
        return '<div class="hr-scale">not known yet: no update has trained this response</div>'
    if by == "version":
        return f'<div class="hr-scale">{_version_keys(sorted({int(v) for v in known}))}</div>'
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
    is_out = detail.tokens.trained_at_update[i] >= 0 and not detail.tokens.loss_mask[i]
    kind = ' class="out"' if is_out else ""
    text = escape(_VISIBLE.get(piece, piece))
    return f'<span{kind}{style} title="{escape(_tooltip(detail, i, piece))}">{text}</span>'


def _tooltip(detail: TrajectoryDetail, i: int, piece: str) -> str:
    t = detail.tokens
    lines = [
        f"{piece!r} (id {t.token_ids[i]}) at {i}",
        f"logprob {t.logprobs[i]:.4f}, weights {t.versions[i]}",
    ]
    if t.trained_at_update[i] >= 0:
        lines.append(f"window {t.window_index[i]}, update {t.trained_at_update[i]}")
        if not t.loss_mask[i]:
            lines.append("not in the loss")
    if math.isfinite(t.values[i]):
        lines.append(f"value {t.values[i]:.3f}, advantage {t.advantages[i]:.3f}")
        lines.append(f"logprob at the update {t.learner_logprobs[i]:.4f}")
    return "\n".join(lines)


def _version_keys(versions: Sequence[int]) -> str:
    shown = versions[:12]
    keys = "".join(
        f'<span><span class="hr-dot" style="background:'
        f'{tint(_VERSIONS[v % len(_VERSIONS)], 0.6)}"></span>{v}</span>'
        for v in shown
    )
    return f"weights {keys}" + (" ..." if len(versions) > len(shown) else "")
