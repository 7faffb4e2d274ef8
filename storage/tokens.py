"""Everything known about each token of a response, side by side.

In: the response, its windows as they went into updates, what the learner saw of them. Out: arrays
of one length. Where a token was not trained (yet) its update is -1 and what the learner saw is NaN.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.protocol.messages import TokenDiagnostics
from headrace.protocol.streams import Float32, Int32
from storage.diagnostics import WindowKey
from storage.responses import Response

Int64 = npt.NDArray[np.int64]


class TokenTable(NamedTuple):
    """One entry a response token, [T] each."""

    token_ids: Int32
    logprobs: Float32
    versions: Int64
    window_index: Int32
    """-1: in no committed window."""
    trained_at_update: Int64
    loss_mask: npt.NDArray[np.uint8]
    """1: the token was in the policy loss of a committed update."""
    learner_logprobs: Float32
    values: Float32
    advantages: Float32
    returns: Float32
    """Discounted reward from here (Monte-Carlo); NaN without a reward."""


def token_table(
    response: Response,
    windows: Sequence[Any],
    diagnostics: Mapping[WindowKey, TokenDiagnostics],
    reward: float | None,
    gamma: float,
) -> TokenTable:
    """Join a response with rows of the windows table and their diagnostics."""
    size = len(response.token_ids)
    nan = np.full(size, np.nan, np.float32)
    table = TokenTable(
        *response,
        window_index=np.full(size, -1, np.int32),
        trained_at_update=np.full(size, -1, np.int64),
        loss_mask=np.zeros(size, np.uint8),
        learner_logprobs=nan,
        values=nan.copy(),
        advantages=nan.copy(),
        returns=nan.copy(),
    )
    if reward is not None:
        table.returns[:] = reward * np.float64(gamma) ** np.arange(size - 1, -1, -1)
    for window in windows:
        if window.state != "trained":
            continue
        here = slice(window.start, window.end)
        table.window_index[here] = window.index
        table.trained_at_update[here] = window.update
        table.loss_mask[here] = _loss_mask(
            response.logprobs[here], response.versions[here], window.dropped
        )
        seen = diagnostics.get((window.lineage, window.update, window.window_id))
        if seen is not None:
            table.learner_logprobs[here] = seen.logprobs
            table.values[here] = seen.values
            table.advantages[here] = seen.advantages
    return table


def _loss_mask(
    logprobs: Float32, versions: Int64, dropped: Mapping[str, int]
) -> npt.NDArray[np.uint8]:
    """Which tokens a window trained, from how many it left out: the non-finite ones, then the
    oldest, then the last before the cut, or all that was left of an overlong response."""
    mask = np.ones(len(logprobs), np.bool_)
    if dropped.get("overlong"):
        return np.zeros(len(logprobs), np.uint8)
    if dropped.get("non_finite"):
        mask &= np.isfinite(logprobs)
    if dropped.get("stale"):
        left = np.flatnonzero(mask)
        oldest = left[np.argsort(versions[left], kind="stable")]
        mask[oldest[: dropped["stale"]]] = False
    if dropped.get("boundary_mask"):
        mask[np.flatnonzero(mask)[-dropped["boundary_mask"] :]] = False
    return mask.astype(np.uint8)
