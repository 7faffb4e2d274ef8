"""Value head by ridge regression of returns on state features, without gradients.

In: features of the states of finished answers, and their returns. Out: a linear head. Promises: the
head is the exact solution for all tokens given so far, the older ones counting less; its penalty is
the one of `PENALTIES` that predicts answers best which were not fitted (4 folds of groups); where
nothing can be predicted, it is the mean return. Sums of ranks add up to those of one rank. Ours:
the Monte-Carlo targets of VC-PPO (arXiv 2503.01491), fitted in closed form.
"""

import math

import torch
from torch import Tensor

FOLDS = 4
PENALTIES = (1e-3, 1e-2, 1e-1, 1.0, 10.0, math.inf)
"""Penalties of standardised features' squared weights; inf: mean return alone."""
_FLAT = 1e-10
"""Variance at or below which a feature is constant."""


class LeastSquaresHead:
    """V(s) = offset + weights . x(s).

    Attributes:
        sums: [FOLDS, F + 2, F + 2] float64, of the products of (1, x, return) over the tokens of
        each fold. weights: [F], offset: []: float64. penalty: the one chosen last.
    """

    def __init__(self, features: int, device: torch.device) -> None:
        size = features + 2
        self.sums = torch.zeros(FOLDS, size, size, dtype=torch.float64, device=device)
        self.weights = torch.zeros(features, dtype=torch.float64, device=device)
        self.offset = torch.zeros((), dtype=torch.float64, device=device)
        self.penalty = math.inf

    def values(self, features: Tensor) -> Tensor:
        """[N] of features [N, F]."""
        return (features.double() @ self.weights + self.offset).to(features.dtype)

    def products(self, features: Tensor, returns: Tensor, groups: Tensor) -> Tensor:
        """[FOLDS, F + 2, F + 2] the tokens' summands of `sums`.

        Features [N, F], returns [N]. The group [N] of a token's answer determines its fold, so that
        no other answer to a prompt tells of one that is left out."""
        rows = torch.cat([torch.ones_like(returns)[:, None], features, returns[:, None]], dim=1)
        folds = (rows[groups % FOLDS == fold].double() for fold in range(FOLDS))
        return torch.stack([x.T @ x for x in folds])

    def refit(self, products: Tensor, *, keep: float) -> None:
        """Add these tokens, scale the weight of all earlier ones by `keep`, and solve."""
        self.sums = keep * self.sums + products
        whole = self.sums.sum(dim=0)
        if not whole[0, 0]:
            return
        errors = torch.zeros(len(PENALTIES), dtype=torch.float64, device=whole.device)
        for number, fold in enumerate(self.sums):
            # A difference to the whole would be noise beside a much larger fold.
            rest = self.sums[torch.arange(FOLDS) != number].sum(dim=0)
            if fold[0, 0] > 0 and rest[0, 0] > 0:
                heads = _ridge(rest)
                errors += torch.einsum("pi,ij,pj->p", heads, fold, heads)
        best = int(errors.argmin()) if bool(errors.any()) else len(PENALTIES) - 1
        self.penalty = PENALTIES[best]
        head = -_ridge(whole)[best]
        self.offset, self.weights = head[0].clone(), head[1:-1].clone()

    def state(self) -> dict[str, Tensor]:
        """Return sums, weights and offset."""
        return {"sums": self.sums, "weights": self.weights, "offset": self.offset}

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
        for name, value in self.state().items():
            setattr(self, name, tensors[name].to(value.device))


def _ridge(sums: Tensor) -> Tensor:
    """[PENALTIES, F + 2] solutions for `sums` [F + 2, F + 2], as rows a.

    a . (1, x, r) is the part of r that a head leaves unexplained."""
    mean = sums[0, 1:] / sums[0, 0]
    moments = sums[1:, 1:] / sums[0, 0] - mean[:, None] * mean
    variance = moments.diagonal()[:-1]
    scale = torch.where(variance > _FLAT, variance, math.inf).rsqrt()
    matrix = moments[:-1, :-1] * scale[:, None] * scale
    towards = (moments[:-1, -1] * scale)[:, None]
    unit = torch.eye(len(scale)).to(matrix)
    # All of these take half the time of an eigendecomposition, which would serve all penalties.
    solved = [
        torch.cholesky_solve(towards, torch.linalg.cholesky(matrix + penalty * unit))
        if math.isfinite(penalty)
        else torch.zeros_like(towards)
        for penalty in PENALTIES
    ]
    weights = torch.cat(solved, dim=1).T * scale
    offsets = mean[-1] - weights @ mean[:-1]
    return torch.cat([-offsets[:, None], -weights, torch.ones_like(offsets)[:, None]], dim=1)
