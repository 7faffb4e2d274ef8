"""Policy and value losses, one per token, and the inputs of a policy loss.

In: log ratios or values with gradient; advantages, targets and old values without. Out: the loss of
each token, and where which clip stops the gradient. Promise: nothing is averaged, masked or
weighted here; `ratios` and `aggregation` do that.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class LossInputs:
    """Inputs of the policy's loss for N tokens, not necessarily all of a window.

    Attributes:
        new: [N] logprobs, with gradient. entropy: [N], with gradient where a term needs it.
        start: [N] logprobs under the weights of the update's start. advantages: [N]. behaviour: [N]
        logprobs of the sampler. versions: [N] weight versions that sampled. mask: [N] bool, tokens
        in the surrogate. hot: [N] bool, of them those that FIRE's high temperature drew. right: [N]
        bool, tokens of right answers. weights: [N] factor of each token's loss. kl_coef: [N] the
        divergence's coefficient. reference: [N] logprobs of the reference. segment_ids: [N] int,
        the window of each token. segment_tokens: [S] tokens of each window in the surrogate.
        learner_version: of the weights of the update's start. all_tokens, all_samples, all_right:
        counts of the whole batch, see `learner.batching.batch.LossCounts`.
    """

    new: Tensor
    entropy: Tensor
    start: Tensor
    advantages: Tensor
    behaviour: Tensor
    versions: Tensor
    mask: Tensor
    hot: Tensor
    right: Tensor
    weights: Tensor
    kl_coef: Tensor
    reference: Tensor
    segment_ids: Tensor
    segment_tokens: Tensor
    learner_version: int
    all_tokens: int
    all_samples: int
    all_right: int


class PolicyLoss(NamedTuple):
    """Loss of each token, and the clip that binds there (its gradient is then 0).

    Attributes:
        loss: [T] with gradient. clipped_low: [T] bool, A < 0 and the ratio is already below 1 -
        eps_low. clipped_high: [T] bool, A > 0 and the ratio is already above 1 + eps_high.
        clipped_dual: [T] bool, A < 0 and the ratio is above the dual bound.
    """

    loss: Tensor
    clipped_low: Tensor
    clipped_high: Tensor
    clipped_dual: Tensor


def clipped_surrogate(
    log_ratio: Tensor,
    advantages: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> PolicyLoss:
    """PPO's clipped surrogate, with an optional dual clip.

    L_t = max(-A r, -A clip(r, 1 - eps_low, 1 + eps_high)), and min(L_t, c |A|) with dual clip.

    Args:
        log_ratio: [T] log r, with gradient. advantages: [T]. clip_low: eps_low. clip_high: eps_high
        (clip-higher where larger than eps_low). dual_clip: c > 1, or None. It binds for A < 0 only.

    Source: PPO; DAPO section 3.1 and VAPO (asymmetric); Ye et al. 2020 (dual);
    T-PPO recipe 0.2 / 0.28 / 10. Nothing changed; the ratio is exp(log ratio), never a KL.
    """
    if dual_clip is not None and dual_clip <= 1.0:
        raise ValueError(f"dual_clip must be larger than 1, got {dual_clip}")
    ratio = log_ratio.exp()
    low, high = 1.0 - clip_low, 1.0 + clip_high
    unclipped = -advantages * ratio
    loss = torch.maximum(unclipped, -advantages * ratio.clamp(min=low, max=high))
    clipped_dual = torch.zeros_like(advantages, dtype=torch.bool)
    if dual_clip is not None:
        loss = torch.minimum(loss, dual_clip * advantages.abs())
        clipped_dual = (advantages < 0) & (ratio > dual_clip)
    return PolicyLoss(
        loss=loss,
        clipped_low=(advantages < 0) & (ratio < low),
        clipped_high=(advantages > 0) & (ratio > high),
        clipped_dual=clipped_dual,
    )


def reinforce(log_ratio: Tensor, advantages: Tensor) -> PolicyLoss:
    """L_t = -A log r, the plain policy gradient -A grad log pi, nothing clipped.

    log r = log pi - a constant, so the gradient is REINFORCE's; only the loss's value is shifted,
    to 0 where the policy has not moved. Source: Williams 1992."""
    never = torch.zeros_like(advantages, dtype=torch.bool)
    return PolicyLoss(-advantages * log_ratio, never, never, never)


def no_surrogate(log_ratio: Tensor, advantages: Tensor) -> PolicyLoss:
    """L_t = 0: what trains is added to it."""
    never = torch.zeros_like(advantages, dtype=torch.bool)
    return PolicyLoss(torch.zeros_like(log_ratio), never, never, never)


def squared_error(values: Tensor, targets: Tensor) -> Tensor:
    """L_t = (v - R)^2 / 2, all [T], with gradient."""
    return 0.5 * (values - targets).square()


def clipped_squared_error(
    values: Tensor, old_values: Tensor, targets: Tensor, *, clip_low: float, clip_high: float
) -> Tensor:
    """L_t = max((v - R)^2, (clip(v, v_old - low, v_old + high) - R)^2) / 2, all [T].

    Args:
        values: the critic now, with gradient. old_values: the critic when the update began, for the
        tokens of all windows. targets: R. clip_low: how far below the old value the clipped value
        may go (T-PPO recipe: 0.5). clip_high: how far above (0.6).

    Source: T-PPO recipe. Changed: old values are recomputed at the update's start, where the
    recipe keeps those of the time each window was generated.
    """
    bounded = torch.minimum(torch.maximum(values, old_values - clip_low), old_values + clip_high)
    free, held = (values - targets).square(), (bounded - targets).square()
    return 0.5 * torch.maximum(free, held)
