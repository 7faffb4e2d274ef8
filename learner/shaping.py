"""Reward shaping: what is added to a trajectory's reward before advantages are made.

In: lengths, statuses, KL. Out: rewards or masks. Promise: the verifier's own score stays apart,
so that accuracy and the choice of groups never see what was added here.
"""

import torch
from torch import Tensor


def overlong_penalty(
    lengths: Tensor, *, max_length: int, cache: int, factor: float = 1.0, clamp: bool = True
) -> Tensor:
    """[N] float64 soft punishment of long responses.

        0                                    |y| <= Lmax - Lcache
        ((Lmax - Lcache) - |y|) / Lcache     up to Lmax, where it is -1
        -1                                   beyond

    Args:
        lengths: [N] response tokens.
        max_length: Lmax (DAPO: 20480).
        cache: Lcache, the stretch over which it grows (DAPO: 4096).
        factor: multiplies it.
        clamp: False lets it grow below -1 beyond Lmax, as verl does.

    Source: DAPO section 3.4.
    """
    if not 0 < cache <= max_length:
        raise ValueError(f"cache must lie between 1 and max_length {max_length}, got {cache}")
    penalty = ((max_length - cache) - lengths.to(torch.float64)) / cache
    return factor * penalty.clamp(max=0.0, min=-1.0 if clamp else None)


def overlong_filter(mask: Tensor, truncated: Tensor, segment_ids: Tensor) -> Tensor:
    """[T] bool: the mask without tokens of trajectories [S] that met the length cap.

    Source: DAPO's ablation row; its authors' best run does without.
    """
    return mask & ~truncated[segment_ids]


def rewards_with_kl(rewards: Tensor, kl: Tensor, *, coefficient: float) -> Tensor:
    """[T] r_t - beta KL_t, without gradient: KL as part of the reward (Ouyang et al. 2022)."""
    return rewards - coefficient * kl.detach()


def mixed_groups(scores: Tensor, groups: Tensor) -> Tensor:
    """[N] bool: trajectories of groups whose scores are not all the same (dynamic sampling).

    Args:
        scores: [N] the verifier's score *before* shaping: a group that is all right or all wrong
            teaches nothing, even where overlong penalties make its rewards differ.
        groups: [N] int, equal for the trajectories of one prompt.

    Source: DAPO section 3.2. A group of one has no spread and is not kept (verl keeps it); a
    recipe with one generation a prompt must not ask for dynamic sampling.
    """
    names, ids = torch.unique(groups, return_inverse=True)
    x = scores.to(torch.float64)
    blank = torch.zeros(names.numel(), dtype=torch.float64, device=x.device)
    highest = blank.scatter_reduce(0, ids, x, "amax", include_self=False)
    lowest = blank.scatter_reduce(0, ids, x, "amin", include_self=False)
    return (highest != lowest)[ids]
