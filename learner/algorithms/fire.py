"""Loss corrections for hot tokens of FIRE sampling (arXiv 2410.21236).

A hot token was drawn from q and not from the policy pi. In: streams of the trained tokens [T]: loss
weights, behaviour logprobs (log q at hot tokens), logprobs under the weights of the update's start,
and which tokens are hot. Out: the loss weights and behaviour logprobs that express a correction.
Promises: tokens that are not hot stay as they are, to the bit; a token without weight gets none; no
gradient flows.

A hot token's loss would be right with the importance weight pi / q, which can be large:

    correction    loss weight               behaviour logprob
    mask          0, as the batch has it    log q, as it was
    ratio         weight min(pi / q, cap)   log pi at the update's start
    recompute     weight                    log pi at the update's start (pi / q taken as 1: biased)

With "ratio" the importance weight stands in the loss weight and nowhere else. Left in the behaviour
logprob as well it would count twice, and PPO's clip, which is made for small steps of the policy,
would cut off the gradient of nearly every hot token.
"""

from typing import Literal

import torch
from torch import Tensor

from learner.algorithms.ratios import log_ratio

Correction = Literal["ratio", "recompute"]


@torch.no_grad()
def hot_streams(
    weight: Tensor,
    behaviour: Tensor,
    start: Tensor,
    hot: Tensor,
    *,
    correction: Correction,
    cap: float,
) -> tuple[Tensor, Tensor]:
    """[T] corrected loss weights, and [T] logprobs in the denominator of the policy's ratio.

    Args:
        weight: [T] loss weights, 0 where a token does not train. behaviour: [T] logprobs of what
        sampled: log q at hot tokens. start: [T] logprobs under the weights of the update's start.
        hot: [T] bool. correction: see the module's docstring. cap: largest importance weight of
        "ratio" (2 to 10 are usual).
    """
    anchored = torch.where(hot, start, behaviour)
    if correction == "recompute":
        return weight, anchored
    rho = log_ratio(start, behaviour, hot).exp()
    return torch.where(hot, weight * rho.clamp(max=cap), weight), anchored
