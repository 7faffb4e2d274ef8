"""Penalties: further terms of the policy's loss, one number a token.

In: logprobs or logits. Out: a loss a token, to be added with a coefficient over its own mask.
Promise: each is smaller when the policy is better, so coefficients are not negative.
"""

from typing import Literal

import torch
from torch import Tensor

from learner.ratios import LOG_RATIO_BOUND

KlEstimator = Literal["k1", "k2", "k3"]


def kl_divergence(new: Tensor, reference: Tensor, *, estimator: KlEstimator) -> Tensor:
    """[T] estimate of KL(pi_new || pi_reference) at tokens that pi_new sampled.

    With d = log pi_new - log pi_ref, clipped to [-20, 20]:
        k1 = d                  unbiased, any sign
        k2 = d^2 / 2            biased, its gradient is the true one on average
        k3 = exp(-d) + d - 1    unbiased, never negative

    As a loss k1 is of no use: its expected gradient is 0. As part of the reward it is the usual
    one. Source: Schulman, "Approximating KL divergence", 2020.
    """
    d = (new - reference.detach()).clamp(min=-LOG_RATIO_BOUND, max=LOG_RATIO_BOUND)
    match estimator:
        case "k1":
            return d
        case "k2":
            return 0.5 * d.square()
        case "k3":
            return torch.expm1(-d) + d


def token_entropy(log_p: Tensor) -> Tensor:
    """[...] entropy in nats of distributions [..., V], given the logarithm of each probability.

    H = -sum p log p; a token of probability 0 (log p = -inf, forbidden) adds nothing.
    """
    # Finite, because 0 * -inf is NaN, in the value and again in the gradient.
    finite = log_p.clamp(min=torch.finfo(log_p.dtype).min)
    return -(log_p.exp() * finite).sum(dim=-1)


def entropy_bonus(entropy: Tensor) -> Tensor:
    """[T] -H: more entropy, less loss."""
    return -entropy


def positive_likelihood(new: Tensor) -> Tensor:
    """[T] -log pi_new, to be averaged over all tokens of right answers of the whole batch.

    L = -1 / (sum over right answers of |o_i|) * sum sum log pi; 0 if there is none (that is what
    `aggregation` gives for an empty mask). Source: VAPO Eq. 9-10, weight 0.1.
    """
    return -new


def positive_mask(mask: Tensor, right: Tensor, segment_ids: Tensor) -> Tensor:
    """[T] bool: tokens of the mask [T] in segments that are right answers (`right`, [S] bool)."""
    return mask & right[segment_ids]
