"""The table of diagnostics: the formula of each figure from the sums.

In: a `Tally` merged over micro-batches and ranks. Out: by metric name, numbers and arrays of
numbers by bins; `headrace.metrics.registry` says what each figure means and which values are
healthy. Promises: a figure without data (no cut window, no finished trajectory) is absent and a bin
without data is None, never 0 or NaN; a sum that holds NaN or Inf shows as such.
"""

from collections.abc import Callable

from headrace.metrics.registry import LENGTH_BINS
from learner.updates.token_statistics import NUM_POSITION_BINS, TAIL_BOUNDS, Tally

Named = dict[str, float]
Figure = float | list[float | None]
Formula = Callable[[Named, Named], float | None]


def finalise(tally: Tally) -> dict[str, Figure]:
    """Compute the figures, by name, of all table rows whose sums the tally holds."""
    sums = {name: value.item() for name, value in tally.sums.items()}
    maxima = {name: value.item() for name, value in tally.maxima.items()}
    figures: dict[str, Figure] = {}
    for name, formula in DIAGNOSTICS.items():
        figure = formula(sums, maxima)
        if figure is not None:
            figures[name] = figure
    for name, formulas in ARRAYS.items():
        bins = [formula(sums, maxima) for formula in formulas]
        if any(figure is not None for figure in bins):
            figures[name] = bins
    return figures


def spreads(tally: Tally) -> dict[str, Figure]:
    """Return mean, largest and smallest of each input of `tally_spread`."""
    figures: dict[str, Figure] = {}
    for key, count in tally.sums.items():
        name, _, kind = key.rpartition("/")
        if kind == "count" and count:
            figures[f"{name}/mean"] = tally.sums[f"{name}/sum"].item() / count.item()
            figures[f"{name}/max"] = tally.maxima[f"{name}/max"].item()
            figures[f"{name}/min"] = -tally.maxima[f"{name}/-min"].item()
    return figures


def share(part: str, whole: str) -> Formula:
    """sum of part / sum of whole; None where the whole is missing or 0."""

    def formula(sums: Named, _maxima: Named) -> float | None:
        count = sums.get(whole, 0.0)
        return sums[part] / count if count else None

    return formula


def number_of(name: str) -> Formula:
    """The sum itself; nothing where it is 0."""
    return lambda sums, _maxima: sums.get(name) or None


def deviation(squares: str, count: str, total: str | None = None) -> Formula:
    """Square root of the mean square, around the mean if the sum `total` is given."""

    def formula(sums: Named, _maxima: Named) -> float | None:
        n = sums.get(count, 0.0)
        if not n:
            return None
        mean = sums[total] / n if total else 0.0
        return float(max(sums[squares] / n - mean * mean, 0.0) ** 0.5)

    return formula


def largest(name: str) -> Formula:
    """The maximum; None where there was no number."""

    def formula(_sums: Named, maxima: Named) -> float | None:
        value = maxima.get(name, float("-inf"))
        return None if value == float("-inf") else value

    return formula


def explained_variance(sums: Named, _maxima: Named) -> float | None:
    """1 - Var(R - V) / Var(R) over tokens; nothing if all returns are the same."""
    n = sums.get("value/tokens", 0.0)
    if not n:
        return None
    spread = sums["value/return_squared"] / n - (sums["value/return"] / n) ** 2
    # The subtraction leaves rounding noise where all returns are the same number.
    if spread <= 1e-12 * max(sums["value/return_squared"] / n, 1e-300):
        return None
    residual = sums["value/error_squared"] / n - (sums["value/error"] / n) ** 2
    return 1.0 - residual / spread


def effective_sample_size(sums: Named, _maxima: Named) -> float | None:
    """(sum w)^2 / (n sum w^2), as a share of the tokens."""
    n, squared = sums.get("weight/tokens", 0.0), sums.get("weight/squared", 0.0)
    return sums["weight/sum"] ** 2 / (n * squared) if n and squared else None


