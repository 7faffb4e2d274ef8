"""The figures of one update by metric name (see headrace/metrics/registry.py), merged over all
ranks.

In: what the halves of an update saw. Out: floats. Promises: every rank gets the same numbers,
however the batch was cut into ranks and micro-batches; a figure without data is absent, never 0 or
NaN.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from headrace.protocol.fields import Metric
from learner.algorithms.ratios import Ratio, log_ratio
from learner.batching.batch import PolicyHalf, Totals, ValueHalf
from learner.device import Place
from learner.models.deepspeed_engine import Engine, StepLog
from learner.models.prefix_cache import Carried
from learner.updates.critic_update import CriticUpdate
from learner.updates.policy_update import PolicyUpdate, joined
from learner.updates.token_statistics import (
    Tally,
    as_vectors,
    from_vectors,
    merge,
    tally_egae,
    tally_hot,
    tally_mismatch,
    tally_policy,
    tally_reference,
    tally_spread,
    tally_values,
    tally_weights,
    window_cuts,
)
from learner.updates.token_statistics_table import finalise, spreads


class Stopwatch:
    """Seconds by name, as timing_s/ metrics."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._began = time.perf_counter()

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Add the time inside to `name`."""
        began = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began

    def figures(self) -> dict[str, float]:
        """All of them, and the time since the beginning as `update`."""
        whole = {"update": time.perf_counter() - self._began}
        return {f"timing_s/{name}": s for name, s in (self.seconds | whole).items()}


def figures_of(
    windows: PolicyHalf,
    finished: ValueHalf,
    policy: PolicyUpdate,
    critic: CriticUpdate | None,
    *,
    values: Tensor | None,
    raw_advantages: Tensor,
    advantages: Tensor,
    window: int,
    totals: Totals,
    place: Place,
    carried: Sequence[Carried] = (),
) -> dict[str, Metric]:
    """All figures of the update but times and the engines' own state.

    Args:
        window: most tokens of a window: where a finished response was cut before. values: [T] V at
        the windows' tokens, None without a critic. raw_advantages, advantages: [T] before and after
        whitening and clamping. carried: keys and values of each model, if they are carried over.
    """
    tallies = [*_policy_tallies(windows, policy), _log_tally("actor", policy.log)]
    tallies.append(tally_spread("critic/advantages", advantages, windows.mask))
    if values is not None:
        tallies.append(tally_egae(values, raw_advantages, windows.segments))
    if critic is not None:
        known = critic.known & critic.old.isfinite()
        cuts = window_cuts(finished.positions, finished.segments, window=window)
        tallies.append(
            tally_values(critic.old, critic.targets, known, finished.segments, cuts=cuts)
        )
        tallies.append(tally_spread("critic/returns", critic.targets, known))
        tallies.append(tally_spread("critic/values", critic.old, known))
        if values is not None and totals.policy_tokens:
            tallies[-1] = tally_spread("critic/values", values, torch.ones_like(windows.mask))
        tallies.append(_log_tally("critic", critic.log))
    if carried:
        tallies.append(_carried_tally(carried, place))
    merged = _over_ranks(merge(tallies), place)
    sums = {name: value.item() for name, value in merged.sums.items()}
    figures = finalise(merged) | spreads(merged)
    figures |= _loss_figures(sums, policy.log, critic.log if critic else None)
    figures |= _work_figures(sums, totals)
    if carried:
        figures |= _carried_figures(sums)
    return figures


def engine_figures(prefix: str, engine: Engine, log: StepLog) -> dict[str, float]:
    """Learning rate, steps applied and thrown away, and the last step's gradient norm."""
    figures = {
        f"{prefix}/steps": float(log.applied),
        f"{prefix}/skipped_steps": float(log.dropped),
        f"{prefix}/lr": engine.lr,
    }
    if log.taken:
        figures[f"{prefix}/grad_norm"] = log.grad_norm
    return figures


