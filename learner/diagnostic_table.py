"""The table of diagnostics: each figure's name, meaning, healthy band and formula, in one place.

In: a `Tally` merged over micro-batches and ranks. Out: floats by metric name. Promises: a figure
with nothing behind it (no cut window, no finished trajectory) is absent, never 0 or NaN; a sum
that holds NaN or Inf shows as such.
"""

from collections.abc import Callable
from dataclasses import dataclass

from learner.diagnostics import LENGTH_BIN_NAMES, NUM_POSITION_BINS, TAIL_BOUNDS, Tally

Named = dict[str, float]
Formula = Callable[[Named, Named], float | None]
Band = tuple[float | None, float | None]


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One figure: name, unit, meaning, healthy band (None: open end), and its formula."""

    name: str
    unit: str
    meaning: str
    healthy: Band
    formula: Formula


def finalise(tally: Tally) -> dict[str, float]:
    """Figures by name, for every row of the table whose sums the tally holds."""
    sums = {name: value.item() for name, value in tally.sums.items()}
    maxima = {name: value.item() for name, value in tally.maxima.items()}
    figures: dict[str, float] = {}
    for row in DIAGNOSTICS:
        figure = row.formula(sums, maxima)
        if figure is not None:
            figures[row.name] = figure
    return figures


def share(part: str, whole: str) -> Formula:
    """sum of part / sum of whole; nothing where the whole is missing or 0."""

    def formula(sums: Named, _maxima: Named) -> float | None:
        count = sums.get(whole, 0.0)
        return sums[part] / count if count else None

    return formula


def deviation(squares: str, total: str, count: str, *, centred: bool) -> Formula:
    """Square root of the mean square, around the mean if centred."""

    def formula(sums: Named, _maxima: Named) -> float | None:
        n = sums.get(count, 0.0)
        if not n:
            return None
        mean = sums[total] / n if centred else 0.0
        return float(max(sums[squares] / n - mean * mean, 0.0) ** 0.5)

    return formula


def largest(name: str) -> Formula:
    """The maximum; nothing where nothing was seen."""

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


_POLICY = (
    Diagnostic(
        "actor/approx_kl",
        "nats",
        "how far the policy moved from its anchor inside the update (k3)",
        (0.0, 0.05),
        share("policy/k3", "policy/tokens"),
    ),
    Diagnostic(
        "actor/clip_low",
        "share",
        "tokens with negative advantage that are already less likely than the clip allows",
        (0.0, 0.2),
        share("policy/clipped_low", "policy/tokens"),
    ),
    Diagnostic(
        "actor/clip_high",
        "share",
        "tokens with positive advantage that are already more likely than the clip allows",
        (0.0, 0.2),
        share("policy/clipped_high", "policy/tokens"),
    ),
    Diagnostic(
        "actor/clip_dual",
        "share",
        "bad tokens whose ratio exploded and whose loss the dual clip bounds",
        (0.0, 0.001),
        share("policy/clipped_dual", "policy/tokens"),
    ),
    Diagnostic(
        "actor/ratio_max",
        "ratio",
        "largest ratio of the policy to its anchor",
        (None, 10.0),
        largest("policy/ratio"),
    ),
    Diagnostic(
        "actor/entropy",
        "nats",
        "spread of the next-token distribution; a fall to 0 means exploration has ended",
        (0.02, None),
        share("policy/entropy", "policy/entropy_tokens"),
    ),
    Diagnostic(
        "actor/advantage_mean",
        "reward",
        "mean advantage of trained tokens as the loss sees them",
        (-0.5, 0.5),
        share("policy/advantage", "policy/tokens"),
    ),
    Diagnostic(
        "actor/advantage_std",
        "reward",
        "spread of those advantages; 0 means there is nothing to learn",
        (0.01, None),
        deviation("policy/advantage_squared", "policy/advantage", "policy/tokens", centred=True),
    ),
)

_WEIGHTS = (
    Diagnostic(
        "rollout/weight_mean",
        "ratio",
        "mean importance weight in the loss; 1 when sampler and anchor agree",
        (0.8, 1.2),
        share("weight/sum", "weight/tokens"),
    ),
    Diagnostic(
        "rollout/ess",
        "share",
        "effective sample size: how many tokens' worth of weight a token carries",
        (0.5, 1.0),
        effective_sample_size,
    ),
    Diagnostic(
        "rollout/weight_over_cap",
        "share",
        "tokens whose weight was truncated or dropped",
        (0.0, 0.05),
        share("weight/over_cap", "weight/tokens"),
    ),
    Diagnostic(
        "rollout/weight_dropped",
        "share",
        "tokens that train with weight 0",
        (0.0, 0.05),
        share("weight/dropped", "weight/tokens"),
    ),
    Diagnostic(
        "rollout/weight_max",
        "ratio",
        "largest weight before the cap",
        (None, 10.0),
        largest("weight/rho"),
    ),
    *(
        Diagnostic(
            f"rollout/weight_above_{bound:g}",
            "share",
            f"tokens that the anchor finds over {bound:g} times as likely as the sampler did",
            (0.0, 0.05),
            share(f"weight/above_{bound:g}", "weight/tokens"),
        )
        for bound in TAIL_BOUNDS
    ),
    *(
        Diagnostic(
            f"rollout/weight_below_1_over_{bound:g}",
            "share",
            f"tokens that the sampler found over {bound:g} times as likely as the anchor does",
            (0.0, 0.05),
            share(f"weight/below_1/{bound:g}", "weight/tokens"),
        )
        for bound in TAIL_BOUNDS
    ),
)

_MISMATCH = (
    Diagnostic(
        "rollout/mismatch_kl",
        "nats",
        "KL of generator to learner at equal weights: the engines' own disagreement (k3)",
        (0.0, 0.001),
        share("mismatch/k3", "mismatch/tokens"),
    ),
    Diagnostic(
        "rollout/logprob_diff_mean",
        "nats",
        "mean absolute difference of logprobs between the engines at equal weights",
        (0.0, 0.02),
        share("mismatch/absolute", "mismatch/tokens"),
    ),
    Diagnostic(
        "rollout/logprob_diff_max",
        "nats",
        "largest absolute difference of logprobs between the engines at equal weights",
        (0.0, 1.0),
        largest("mismatch/absolute"),
    ),
)

_VALUE = (
    Diagnostic(
        "critic/explained_variance",
        "share",
        "1 - Var(R - V) / Var(R): 1 is a perfect critic, 0 one that knows only the mean",
        (0.0, 1.0),
        explained_variance,
    ),
    Diagnostic(
        "critic/value_bias",
        "reward",
        "mean of V - R: above 0 the critic hopes too much",
        (-0.2, 0.2),
        share("value/error", "value/tokens"),
    ),
    Diagnostic(
        "critic/value_rmse",
        "reward",
        "root mean square of V - R",
        (0.0, None),
        deviation("value/error_squared", "value/error", "value/tokens", centred=False),
    ),
    Diagnostic(
        "critic/value_error_max",
        "reward",
        "largest absolute V - R",
        (0.0, None),
        largest("value/error"),
    ),
    Diagnostic(
        "value/cut_bias",
        "reward",
        "mean of V - R at the cuts of trajectories that have since finished",
        (-0.2, 0.2),
        share("value/cut_error", "value/cut_tokens"),
    ),
    Diagnostic(
        "value/cut_rmse",
        "reward",
        "root mean square of V - R there: what EGAE's closing assumption really cost",
        (0.0, None),
        deviation("value/cut_error_squared", "value/cut_error", "value/cut_tokens", centred=False),
    ),
    *(
        Diagnostic(
            f"value/bias_at_{b}0",
            "reward",
            f"mean of V - R in the tenth of the response from {b}0 percent on",
            (-0.3, 0.3),
            share(f"value/bin_{b}_error", f"value/bin_{b}_tokens"),
        )
        for b in range(NUM_POSITION_BINS)
    ),
    *(
        Diagnostic(
            f"value/rmse_at_{b}0",
            "reward",
            f"root mean square of V - R in the tenth of the response from {b}0 percent on",
            (0.0, None),
            deviation(
                f"value/bin_{b}_error_squared",
                f"value/bin_{b}_error",
                f"value/bin_{b}_tokens",
                centred=False,
            ),
        )
        for b in range(NUM_POSITION_BINS)
    ),
)

_EGAE = (
    Diagnostic(
        "egae/bootstrapped_share",
        "share",
        "tokens whose advantage rests on a guessed value because their window was cut",
        (0.0, 0.95),
        share("egae/bootstrapped_tokens", "egae/tokens"),
    ),
    Diagnostic(
        "egae/cut_window_share",
        "share",
        "windows that end in a cut",
        (0.0, 0.95),
        share("egae/cut_windows", "egae/windows"),
    ),
    Diagnostic(
        "egae/value_at_cut",
        "reward",
        "mean V(s_{l-1}) where windows are cut; compare with the mean return",
        (None, None),
        share("egae/value_at_cut", "egae/cut_windows"),
    ),
    Diagnostic(
        "egae/boundary_advantage",
        "reward",
        "mean advantage, before whitening, of the last tokens of cut windows",
        (-0.2, 0.2),
        share("egae/boundary_advantage", "egae/boundary_tokens"),
    ),
    Diagnostic(
        "egae/boundary_advantage_abs",
        "reward",
        "mean absolute advantage of those tokens; compare with egae/advantage_abs",
        (0.0, None),
        share("egae/boundary_absolute", "egae/boundary_tokens"),
    ),
    Diagnostic(
        "egae/advantage_abs",
        "reward",
        "mean absolute advantage of all tokens before whitening",
        (0.0, None),
        share("egae/absolute", "egae/tokens"),
    ),
    Diagnostic(
        "egae/lambda_mean",
        "share",
        "mean lambda in force over windows",
        (0.5, 1.0),
        share("egae/lambda", "egae/windows"),
    ),
    *(
        Diagnostic(
            f"egae/lambda_{name}",
            "share",
            f"mean lambda of windows with response length {name.replace('_', ' ')} tokens",
            (0.0, 1.0),
            share(f"egae/lambda_{name}", f"egae/lambda_{name}_windows"),
        )
        for name in LENGTH_BIN_NAMES
    ),
)

DIAGNOSTICS: tuple[Diagnostic, ...] = (*_POLICY, *_WEIGHTS, *_MISMATCH, *_VALUE, *_EGAE)
