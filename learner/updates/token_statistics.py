"""Diagnostics: sums over tokens, of which the figures of an update are computed.

In: tensors of a micro-batch. Out: a `Tally` of float64 sums and maxima. Promises: sums add and
maxima combine, so the figures of an update do not depend on how it was split into micro-batches
or ranks; every function gives the same names whatever its input, empty included, so vectors of
different ranks line up. `learner.updates.token_statistics_table` turns a tally into figures.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from headrace.metrics.registry import LENGTH_BINS
from learner.algorithms.policy_losses import PolicyLoss
from learner.algorithms.ratios import Ratio, log_ratio
from learner.batching.segments import (
    Segments,
    segment_ids,
    segment_lengths,
    tokens_left,
    trajectory_positions,
)

NUM_POSITION_BINS = 10
# Weights pi_proximal / pi_behaviour beyond which a token counts as in the tail.
TAIL_BOUNDS = (2.0, 5.0)


class Tally(NamedTuple):
    """Named float64 scalars: sums that add, and maxima (-inf where nothing was seen)."""

    sums: dict[str, Tensor]
    maxima: dict[str, Tensor]


def merge(tallies: Iterable[Tally]) -> Tally:
    """One tally of several: names that occur twice are added, or the larger is taken."""
    sums: dict[str, Tensor] = {}
    maxima: dict[str, Tensor] = {}
    for tally in tallies:
        for name, value in tally.sums.items():
            sums[name] = sums[name] + value if name in sums else value
        for name, value in tally.maxima.items():
            maxima[name] = torch.maximum(maxima[name], value) if name in maxima else value
    return Tally(sums, maxima)


def as_vectors(tally: Tally) -> tuple[Tensor, Tensor]:
    """Return sums and maxima as float64 vectors by name, for all-reduce SUM and MAX."""
    return _stack(tally.sums), _stack(tally.maxima)


def from_vectors(like: Tally, sums: Tensor, maxima: Tensor) -> Tally:
    """The inverse of `as_vectors`; `like` gives the names."""
    return Tally(
        dict(zip(sorted(like.sums), sums.unbind(), strict=True)),
        dict(zip(sorted(like.maxima), maxima.unbind(), strict=True)),
    )


@torch.no_grad()
def tally_policy(
    ratio: Ratio,
    policy_loss: PolicyLoss,
    advantages: Tensor,
    mask: Tensor,
    new: Tensor,
    entropy: Tensor,
) -> Tally:
    """Tally the policy's move inside the update: KL, clips, entropy, advantages.

    All tensors [T], `new` the policy's logprobs; only tokens of the mask count. KL is k3 of
    KL(anchor || new) at tokens of the anchor: r - 1 - log r."""
    log_r = ratio.log_ratio.detach().to(torch.float64)
    clipped_high = mask & policy_loss.clipped_high
    return Tally(
        sums={
            "policy/tokens": _count(mask),
            "policy/k3": _sum(torch.expm1(log_r) - log_r, mask),
            "policy/clipped_low": _count(mask & policy_loss.clipped_low),
            "policy/clipped_high": _count(clipped_high),
            "policy/clipped_high_probability": _sum(new.exp(), clipped_high),
            "policy/clipped_dual": _count(mask & policy_loss.clipped_dual),
            "policy/entropy": _sum(entropy, mask),
            "policy/advantage": _sum(advantages, mask),
            "policy/advantage_squared": _sum(advantages.to(torch.float64).square(), mask),
        },
        maxima={"policy/ratio": _max(log_r.exp(), mask)},
    )


@torch.no_grad()
def tally_weights(
    ratio: Ratio, proximal: Tensor, behaviour: Tensor, mask: Tensor, *, dropped: Tensor
) -> Tally:
    """Tally importance weights of proximal against behaviour, as used and uncapped.

    All tensors [T]. The weights (`ratio.weight`) give ESS and mean; the uncapped rho gives the
    tails. `dropped` [T] bool: tokens that train with weight 0."""
    weight = ratio.weight.to(torch.float64)
    rho = log_ratio(proximal, behaviour, mask).to(torch.float64).exp()
    sums = {
        "weight/tokens": _count(mask),
        "weight/sum": _sum(weight, mask),
        "weight/squared": _sum(weight.square(), mask),
        "weight/over_cap": _count(mask & ratio.over_cap),
        "weight/dropped": _count(mask & dropped),
    }
    for bound in TAIL_BOUNDS:
        sums[f"weight/above_{bound:g}"] = _count(mask & (rho > bound))
        sums[f"weight/below_1/{bound:g}"] = _count(mask & (rho < 1.0 / bound))
    return Tally(sums, maxima={"weight/rho": _max(rho, mask)})


@torch.no_grad()
def tally_mismatch(learner: Tensor, sampler: Tensor, mask: Tensor) -> Tally:
    """Tally the distance of two engines' logprobs under the same weights.

    All [T]. The mask should hold only tokens whose whole prefix has the learner's version, else
    age is counted as mismatch. KL(sampler || learner) by k3, rho - log rho - 1."""
    difference = torch.where(mask, learner - sampler, 0.0).to(torch.float64)
    log_rho = log_ratio(learner, sampler, mask).to(torch.float64)
    return Tally(
        sums={
            "mismatch/tokens": _count(mask),
            "mismatch/k3": _sum(torch.expm1(log_rho) - log_rho, mask),
            "mismatch/absolute": _sum(difference.abs(), mask),
        },
        maxima={"mismatch/absolute": _max(difference.abs(), mask)},
    )


@torch.no_grad()
def tally_hot(
    learner: Tensor, sampler: Tensor, hot: Tensor, *, known: Tensor, trained: Tensor, cap: float
) -> Tally:
    """Tally hot tokens of FIRE sampling, by the policy's likelihood of them.

    All [T]: logprobs under the weights of the update's start and under the hot sampler, which
    tokens are hot, for which the first is known, which are in the loss. `cap`: above it a weight
    was cut."""
    compared = hot & known
    ratio = log_ratio(learner, sampler, compared).to(torch.float64).exp()
    return Tally(
        sums={
            "hot/tokens": _count(hot),
            "hot/compared": _count(compared),
            "hot/ratio": _sum(ratio, compared),
            "hot/trained": _count(hot & trained),
            "hot/over_cap": _count(compared & trained & (ratio > cap)),
        },
        maxima={},
    )


@torch.no_grad()
def tally_reference(new: Tensor, reference: Tensor, mask: Tensor) -> Tally:
    """Tally the divergence from the reference: k3 of KL(new || reference), all [T]."""
    log_r = log_ratio(reference, new, mask).to(torch.float64)
    return Tally(
        sums={
            "reference/tokens": _count(mask),
            "reference/k3": _sum(torch.expm1(log_r) - log_r, mask),
        },
        maxima={},
    )


def window_cuts(numbers: Tensor, segments: Segments, *, window: int) -> Tensor:
    """[T] bool: last tokens of unfinished windows in whole responses (segments).

    `numbers` [T] are the tokens' numbers among the sampled ones of their answer."""
    of_window = numbers // window
    later = torch.cat([of_window[1:], of_window[-1:]])
    return (of_window != later) & (tokens_left(segments) > 0)


