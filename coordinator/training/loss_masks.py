"""Loss masks: the tokens of a window that are trained, and reasons for the others.

In: a window, the age of its tokens, the rules. Out: a weight for each position and the masked runs.
Promise: both come from the same array, so counts are those of the trained tokens; a token for which
several reasons hold is counted under the first of them.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.config.validation.batch_rules import BatchRules
from headrace.protocol.records.record_types import DropReason, MaskedRun
from headrace.protocol.token_spans import Float32, Weight
from headrace.trajectory.trajectories import Trajectory
from headrace.trajectory.windows import Window


@dataclass(frozen=True)
class WindowMask:
    """A window's part in the loss.

    Attributes:
        weights: [end - start] each position's weight; 0 for inserted and masked tokens. runs: the
        masked sampled tokens and the reasons. trained: [end - start] bool, tokens in the loss.
    """

    weights: Float32
    runs: list[MaskedRun]
    trained: npt.NDArray[np.bool_]


def mask_window(
    trajectory: Trajectory, window: Window, ages: npt.NDArray[np.int64], rules: BatchRules
) -> WindowMask:
    """Return the masks of a window whose tokens are `ages` updates old."""
    size = window.end - window.start
    sampled = np.zeros(size, np.bool_)
    for start, end in trajectory.sampled_between(window.start, window.end):
        sampled[start - window.start : end - window.start] = True
    margin = 0 if window.final else rules.boundary_mask
    border = np.ones(size, np.bool_)
    if rules.by_turn:
        # The border is that of a turn that goes on, and ends with it.
        last = trajectory.turns_between(window.start, window.end)[-1]
        border[: max(0, last.start - window.start)] = False
        margin = 0 if last.ended else margin
    left = sampled[::-1].cumsum()[::-1]  # sampled tokens from here to the window's end
    truncated = rules.skips_truncated and trajectory.status == "truncated"
    logprobs = trajectory.logprobs[window.start : window.end]
    weights = _weights(trajectory, window, rules)
    held_by: dict[DropReason, npt.NDArray[np.bool_]] = {
        "non_finite": ~np.isfinite(logprobs),
        "stale": ages > rules.max_age,
        "boundary_mask": (left <= margin) & border,
        "overlong": np.full(size, truncated),
        "zero_weight": weights <= 0,
    }
    codes = np.zeros(size, np.int64)
    for code, reason in reversed(list(enumerate(held_by, start=1))):
        codes[held_by[reason]] = code
    codes[~sampled] = -1
    trained = codes == 0
    runs = _runs(codes, list(held_by), window.start)
    return WindowMask(np.where(trained, weights, np.float32(0.0)), runs, trained)


def _weights(trajectory: Trajectory, window: Window, rules: BatchRules) -> Float32:
    """Return [end - start] the weight stream: 1 by default, 0 under a masked mark."""
    weights = np.ones(window.end - window.start, np.float32)
    zeros = [Weight(0.0, m.start, m.end) for m in trajectory.marks if m.name in rules.masked_marks]
    for run in [*trajectory.weights, *zeros]:
        if run.start < window.end and run.end > window.start:
            first = max(run.start, window.start) - window.start
            weights[first : run.end - window.start] = run.value
    return weights


def _runs(codes: npt.NDArray[np.int64], reasons: list[DropReason], offset: int) -> list[MaskedRun]:
    """Return the runs of equal positive codes, which number the reasons from 1 on."""
    edges = np.flatnonzero(np.diff(codes, prepend=-2, append=-2))
    borders = zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    return [
        MaskedRun(reasons[codes[first] - 1], offset + first, offset + last, last - first)
        for first, last in borders
        if codes[first] > 0
    ]