def _policy_tallies(windows: PolicyHalf, policy: PolicyUpdate) -> list[Tally]:
    seen = joined(policy.seen, windows)
    behaviour = windows.behaviour.to(policy.start.dtype)
    # A hot token's sampler is another one on purpose: its ratio says nothing of age or engine.
    known = windows.mask & ~windows.hot & policy.known & policy.start.isfinite()
    difference = log_ratio(policy.start, behaviour, known)
    weights = Ratio(difference, torch.where(known, difference.exp(), 0.0), policy.over_cap)
    tallies = [
        tally_policy(seen.ratio, seen.loss, seen.advantages, seen.mask, entropy=seen.entropy),
        tally_weights(weights, policy.start, behaviour, known, dropped=policy.dropped),
        tally_mismatch(policy.start, behaviour, known & windows.same_version & policy.exact),
        tally_hot(
            policy.start, behaviour, windows.hot,
            known=policy.exact, trained=windows.mask, over_cap=policy.hot_over_cap,
        ),
    ]  # fmt: skip
    if policy.reference is not None:
        tallies.append(tally_reference(policy.start, policy.reference, known))
    return tallies


def _log_tally(prefix: str, log: StepLog) -> Tally:
    losses = torch.stack(log.losses).to(torch.float64).sum() if log.losses else torch.zeros(())
    counts = {
        name: torch.tensor(float(number), dtype=torch.float64, device=losses.device)
        for name, number in (
            ("tokens", log.tokens), ("fillers", log.fillers), ("trained", log.trained),
            ("reads", log.reads),
        )
    } | {"loss": losses.to(torch.float64)}  # fmt: skip
    return Tally({f"{prefix}/{name}": x for name, x in counts.items()}, {})


def _carried_tally(carried: Sequence[Carried], place: Place) -> Tally:
    counts = {
        "bytes": sum(store.num_bytes for store in carried),
        "hits": sum(store.figures.hits for store in carried),
        "misses": sum(store.figures.misses for store in carried),
        "recomputed_tokens": sum(store.figures.recomputed for store in carried),
        "tokens": sum(store.figures.carried for store in carried),
        "age": sum(store.figures.age for store in carried),
    }
    return Tally(
        {
            f"carried/{name}": torch.tensor(float(n), dtype=torch.float64, device=place.device)
            for name, n in counts.items()
        },
        {},
    )


def _over_ranks(tally: Tally, place: Place) -> Tally:
    if place.world == 1:
        return tally
    sums, maxima = as_vectors(tally)
    return from_vectors(
        tally, place.total(sums.to(place.device)), place.largest(maxima.to(place.device))
    )


def _loss_figures(
    sums: Mapping[str, float], policy: StepLog, critic: StepLog | None
) -> dict[str, float]:
    figures = {}
    if policy.taken:
        figures["actor/pg_loss"] = sums["actor/loss"] / policy.taken
    if critic is not None and critic.taken:
        figures["critic/vf_loss"] = sums["critic/loss"] / critic.taken
    return figures


def _work_figures(sums: Mapping[str, float], totals: Totals) -> dict[str, float]:
    """How many tokens went through a model, and which shares of them were in a loss, context or
    padding."""
    tokens = sums["actor/tokens"] + sums.get("critic/tokens", 0.0)
    fillers = sums["actor/fillers"] + sums.get("critic/fillers", 0.0)
    figures = {"perf/loss_tokens": float(totals.policy_tokens), "perf/computed_tokens": tokens}
    if tokens:
        figures["perf/useful_share"] = 1.0 - fillers / tokens
    if sums["actor/trained"]:
        # The last token of a shared prompt is read once for each of its responses.
        share = 1.0 - sums["actor/reads"] / sums["actor/trained"]
        figures["perf/context_share"] = max(0.0, share)
    return figures


def _carried_figures(sums: Mapping[str, float]) -> dict[str, float]:
    """Of all models together: what was there, what was not, and how old it was."""
    figures = {
        f"perf/carried_{name}": sums[f"carried/{name}"]
        for name in ("bytes", "hits", "misses", "recomputed_tokens")
    }
    if sums["carried/tokens"]:
        figures["perf/carried_age"] = sums["carried/age"] / sums["carried/tokens"]
    return figures
