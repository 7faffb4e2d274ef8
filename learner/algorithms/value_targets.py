"""Value targets of the critic: returns and lambda returns.

In: rewards (and values) of whole responses. Out: one target per token and the mask of tokens that
may train the critic. Promise: the mask is False on every token of an unfinished trajectory, so a
target that lacks its outcome is never learned.

A segment here is the whole response over all its windows, not one window. The paper's recipe is
the plain sum of rewards, right for gamma = 1 only; here the discount is right everywhere.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from learner.algorithms.advantages import packed_egae
from learner.batching.segments import Segments, discounted_suffix_sums, segment_ids, tokens_left


class ValueTargets(NamedTuple):
    """Targets [T] float, and mask [T] bool: True on tokens of finished trajectories."""

    targets: Tensor
    mask: Tensor


def monte_carlo_returns(rewards: Tensor, segments: Segments, *, gamma: float) -> ValueTargets:
    """R_t = sum_{k=0}^{T-t-1} gamma^k r_{t+k}, for each response of a pack.

    Args:
        rewards: [T] reward of each token. segments: one segment per response, its windows
        concatenated. gamma: discount, 0 to 1.

    Source: the T-PPO recipe; VC-PPO with lambda_critic = 1.
    """
    with torch.no_grad():
        finished = segments.finished[segment_ids(segments)]
        x = rewards.to(torch.float64)
        returns = discounted_suffix_sums(x, torch.full_like(x, gamma), tokens_left(segments))
        dtype = torch.promote_types(rewards.dtype, torch.float32)
        return ValueTargets(returns.to(dtype), finished)


def lambda_returns(
    rewards: Tensor, values: Tensor, segments: Segments, *, gamma: float, lam: float
) -> ValueTargets:
    """target_t = sum_k (gamma lam)^k delta_{t+k} + V(s_t), as in decoupled GAE.

    Args:
        rewards: [T] reward of each token. values: [T] V(s_t), as they were when the update began.
        segments: one segment per response; its `lam`, which is the policy's, is not read. gamma:
        discount, 0 to 1. lam: lambda of the critic. At 1 the values cancel; then they are left out
        altogether, so that the target does not depend on them by a single bit.

    Source: VC-PPO (decoupled GAE).
    """
    with torch.no_grad():
        if lam == 1.0:
            return monte_carlo_returns(rewards.to(values.dtype), segments, gamma=gamma)
        critic = segments._replace(lam=torch.full_like(segments.lam, lam))
        v = values.to(torch.float64)
        targets = packed_egae(rewards, v, critic, gamma=gamma) + v
        dtype = torch.promote_types(values.dtype, torch.float32)
        return ValueTargets(targets.to(dtype), segments.finished[segment_ids(segments)])
