"""Advantages of tokens by the critic's values: GAE, EGAE at a cut, whitening.

In: rewards, values and the windows they belong to. Out: one advantage per token, without gradient.
Promises: an unfinished window has no terminal value of 0 unless configured; a window's advantages
have the same bits in any pack; sums run in float64 whatever the inputs' type.

Conventions: tokens t = 0..l-1 of a window; values[t] = V(s_t), the critic's output just before
token t; V(s_l) is the state after the last one; delta_t = r_t + gamma V(s_{t+1}) - V(s_t).
"""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from learner.batching.segments import (
    Segments,
    discounted_suffix_sums,
    segment_ids,
    segment_lengths,
    segments_of,
    tokens_left,
)

Boundary = Literal["copy", "bootstrap", "terminal", "outcome"]
Numbers = Tensor | Sequence[float]


def gae(rewards: Numbers, values: Numbers, *, gamma: float, lam: float) -> Tensor:
    """[T] GAE of one finished response: `egae` without a cut."""
    return egae(rewards, values, gamma=gamma, lam=lam, finished=True)


def egae(
    rewards: Numbers,
    values: Numbers,
    *,
    gamma: float,
    lam: float,
    finished: bool,
    boundary: Boundary = "copy",
    bootstrap_value: float | None = None,
) -> Tensor:
    """[T] Extended GAE of one window, to check a number by hand; lists count as float64.

    `lam`: lambda, 0 to 1. `bootstrap_value`: V(s_l) of a cut window, None where it is not known.
    Formula, types and errors are those of `packed_egae`; ValueError for another lambda, too."""
    if not 0.0 <= lam <= 1.0:
        raise ValueError(f"lam must lie in [0, 1], got {lam}")
    r, v = (torch.as_tensor(x, dtype=getattr(x, "dtype", torch.float64)) for x in (rewards, values))
    behind = None
    if bootstrap_value is not None:
        behind = torch.tensor([bootstrap_value], dtype=torch.float64)
    window = segments_of([v.numel()], finished=[finished], lam=lam, bootstrap_value=behind)
    return packed_egae(r, v, window, gamma=gamma, boundary=boundary)


def packed_egae(
    rewards: Tensor,
    values: Tensor,
    segments: Segments,
    *,
    gamma: float,
    boundary: Boundary = "copy",
) -> Tensor:
    """Extended GAE of windows that may be cut in the middle of a response.

    A_t = sum_{k=0}^{l-t-1} (gamma lam)^k delta_{t+k}, where V(s_l) is
        0 if the response finished (then this is GAE), else by `boundary`:
        copy       V(s_{l-1}), so the last term is r_{l-1} + (gamma - 1) V(s_{l-1})
        bootstrap  the segment's `bootstrap_value`, the critic's V(s_l)
        terminal   0, which wrongly punishes cuts; for ablation only
        outcome    `bootstrap_value`, the return that came; V(s_{l-1}) where it is not given or NaN

    Args:
        rewards: [T] reward of each token. values: [T] V(s_t). segments: the windows, each with its
        own lambda and its own end (end token or length cap); `finished`, `lam` and
        `bootstrap_value` are read. gamma: discount, 0 to 1. boundary: what V(s_l) is at a cut.

    Returns:
        [T] advantages in the type of `values` (float32 at least).

    Raises:
        ValueError: tokens differ, gamma outside [0, 1], or a bootstrap value is missing.

    Source: T-PPO Eq. 6; GAE: Schulman et al. 2015, VAPO. Changed: `boundary` is a switch,
    and the closing term is right for gamma below 1. The reward of the last token is kept (KL in the
    reward needs it).
    """
    with torch.no_grad():
        if boundary not in get_args(Boundary):
            raise ValueError(f"boundary must be one of {get_args(Boundary)}, got {boundary!r}")
        if not 0.0 <= gamma <= 1.0:
            raise ValueError(f"gamma must lie in [0, 1], got {gamma}")
        ids = segment_ids(segments)
        if not rewards.shape == values.shape == ids.shape:
            raise ValueError(
                "rewards, values and segments must have the same tokens, got "
                f"{tuple(rewards.shape)}, {tuple(values.shape)} and {tuple(ids.shape)}"
            )
        r, v = rewards.to(torch.float64), values.to(torch.float64)
        next_v = torch.cat([v[1:], v.new_zeros(1)])[: v.numel()]
        present = segment_lengths(segments) > 0
        last = (segments.cu_lengths[1:] - 1)[present]
        next_v[last] = _closing_values(v[last], segments, present, boundary)
        delta = r + gamma * next_v - v
        decay = gamma * segments.lam.to(torch.float64)[ids]
        advantages = discounted_suffix_sums(delta, decay, tokens_left(segments))
        return advantages.to(torch.promote_types(values.dtype, torch.float32))


