"""Bias and spread of an advantage estimator at frozen states, judged by Monte-Carlo returns.

In: for each state s and action a, M continuations after (s, a) and M others from s alone, with the
return and the estimate of each. Out: figures over the states, each with a bootstrap interval over
the states. Pure functions of arrays; float64.

Legend: e, g an estimate and a return after (s, a); e', g' those of a continuation from s alone,
whose first action is drawn as well. All returns are undiscounted.

- The truth is A = E[g] - E[g'], its estimate mean(g) - mean(g').
- The bias at (s, a) is b = E[e] - A, its estimate mean(e - g) + mean(g'). Estimates and returns
  are of the same continuations, so what they share cancels. The mean of squares of such estimates
  is too large by their own noise, var(e - g)/M + var(g')/M with variances over M - 1, which is
  taken off at every state: what is left is unbiased for the mean of b^2, and may fall below 0
  where b is small (then it counts as 0).
- A part of b depends on s alone: E[e'], since E[A] over actions is 0. It acts as a baseline, and
  leaves the expected policy gradient as it is. The rest is the bias that moves the gradient,
  mean(e - g) - mean(e' - g'), with noise var(e - g)/M + var(e' - g')/M taken off.
- The spread is the standard deviation of e over continuations at one (s, a): the root of the mean
  over states of its variance.
- The correlation is that of E[e] with A over states, from moments freed of noise in the same way:
  var(e)/M off the variance of mean(e), var(g)/M + var(g')/M off that of the truth, and cov(e, g)/M
  off the covariance, because both use the same continuations. Noise can carry it past 1.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
FIGURES = (
    "bias", "rms_bias", "rms_gradient_bias", "spread", "rms_advantage", "correlation", "cut_share",
)  # fmt: skip


class Continuations(NamedTuple):
    """What an estimator said at one state: [M] each, and which of the first M were cut."""

    estimates: Floats
    returns: Floats
    estimates_from_state: Floats
    returns_from_state: Floats
    cut: npt.NDArray[np.bool_]


class Terms(NamedTuple):
    """What one state adds to each mean over states that `figures` reads."""

    bias: float
    squared_bias: float
    squared_gradient_bias: float
    variance: float
    estimate: float
    advantage: float
    squared_estimate: float
    squared_advantage: float
    product: float
    cut: float


def terms(state: Continuations) -> Terms:
    """The terms of one state, each freed of the noise of its M continuations. M is 2 or more."""
    e, g, e_state, g_state, cut = state
    count = len(e)
    error, error_state = e - g, e_state - g_state
    bias = error.mean() + g_state.mean()
    gradient_bias = error.mean() - error_state.mean()
    estimate, advantage = e.mean(), g.mean() - g_state.mean()
    noise = {
        name: x.var(ddof=1) / count
        for name, x in (("e", e), ("g", g), ("d", error), ("d'", error_state), ("g'", g_state))
    }
    shared = np.cov(e, g, ddof=1)[0, 1] / count
    values = (
        bias,
        bias**2 - noise["d"] - noise["g'"],
        gradient_bias**2 - noise["d"] - noise["d'"],
        noise["e"] * count,
        estimate,
        advantage,
        estimate**2 - noise["e"],
        advantage**2 - noise["g"] - noise["g'"],
        estimate * advantage - shared,
        cut.mean(),
    )
    return Terms(*(float(value) for value in values))


def figures(means: Floats) -> Floats:
    """[..., len(FIGURES)] from means over states of `Terms` [..., terms]; NaN for a correlation
    where either side has no variance left."""
    of = dict(zip(Terms._fields, np.moveaxis(means, -1, 0), strict=True))
    covariance = of["product"] - of["estimate"] * of["advantage"]
    variances = (of["squared_estimate"] - of["estimate"] ** 2) * (
        of["squared_advantage"] - of["advantage"] ** 2
    )
    known = (of["squared_estimate"] > of["estimate"] ** 2) & (variances > 0.0)
    correlation = np.where(known, covariance / np.sqrt(np.where(known, variances, 1.0)), np.nan)
    return np.stack(
        [
            of["bias"],
            _root(of["squared_bias"]),
            _root(of["squared_gradient_bias"]),
            _root(of["variance"]),
            _root(of["squared_advantage"]),
            correlation,
            of["cut"],
        ],
        axis=-1,
    )


def summary(
    states: list[Terms], *, resamples: int = 1000, seed: int = 0
) -> dict[str, list[float | None]]:
    """Each figure as [value, low, high]: over all states, and the 2.5th and 97.5th percentile when
    the states are drawn again with replacement. None where a figure has no value."""
    table = np.array(states, dtype=np.float64)
    count = len(table)
    drawn = np.random.default_rng(seed).multinomial(count, [1 / count] * count, size=resamples)
    value = figures(table.mean(axis=0))
    spread = figures(drawn @ table / count)
    found: dict[str, list[float | None]] = {}
    for name, one, column in zip(FIGURES, value, spread.T, strict=True):
        known = column[np.isfinite(column)]
        ends = np.percentile(known, (2.5, 97.5)) if known.size else (np.nan, np.nan)
        found[name] = [_rounded(x) for x in (one, *ends)]
    return found


def _root(square: Floats) -> Floats:
    root: Floats = np.sqrt(np.maximum(square, 0.0))
    return root


def _rounded(value: float) -> float | None:
    return round(float(value), 5) if np.isfinite(value) else None
