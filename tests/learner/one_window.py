"""Advantages of one window, from plain lists too: `packed_egae` of a pack of nothing else."""

from collections.abc import Sequence

import torch
from torch import Tensor

from learner.algorithms.advantages import Boundary, packed_egae
from learner.batching.segments import segments_of


def gae(
    rewards: Tensor | Sequence[float], values: Tensor | Sequence[float], *, gamma: float, lam: float
) -> Tensor:
    """[T] advantages of a whole response."""
    return egae(rewards, values, gamma=gamma, lam=lam, finished=True)


def egae(
    rewards: Tensor | Sequence[float],
    values: Tensor | Sequence[float],
    *,
    gamma: float,
    lam: float,
    finished: bool,
    boundary: Boundary = "copy",
    bootstrap_value: float | None = None,
) -> Tensor:
    """[T] advantages of a window; lists are float64."""
    r, v = _vector(rewards), _vector(values)
    bootstrap = None
    if bootstrap_value is not None:
        bootstrap = torch.tensor([bootstrap_value], dtype=torch.float64)
    window = segments_of([v.numel()], finished=[finished], lam=lam, bootstrap_value=bootstrap)
    return packed_egae(r, v, window, gamma=gamma, boundary=boundary)


def _vector(x: Tensor | Sequence[float]) -> Tensor:
    return x if isinstance(x, Tensor) else torch.tensor(x, dtype=torch.float64)
