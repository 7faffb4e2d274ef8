"""The attainable share: how much of the returns' variance a prefix of an answer determines.

In: returns of several continuations of each of some prefixes. Out: one less the mean variance
within a prefix over the variance of all, which no value model can exceed; intervals over prompts.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

ENOUGH = 64
"""Number of prefixes under which a run says nothing of it."""
Floats = npt.NDArray[np.float64]
Prefix = tuple[int, Sequence[float]]
"""The number of a prompt, and at least two returns of continuations of one prefix."""


def attainable(prefixes: Sequence[Prefix], weights: Floats | None = None) -> float:
    """Return the share of the returns' variance that is not within prefixes; NaN: all are equal.

    `weights`: of each prefix, [N]; default: all alike."""
    each = np.ones(len(prefixes)) if weights is None else weights
    within = np.average([np.var(returns, ddof=1) for _, returns in prefixes], weights=each)
    of_all = np.repeat(each, [len(returns) for _, returns in prefixes])
    whole = np.cov(np.concatenate([r for _, r in prefixes]), aweights=of_all, ddof=0)
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


def attainable_interval(
    prefixes: Sequence[Prefix], weights: Floats | None = None
) -> tuple[float, float]:
    """Return the attainable share's 95 % interval over the prompts of these prefixes."""
    prompts, number = np.unique([prompt for prompt, _ in prefixes], return_inverse=True)
    each = np.ones(len(prefixes)) if weights is None else weights
    return interval(lambda counts: attainable(prefixes, each * counts[number]), len(prompts))