@torch.no_grad()
def tally_values(
    values: Tensor, targets: Tensor, mask: Tensor, segments: Segments, *, cuts: Tensor
) -> Tally:
    """Tally the critic's explained variance, and errors by position and at cuts.

    Args:
        values: [T] V(s_t). targets: [T] Monte-Carlo returns. mask: [T] bool, tokens of finished
        trajectories. segments: one per whole response. cuts: [T] bool, last tokens of earlier,
        unfinished windows: there V(s_t) closed an EGAE sum, and now the return is known.

    Bin b of 10 holds tokens with position / length in [b/10, (b+1)/10).
    """
    error = (values - targets).to(torch.float64)
    r = targets.to(torch.float64)
    length = segments.length_so_far[segment_ids(segments)]
    bins = trajectory_positions(segments) * NUM_POSITION_BINS // length.clamp(min=1)
    at_cut = mask & cuts
    sums = {
        "value/tokens": _count(mask),
        "value/return": _sum(r, mask),
        "value/return_squared": _sum(r.square(), mask),
        "value/error": _sum(error, mask),
        "value/error_squared": _sum(error.square(), mask),
        "value/cut_tokens": _count(at_cut),
        "value/cut_error": _sum(error, at_cut),
        "value/cut_error_squared": _sum(error.square(), at_cut),
    }
    for b in range(NUM_POSITION_BINS):
        inside = mask & (bins == b)
        sums[f"value/bin_{b}_tokens"] = _count(inside)
        sums[f"value/bin_{b}_error"] = _sum(error, inside)
        sums[f"value/bin_{b}_error_squared"] = _sum(error.square(), inside)
    return Tally(sums, maxima={"value/error": _max(error.abs(), mask)})


