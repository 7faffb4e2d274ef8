"""Importance ratios of the policy, and weights of stale or off-policy tokens.

In: logprobs of the same tokens under the learner now (new), at the clip's anchor (proximal) and
under their sampler (behaviour). Out: a log ratio with gradient and a weight without. Promises:
tokens outside the mask get ratio 1 and weight 0 whatever their logprobs are; every log ratio is
clipped to [-20, 20] before exp.

The loss is weight * min(r A, clip(r) A) per token, r = exp(log_ratio), summed over the *original*
mask: a token dropped here does not make the others bigger (AReaL).
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from learner.batching.segments import segment_sums

LOG_RATIO_BOUND = 20.0

OverCap = Literal["clamp", "mask"]


class Ratio(NamedTuple):
    """The policy's ratio to its anchor, and the anchor's weight against the sampler.

    Attributes:
        log_ratio: [T] with gradient; 0 outside the mask. weight: [T] without gradient; 0 outside
        the mask and on dropped tokens. over_cap: [T] bool, tokens of the mask whose weight was
        truncated or dropped.
    """

    log_ratio: Tensor
    weight: Tensor
    over_cap: Tensor


def log_ratio(numerator: Tensor, denominator: Tensor, mask: Tensor) -> Tensor:
    """[T] log numerator - log denominator on the mask, 0 elsewhere, within [-20, 20].

    Where the bound binds the gradient is 0: such a token cannot be trusted."""
    difference = torch.where(mask, numerator - denominator, 0.0)
    return difference.clamp(min=-LOG_RATIO_BOUND, max=LOG_RATIO_BOUND)


def behaviour_ratio(new: Tensor, behaviour: Tensor, mask: Tensor) -> Ratio:
    """r = pi_new / pi_behaviour, weight 1: plain PPO, clipped around the sampler.

    All tensors [T]. The ratio itself corrects for staleness and for the engine, so a further
    weight would count the correction twice."""
    log_r = log_ratio(new, behaviour.detach(), mask)
    return Ratio(log_r, mask.to(log_r.dtype), torch.zeros_like(mask))


def tis_ratio(
    new: Tensor,
    proximal: Tensor,
    behaviour: Tensor,
    mask: Tensor,
    *,
    cap: float,
    over_cap: OverCap = "clamp",
    segment_ids: Tensor | None = None,
    num_segments: int = 0,
) -> Ratio:
    """r = pi_new / pi_proximal, weight = pi_proximal / pi_behaviour, truncated.

    Args:
        new, proximal, behaviour: [T] logprobs. mask: [T] bool, the tokens that train. cap: largest
        weight C (token 1.5 to 5, sequence 2 to 10). over_cap: "clamp" cuts a larger weight to C
        (TIS), "mask" drops what is over the cap (MIS). segment_ids, num_segments: [T] and S; then
        each token has the product over its whole sequence's masked tokens, whose summed log ratio
        is clipped to [-20, 20] like a token's. That is meaningful only if a segment is a whole
        response. None: each token has a weight of its own.

    Source: truncated importance sampling, Yao et al. 2025, where proximal (the learner's) and
    behaviour (the sampler's) differ by the engine. Decoupled PPO (Hilton et al. 2110.00641; AReaL
    2505.24298) is the same formula by tokens with another reading: there they differ by age. With
    proximal = behaviour it is `behaviour_ratio`.
    """
    log_r = log_ratio(new, proximal.detach(), mask)
    with torch.no_grad():
        log_rho = log_ratio(proximal, behaviour, mask)
        rho = log_rho.exp()
        if segment_ids is not None:
            whole = segment_sums(log_rho, segment_ids, num_segments)
            whole = whole.clamp(min=-LOG_RATIO_BOUND, max=LOG_RATIO_BOUND)
            rho = whole.exp().to(proximal.dtype)[segment_ids]
        over = mask & (rho > cap)
        weight = rho.clamp(max=cap) if over_cap == "clamp" else torch.where(over, 0.0, rho)
        return Ratio(log_r, torch.where(mask, weight, 0.0), over)


def geometric_filter(
    proximal: Tensor,
    behaviour: Tensor,
    mask: Tensor,
    segment_ids: Tensor,
    num_segments: int,
    *,
    low: float = 0.999,
    high: float = 1.001,
) -> Tensor:
    """[T] bool: the mask without sequences whose mean ratio is outside [low, high].

    The mean is exp(mean_t log rho_t). Unlike the product it does not grow with length.
    Source: verl's rollout correction. A sequence without masked tokens passes (it has none)."""
    with torch.no_grad():
        log_rho = segment_sums(log_ratio(proximal, behaviour, mask), segment_ids, num_segments)
        counts = segment_sums(mask, segment_ids, num_segments).clamp(min=1.0)
        mean = (log_rho / counts).exp()
        return mask & ((mean >= low) & (mean <= high))[segment_ids]


def interpolated_proximal(
    new: Tensor, behaviour: Tensor, versions: Tensor, *, learner_version: int
) -> Tensor:
    """[T] proximal logprobs, interpolated between the sampler's and the learner's.

    No forward pass: log pi_prox = log pi_behav + alpha (log pi_new - log pi_behav),
    alpha = (v_prox - v_behav) / (v_new - v_behav) clamped to [0, 1], v_prox = v_new - 1, and
    alpha = 0 where v_behav >= v_new.

    Args:
        new: [T] logprobs under the learner's current weights; no gradient flows through them.
        behaviour: [T] logprobs that sampled. versions: [T] int, weight version that sampled each
        token. learner_version: v_new.

    Source: A-3PO, AReaL's "loglinear". Prompt tokens (version -1) belong outside the mask.
    """
    with torch.no_grad():
        return behaviour + interpolation_alpha(versions, learner_version=learner_version) * (
            new - behaviour
        )


def interpolation_alpha(versions: Tensor, *, learner_version: int) -> Tensor:
    """[T] float: the proximal version, between the sampler's (0) and learner's (1)."""
    lag = learner_version - versions
    return torch.where(lag > 0, (lag - 1) / lag, 0.0)
