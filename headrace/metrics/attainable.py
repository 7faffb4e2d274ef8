"""The attainable share: how much of the returns' variance a prefix of an answer determines.

In: returns of several continuations of each of some prefixes. Out: one less the mean variance
within a prefix over the variance of all, which no value model can exceed; intervals over prompts.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

ENOUGH = 64
"""Number of prefixes under which a run says nothing of it."""
Prefix = tuple[int, Sequence[float]]
"""The number of a prompt, and at least two returns of continuations of one prefix."""


def attainable(prefixes: Sequence[Prefix]) -> float:
    """Return the share of the returns' variance that is not within prefixes; NaN: all are equal."""
    within = np.mean([np.var(returns, ddof=1) for _, returns in prefixes])
    whole = np.var(np.concatenate([returns for _, returns in prefixes]))
    return float(1.0 - within / whole) if whole else float("nan")


def interval(figure: Callable[[npt.NDArray[np.int64]], float], prompts: int) -> tuple[float, float]:
    """Return a 95 % interval over resampled prompts; `figure` gets their counts."""
    draw = np.random.default_rng(0)
    found = [
        figure(np.bincount(draw.integers(prompts, size=prompts), minlength=prompts))
        for _ in range(200)
    ]
    low, high = np.nanquantile(found, [0.025, 0.975])
    return float(low), float(high)


def attainable_interval(prefixes: Sequence[Prefix]) -> tuple[float, float]:
    """Return the attainable share's 95 % interval over the prompts of these prefixes."""
    number = {prompt: i for i, prompt in enumerate(dict.fromkeys(p for p, _ in prefixes))}

    def of(counts: npt.NDArray[np.int64]) -> float:
        return attainable([p for p in prefixes for _ in range(counts[number[p[0]]])] or prefixes)

    return interval(of, len(number))
