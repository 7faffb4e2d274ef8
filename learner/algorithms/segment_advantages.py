"""Advantages and returns of all windows of a batch, by the run's algorithm.

In: a share of a batch, and numbers of the models at the update's start. Out: both halves of the
share, and `WindowAdvantages`. Promise: no model is run here, so the same numbers always give the
same advantages.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from headrace.protocol.fields import MAX_ACTS
from headrace.protocol.messages.batches import Shard
from learner.algorithms.advantages import moments
from learner.algorithms.registry import Algorithm
from learner.batching.batch import PolicyBatch, ValueBatch, policy_batch, value_batch
from learner.batching.segments import segment_ids
from learner.device import RankContext

LEAST_SPREAD = 1e-4
"""Standard deviation of an act below which a division would magnify rounding."""


class WindowAdvantages(NamedTuple):
    """Advantages and returns of the windows' T tokens.

    Attributes:
        values: [T] V at the update's start, None without a critic. raw: [T] advantages before
        whitening and clamping. advantages: [T] as the loss sees them. returns: [T] discounted
        reward up to the end, shaping and penalties included. returns_known: [T] bool, the
        trajectory ends with the token's window.
    """

    values: Tensor | None
    raw: Tensor
    advantages: Tensor
    returns: Tensor
    returns_known: Tensor


def halves_of(
    algorithm: Algorithm, shard: Shard, *, version: int, device: torch.device
) -> tuple[PolicyBatch, ValueBatch]:
    """Lay out a shard's windows and ended trajectories; `version`: that of the update's start."""
    shape, kl = algorithm.shape_rewards, algorithm.kl
    kl_coef = 0.0 if kl is None else kl.coef
    windows = policy_batch(
        shard, version=version, lambdas=algorithm.lambdas, shape=shape, kl_coef=kl_coef,
        device=device,
    )  # fmt: skip
    return windows, value_batch(shard, shape=shape, kl_coef=kl_coef, device=device)


def window_advantages(
    algorithm: Algorithm,
    place: RankContext,
    windows: PolicyBatch,
    *,
    values: Tensor | None,
    at_cuts: Tensor | None,
    penalty: Tensor,
) -> WindowAdvantages:
    """Return advantages and returns of the windows' tokens.

    `values` [T] are of the update's start, `at_cuts` those behind cut windows where the algorithm
    reads them, `penalty` [T] is the divergence's cost of each token."""
    rewards = windows.rewards.to(place.dtype)
    segments = windows.segments
    if at_cuts is not None:
        segments = segments._replace(bootstrap_value=at_cuts[windows.windows_of])
    raw = algorithm.advantages(rewards, penalty, values, segments, windows.groups)
    if algorithm.whitens_by_act:
        acts = windows.acts[segment_ids(segments)]
        advantages = _by_act(algorithm, place, raw, windows.mask, acts)
    else:
        whole = place.total(moments(raw, windows.mask))
        advantages = algorithm.normalise(raw, windows.mask, whole)
    return WindowAdvantages(
        values, raw, advantages, *algorithm.returns(rewards + penalty, segments)
    )


def _by_act(
    algorithm: Algorithm, place: RankContext, raw: Tensor, mask: Tensor, acts: Tensor
) -> Tensor:
    """[T] advantages normalised among the trained tokens of each act, 0 elsewhere.

    Those of an act with hardly any spread are only centred. Source: PAG (RoleAdvNorm); `whiten`."""
    masks = [mask & (acts == act) for act in range(MAX_ACTS)]
    whole = place.total(torch.stack([moments(raw, each) for each in masks]))
    found = torch.zeros_like(raw)
    for each, (count, total, squares) in zip(masks, whole, strict=True):
        mean = total / count.clamp(min=1.0)
        spread = (squares / count.clamp(min=1.0) - mean.square()).clamp(min=0.0).sqrt()
        scaled = algorithm.normalise(raw, each, torch.stack([count, total, squares]))
        centred = (raw - mean).to(raw.dtype)
        is_flat = (spread < LEAST_SPREAD) & (count >= 2.0)
        found = torch.where(each, torch.where(is_flat, centred, scaled), found)
    return found
