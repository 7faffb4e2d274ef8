"""Penalties: extra terms of the policy's loss and of a trajectory's reward.

In: logprobs or logits, or lengths. Out: one loss per token, to be added with a coefficient over its
own mask, or what is added to a reward (the verifier's own score stays apart, so that accuracy and
the choice of groups never see it). Promise: each loss is smaller when the policy is better, so
coefficients are not negative.
"""

from typing import Literal

import torch
from torch import Tensor

from learner.algorithms.ratios import LOG_RATIO_BOUND

KlEstimator = Literal["k1", "k1+", "k2", "k3", "k3+"]

K3_BOUND = 10.0
"""Beyond it a token's k3, which grows like exp(-d), would drown all the others."""


def kl_divergence(new: Tensor, reference: Tensor, *, estimator: KlEstimator) -> Tensor:
    """[T] estimate of KL(pi_new || pi_reference) at tokens that pi_new sampled.

    With d = log pi_new - log pi_ref:
        k1 = d                  unbiased, any sign
        k2 = d^2 / 2            biased
        k3 = exp(-d) + d - 1    unbiased, never negative
        k1+, k3+                the value of k1 and of k3, the gradient of k2

    An estimate of the right size need not have the right gradient. In a loss the expected gradient
    of k1 is 0 and that of k3 belongs to KL(pi_ref || pi_new), the other divergence; k2's, which is
    d grad log pi_new, is that of KL(pi_new || pi_ref) exactly. In a reward k1 alone gives the
    exact policy gradient, and "+" changes nothing.

    Bounds: d counts as -20 or 20 beyond these, but keeps its gradient, so that a token far away is
    still pulled back; k3 counts as 10 beyond that, and its own gradient is 0 there.

    Source: Schulman, "Approximating KL divergence", 2020; the names, the gradient by straight
    through and the bounds are verl's (its k2 has no bound)."""
    distance = new - reference.detach()
    bounded = distance.clamp(min=-LOG_RATIO_BOUND, max=LOG_RATIO_BOUND)
    d = bounded.detach() + (distance - distance.detach())
    half_square = 0.5 * d.square()
    match estimator:
        case "k1" | "k1+":
            value = d
        case "k2":
            value = half_square
        case "k3" | "k3+":
            value = (torch.expm1(-d) + d).clamp(max=K3_BOUND)
    if not estimator.endswith("+"):
        return value
    return value.detach() + (half_square - half_square.detach())


def token_entropy(log_p: Tensor) -> Tensor:
    """[...] entropy in nats of distributions [..., V], given as log-probabilities.

    H = -sum p log p; a token of probability 0 (log p = -inf, forbidden) adds nothing."""
    # Finite, because 0 * -inf is NaN, in the value and again in the gradient.
    finite = log_p.clamp(min=torch.finfo(log_p.dtype).min)
    return -(log_p.exp() * finite).sum(dim=-1)


def overlong_penalty(
    lengths: Tensor, *, max_length: int, cache: int, factor: float = 1.0
) -> Tensor:
    """[N] float64 soft punishment of long responses.

        0                                    |y| <= Lmax - Lcache
        ((Lmax - Lcache) - |y|) / Lcache     up to Lmax, where it is -1
        -1                                   beyond

    Args:
        lengths: [N] response tokens. max_length: Lmax (DAPO: 20480). cache: Lcache, the stretch
        over which it grows (DAPO: 4096). factor: multiplies it.

    Source: DAPO section 3.4.
    """
    if not 0 < cache <= max_length:
        raise ValueError(f"cache must lie between 1 and max_length {max_length}, got {cache}")
    penalty = ((max_length - cache) - lengths.to(torch.float64)) / cache
    return factor * penalty.clamp(max=0.0, min=-1.0)