def _closing_values(
    last_values: Tensor, segments: Segments, present: Tensor, boundary: Boundary
) -> Tensor:
    """V(s_l) of each window that has tokens: 0 where it finished, else by `boundary`."""
    finished = segments.finished[present]
    match boundary:
        case "copy":
            at_cut = last_values
        case "outcome":
            came = segments.bootstrap_value
            came = last_values if came is None else came.to(torch.float64)[present]
            at_cut = torch.where(came.isnan(), last_values, came)
        case "terminal":
            at_cut = torch.zeros_like(last_values)
        case "bootstrap":
            if segments.bootstrap_value is not None:
                at_cut = segments.bootstrap_value.to(torch.float64)[present]
            elif bool(finished.all()):
                at_cut = torch.zeros_like(last_values)
            else:
                raise ValueError("boundary 'bootstrap' needs bootstrap_value for a cut window")
    return torch.where(finished, 0.0, at_cut)


def length_adaptive_lambda(length: Tensor | float, *, alpha: float, floor: float = 0.0) -> Tensor:
    """lambda = 1 - 1 / (alpha l), clamped to [floor, 1].

    Args:
        length: response tokens, or their number. alpha: share of it that the sum of lambda^k spans
        (VAPO: 0.05). floor: least lambda, 0 to 1 (T-PPO recipe: 0.95).

    Returns:
        A float64 tensor of the same shape. Length 0 gives the floor.

    Source: VAPO Eq. 4-5. Changed: clamped, because the formula is not positive for l <= 1 / alpha.
    """
    if not alpha > 0.0:
        raise ValueError(f"alpha must be positive, got {alpha}")
    if not 0.0 <= floor <= 1.0:
        raise ValueError(f"floor must lie in [0, 1], got {floor}")
    tokens = torch.as_tensor(length, dtype=torch.float64)
    return (1.0 - 1.0 / (alpha * tokens)).clamp(min=floor, max=1.0)


def credited_length(length_so_far: Tensor, finished: Tensor, *, window: int) -> Tensor:
    """[S] length for the adaptive lambda; unfinished ones count half a window more.

    l_eff = length so far + (window // 2 if unfinished else 0)   (T-PPO recipe)"""
    return length_so_far + torch.where(finished, 0, window // 2)


def moments(x: Tensor, mask: Tensor) -> Tensor:
    """[3] float64: count, sum and sum of squares of x [T] over mask [T].

    Moments of micro-batches and ranks add up, so one all-reduce gives those of the whole batch."""
    kept = torch.where(mask, x.to(torch.float64), 0.0)
    return torch.stack([mask.sum().to(torch.float64), kept.sum(), kept.square().sum()])


def whiten(
    advantages: Tensor,
    mask: Tensor,
    *,
    eps: float = 1e-8,
    clamp: float | None = None,
    batch_moments: Tensor | None = None,
) -> Tensor:
    """(A - mean) / sqrt(var + eps) over the trained tokens, 0 elsewhere.

    Args:
        advantages: [T]. mask: [T] bool, trained tokens: boundary tokens are neither counted nor
        returned, else the last token of a cut window, whose advantage is 0, would become a strong
        push. eps: added to the (n - 1) variance. clamp: bound of the absolute value afterwards
        (T-PPO recipe: 10), or None. batch_moments: `moments` summed over all micro-batches and
        ranks; None: of this pack.

    Returns:
        [T] in the type of `advantages`; unchanged with fewer than two trained tokens.
    """
    with torch.no_grad():
        count, total, squares = (
            moments(advantages, mask) if batch_moments is None else batch_moments
        )
        x = advantages.to(torch.float64)
        mean = total / count.clamp(min=1.0)
        variance = ((squares - count * mean.square()) / (count - 1.0).clamp(min=1.0)).clamp(min=0.0)
        white = torch.where(count >= 2.0, (x - mean) * torch.rsqrt(variance + eps), x)
        if clamp is not None:
            white = white.clamp(min=-clamp, max=clamp)
        return torch.where(mask, white, 0.0).to(advantages.dtype)
