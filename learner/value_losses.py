"""Value losses: from the critic's output and its target to one loss a token.

In: values with gradient, targets and old values without. Out: the loss of each token, and where
the clip holds. Promise: half the squared error, not averaged and not masked.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class ValueLoss(NamedTuple):
    """Loss [T] with gradient, and clipped [T] bool: the clipped branch binds, gradient 0."""

    loss: Tensor
    clipped: Tensor


def squared_error(values: Tensor, targets: Tensor) -> ValueLoss:
    """L_t = (v - R)^2 / 2, all [T]."""
    return ValueLoss(0.5 * (values - targets).square(), torch.zeros_like(values, dtype=torch.bool))


def clipped_squared_error(
    values: Tensor, old_values: Tensor, targets: Tensor, *, clip_low: float, clip_high: float
) -> ValueLoss:
    """L_t = max((v - R)^2, (clip(v, v_old - low, v_old + high) - R)^2) / 2, all [T].

    Args:
        values: the critic now, with gradient.
        old_values: the critic when the update began, for the tokens of all windows.
        targets: R.
        clip_low: how far below the old value the clipped value may go (T-PPO recipe: 0.5).
        clip_high: how far above (0.6).

    Source: T-PPO recipe. Changed: old values are recomputed at the update's start, where the
    recipe keeps those of the time each window was generated.
    """
    bounded = torch.minimum(torch.maximum(values, old_values - clip_low), old_values + clip_high)
    free, held = (values - targets).square(), (bounded - targets).square()
    return ValueLoss(0.5 * torch.maximum(free, held), held > free)
