"""Group statistics of the responses to a prompt, for critic-free advantages.

In: the rewards of whole groups. Out: an advantage for each member. Promise: statistics are of whole
groups, whichever of their members are in this micro-batch, rank or batch.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

Baseline = Literal["mean", "leave_one_out", "none"]
Scale = Literal["sample_std", "population_std", "none"]
SCALE_EPS = 1e-6


class Groups(NamedTuple):
    """N members of groups, each group laid out once.

    Attributes:
        rewards: [N] float32, shaped rewards. ids: [N] int64, equal for the members of one group.
        members: [S] int64, the index of each window's own response; -1 where it has no group.
    """

    rewards: Tensor
    ids: Tensor
    members: Tensor


def group_advantages(
    rewards: Tensor, groups: Tensor, *, baseline: Baseline, scale: Scale
) -> Tensor:
    """A_i = (R_i - b_i) / (std of its group + 1e-6).

    Args:
        rewards: [N] reward of each member. groups: [N] int, equal for the members of one group.
        baseline: "mean" of the group (GRPO, DAPO), "leave_one_out" the mean of the others (RLOO),
        or "none" (REINFORCE). scale: "sample_std" (n - 1), "population_std" (n), or "none".

    Returns:
        [N]; 0 where there is a baseline and nothing to compare with.

    Source: GRPO; DAPO section 2; RLOO, Ahmadian et al. 2024. The papers leave the std open.
    """
    with torch.no_grad():
        centred, ids, counts = _centred(rewards, groups)
        match baseline:
            case "mean":
                advantages = centred
            case "leave_one_out":
                advantages = centred * (counts / (counts - 1.0).clamp(min=1.0))[ids]
            case "none":
                advantages = rewards.to(torch.float64)
        if scale != "none":
            squares = torch.zeros_like(counts).index_add(0, ids, centred.square())
            freedom = counts - 1.0 if scale == "sample_std" else counts
            spread = (squares / freedom.clamp(min=1.0)).sqrt()[ids]
            advantages = torch.where(advantages == 0.0, 0.0, advantages / (spread + SCALE_EPS))
        return advantages.to(torch.promote_types(rewards.dtype, torch.float32))


def _centred(rewards: Tensor, groups: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[N] reward minus group mean, [N] group index from 0, [groups] float64 sizes."""
    names, ids = torch.unique(groups, return_inverse=True)
    x = rewards.to(torch.float64)
    zeros = torch.zeros(names.numel(), dtype=torch.float64, device=x.device)
    counts = zeros.index_add(0, ids, torch.ones_like(x))
    centred = x - (zeros.index_add(0, ids, x) / counts)[ids]
    # Equal rewards can differ from their own mean by rounding, which a std of 0 would blow up.
    highest = zeros.scatter_reduce(0, ids, x, "amax", include_self=False)
    lowest = zeros.scatter_reduce(0, ids, x, "amin", include_self=False)
    centred = torch.where((highest == lowest)[ids], 0.0, centred)
    return centred, ids, counts