def clipped_share(sums: Named, _maxima: Named) -> float | None:
    """Tokens that the lower or the upper clip holds back; no token is held by both."""
    n = sums.get("policy/tokens", 0.0)
    return (sums["policy/clipped_low"] + sums["policy/clipped_high"]) / n if n else None


DIAGNOSTICS: dict[str, Formula] = {
    "actor/ppo_kl": share("policy/k3", "policy/tokens"),
    "actor/pg_clipfrac": clipped_share,
    "actor/pg_clipfrac_lower": share("policy/clipped_low", "policy/tokens"),
    "actor/pg_clipfrac_upper": share("policy/clipped_high", "policy/tokens"),
    "actor/pg_clipped_probability": share("policy/clipped_high_probability", "policy/clipped_high"),
    "actor/pg_clipfrac_dual": share("policy/clipped_dual", "policy/tokens"),
    "actor/ratio_max": largest("policy/ratio"),
    "actor/entropy": share("policy/entropy", "policy/tokens"),
    "actor/advantage_mean": share("policy/advantage", "policy/tokens"),
    "actor/advantage_std": deviation(
        "policy/advantage_squared", "policy/tokens", "policy/advantage"
    ),
    "actor/reference_kl": share("reference/k3", "reference/tokens"),
    "rollout/weight_mean": share("weight/sum", "weight/tokens"),
    "rollout/ess": effective_sample_size,
    "rollout/weight_over_cap": share("weight/over_cap", "weight/tokens"),
    "rollout/weight_dropped": share("weight/dropped", "weight/tokens"),
    "rollout/weight_max": largest("weight/rho"),
    **{
        f"rollout/weight_above_{b:g}": share(f"weight/above_{b:g}", "weight/tokens")
        for b in TAIL_BOUNDS
    },
    **{
        f"rollout/weight_below_1_over_{b:g}": share(f"weight/below_1/{b:g}", "weight/tokens")
        for b in TAIL_BOUNDS
    },
    "rollout/mismatch_kl": share("mismatch/k3", "mismatch/tokens"),
    "rollout/logprob_diff": share("mismatch/absolute", "mismatch/tokens"),
    "rollout/logprob_diff_max": largest("mismatch/absolute"),
    "rollout/hot_tokens": number_of("hot/tokens"),
    "rollout/hot_ratio_mean": share("hot/ratio", "hot/compared"),
    "rollout/hot_over_cap": share("hot/over_cap", "hot/trained"),
    "critic/vf_explained_var": explained_variance,
    "critic/value_bias": share("value/error", "value/tokens"),
    "critic/value_rmse": deviation("value/error_squared", "value/tokens"),
    "critic/value_error_max": largest("value/error"),
    "value/cut_bias": share("value/cut_error", "value/cut_tokens"),
    "value/cut_rmse": deviation("value/cut_error_squared", "value/cut_tokens"),
    "egae/bootstrap_tokens": share("egae/bootstrapped_tokens", "egae/tokens"),
    "egae/bootstrap_share": share("egae/cut_windows", "egae/windows"),
    "value/at_cut": share("egae/value_at_cut", "egae/cut_windows"),
    "egae/boundary_advantage": share("egae/boundary_advantage", "egae/boundary_tokens"),
    "egae/boundary_advantage_abs": share("egae/boundary_absolute", "egae/boundary_tokens"),
    "egae/advantage_abs": share("egae/absolute", "egae/tokens"),
    "egae/lambda": share("egae/lambda", "egae/windows"),
}
"""The formula of each figure, by the metric's name."""

ARRAYS: dict[str, tuple[Formula, ...]] = {
    "value/bias": tuple(
        share(f"value/bin_{b}_error", f"value/bin_{b}_tokens") for b in range(NUM_POSITION_BINS)
    ),
    "value/rmse": tuple(
        deviation(f"value/bin_{b}_error_squared", f"value/bin_{b}_tokens")
        for b in range(NUM_POSITION_BINS)
    ),
    "egae/lambda_by_length": tuple(
        share(f"egae/bin_{b}_lambda", f"egae/bin_{b}_windows") for b in range(len(LENGTH_BINS) + 1)
    ),
}
"""Formulas of figures that have one for each bin, in the order of the bins."""
