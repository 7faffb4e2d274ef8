"""Distributions from which tokens are drawn.

In: logits or logprobs of the vocabulary. Out: logprobs of the same shape, -inf where a token cannot
be drawn; each row's probabilities add up to 1. FIRE sampling (arXiv 2410.21236) draws the first
token of a response from

    q = softmax(topk(z) / T_hot)

with z the model's logits, so that the k candidates are nearly equally likely at T_hot = 30.
"""

from collections.abc import Collection

import torch
from torch import Tensor

from headrace.protocol.messages.control import FireSampling


def narrow(logprobs: Tensor, top_k: int, top_p: float) -> Tensor:
    """Narrow [..., vocabulary] logprobs to the `top_k` likeliest tokens (-1: all).

    Of these the smallest set whose probability reaches `top_p` stays; equal tokens are cut by
    order."""
    count = min(top_k, logprobs.shape[-1]) if top_k > 0 else logprobs.shape[-1]
    kept, order = logprobs.topk(count)
    kept = kept.log_softmax(dim=-1)
    if top_p < 1.0:
        probabilities = kept.exp()
        before = probabilities.cumsum(dim=-1) - probabilities
        kept = kept.masked_fill(before >= top_p, -torch.inf).log_softmax(dim=-1)
    return torch.full_like(logprobs, -torch.inf).scatter(-1, order, kept)


def hot_logprobs(logits: Tensor, fire: FireSampling, end_token_ids: Collection[int]) -> Tensor:
    """Return log q [..., vocabulary] of a hot token, from the model's logits.

    End tokens leave the candidates before the top-k is taken, if they are banned. Adding a constant
    to a row's logits changes nothing.
    """
    scaled = logits.float() / fire.temperature
    if fire.ban_eos and end_token_ids:
        scaled[..., list(end_token_ids)] = -torch.inf
    return narrow(scaled, fire.top_k, fire.top_p)