@torch.no_grad()
def tally_spread(name: str, x: Tensor, mask: Tensor) -> Tally:
    """Tally x where `mask` (same shape) is set: `spreads` gives mean and extremes."""
    x = x.detach().to(torch.float64)
    return Tally(
        {f"{name}/sum": x[mask].sum(), f"{name}/count": _count(mask)},
        {f"{name}/max": _max(x, mask), f"{name}/-min": _max(-x, mask)},
    )


@torch.no_grad()
def tally_egae(
    values: Tensor, advantages: Tensor, segments: Segments, *, boundary_tokens: int = 8
) -> Tally:
    """Tally EGAE's values and advantages at the cuts of windows.

    Args:
        values: [T] V(s_t). advantages: [T] before whitening. segments: the windows, with the lambda
        in force. boundary_tokens: last tokens of a cut window, whose advantages rest on one guessed
        value (T-PPO recipe: 8).
    """
    ids = segment_ids(segments)
    cut = ~segments.finished
    came = segments.bootstrap_value
    guessed = cut if came is None else cut & came.isnan()
    left = tokens_left(segments)
    boundary = cut[ids] & (left < boundary_tokens)
    everything = torch.ones_like(boundary)
    some = segment_lengths(segments) > 0
    ends = torch.tensor(LENGTH_BINS, device=ids.device)
    bins = torch.bucketize(segments.length_so_far, ends)
    sums = {
        "egae/tokens": _count(everything),
        "egae/bootstrapped_tokens": _count(guessed[ids]),
        "egae/windows": _count(some),
        "egae/cut_windows": _count(some & guessed),
        "egae/value_at_cut": _sum(values, (left == 0) & guessed[ids]),
        "egae/boundary_tokens": _count(boundary),
        "egae/boundary_advantage": _sum(advantages, boundary),
        "egae/boundary_absolute": _sum(advantages.abs(), boundary),
        "egae/absolute": _sum(advantages.abs(), everything),
        "egae/lambda": _sum(segments.lam, some),
    }
    for b in range(len(LENGTH_BINS) + 1):
        sums[f"egae/bin_{b}_windows"] = _count(some & (bins == b))
        sums[f"egae/bin_{b}_lambda"] = _sum(segments.lam, some & (bins == b))
    return Tally(sums, maxima={})


def _sum(x: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, x.to(torch.float64), 0.0).sum()


def _count(mask: Tensor) -> Tensor:
    return mask.sum().to(torch.float64)


def _max(x: Tensor, mask: Tensor) -> Tensor:
    floor = x.new_full((1,), -torch.inf)
    return torch.cat([torch.where(mask, x, -torch.inf), floor]).max()


def _stack(named: dict[str, Tensor]) -> Tensor:
    if not named:
        return torch.zeros(0, dtype=torch.float64)
    return torch.stack([named[name] for name in sorted(named)])
