"""Running statistics of the sampler's logprobs in an answer so far.

In: the logprobs of sampled tokens, in their order. Out: the statistics before each of them, as a
value model reads them. Promises: those before a token never depend on it or on later ones; an
answer cut into windows has the same ones as the whole answer, if each window brings the state at
its start. A token without a finite logprob counts as certain.
"""

import numpy as np
import numpy.typing as npt

from headrace.protocol.token_spans import Float32

UNLIKELY = -1.5
"""Nats. A token below is counted: the policy would seldom have written it."""
_LEAST, _MOST_UNLIKELY, _LEAST_SUM = -8.0, 5.0, -60.0
START = [0.0] * 5
"""Before any token: the least logprob, unlikely tokens, the sum, the last and the last but one."""
STATISTICS = 6


def state_after(logprobs: Float32) -> list[float]:
    """[5] the state behind these tokens, from an answer's first sampled one on."""
    state: list[float] = _states(logprobs, START)[-1].tolist()
    return state


def before_each(logprobs: Float32, start: list[float]) -> Float32:
    """[N + 1, STATISTICS] what a value model reads before each of N tokens, and behind the last
    one; `start` [5] is the state before the first."""
    least, unlikely, total, last, before_last = _states(logprobs, start).T
    columns = [
        np.maximum(least, _LEAST),
        np.minimum(unlikely, _MOST_UNLIKELY),
        unlikely > 0,
        np.maximum(total, _LEAST_SUM) / 10,
        np.maximum(last, _LEAST),
        np.maximum(before_last, _LEAST),
    ]
    return np.stack(columns, axis=1).astype(np.float32)


def _states(logprobs: Float32, start: list[float]) -> npt.NDArray[np.float64]:
    """[N + 1, 5]"""
    known = np.where(np.isfinite(logprobs), logprobs, 0.0).astype(np.float64)
    least, unlikely, total, last, before_last = start
    lasts = np.concatenate([[before_last, last], known])
    return np.stack(
        [
            np.minimum.accumulate(np.concatenate([[least], known])),
            unlikely + np.concatenate([[0], np.cumsum(known < UNLIKELY)]),
            total + np.concatenate([[0.0], np.cumsum(known)]),
            lasts[1:],
            lasts[:-1],
        ],
        axis=1,
    )
