"""Reward shaping: what is added to a trajectory's reward before advantages are made.

In: lengths. Out: what is added. Promise: the verifier's own score stays apart, so that accuracy and
the choice of groups never see it.
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
