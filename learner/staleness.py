"""Staleness: how old a token is when it is trained, and how much may be under way.

In: the weight version of each token and of the learner. Out: lags, the mask of tokens young
enough, and the admission bound. Promise: plain integers, no clock.
"""

import torch
from torch import Tensor


def token_lag(versions: Tensor, *, learner_version: int) -> Tensor:
    """[T] int: learner's version minus the version that sampled each token."""
    return learner_version - versions


def fresh_mask(versions: Tensor, *, learner_version: int, max_staleness: int) -> Tensor:
    """[T] bool: tokens whose lag is at most `max_staleness`."""
    return token_lag(versions, learner_version=learner_version) <= max_staleness


def trajectory_lag(
    versions: Tensor, segment_ids: Tensor, num_segments: int, *, learner_version: int
) -> tuple[Tensor, Tensor]:
    """Largest and mean lag of each window: [S] int64 and [S] float64.

    The largest is that of the oldest token, usually the first (AReaL's head token). Windows
    without tokens give 0.
    """
    lag = token_lag(versions, learner_version=learner_version).to(torch.int64)
    zeros = torch.zeros(num_segments, dtype=torch.int64, device=lag.device)
    largest = zeros.scatter_reduce(0, segment_ids, lag, "amax", include_self=False)
    counts = zeros.index_add(0, segment_ids, torch.ones_like(lag)).clamp(min=1)
    return largest, zeros.index_add(0, segment_ids, lag).to(torch.float64) / counts


def admission_capacity(
    *, max_staleness: int, version: int, batch: int, accepted: int, running: int
) -> int:
    """How many more trajectories may start: (eta + i + 1) B - (accepted + running).

    Zero or less means wait; eta = 0 is synchronous. Source: AReaL's staleness manager, counting
    trajectories. The stream's own back-pressure counts windows by the same inequality.
    """
    return (max_staleness + version + 1) * batch - (accepted + running)
