"""Aggregation: from one loss per token to one number.

In: masks and the counts of the whole batch. Out: a weight for each token, such that loss = sum over
all micro-batches and ranks of sum_t weight_t * loss_t. Promise: because the counts are the batch's
and not the micro-batch's, how the batch is split changes nothing. Where a count is 0 no mask holds
a token, and weights are 0.

Factors that DeepSpeed needs (world size, accumulation) do not belong here.
"""

import torch
from torch import Tensor


def token_mean_weights(mask: Tensor, *, global_tokens: float) -> Tensor:
    """[T] float64: mask / N, every token of the batch counts the same.

    Args:
        mask: [T] bool, tokens of this micro-batch that have a loss. global_tokens: N, tokens
        counted over the whole batch. It may be more than the masks hold: where tokens are dropped
        for their weight, the original count keeps the others' size.

    Source: DAPO section 3.3, VAPO Eq. 7-8.
    """
    return mask.to(torch.float64) / (global_tokens or 1)


def sample_mean_weights(
    mask: Tensor, segment_ids: Tensor, *, global_samples: float, sample_tokens: Tensor
) -> Tensor:
    """[T] float64: mask / (G n_i), every sample counts the same and its tokens share.

    Args:
        mask: [T] bool, tokens of this micro-batch that have a loss. segment_ids: [T] int, the
        sample of each token. global_samples: G, samples with a loss in the whole batch.
        sample_tokens: [S] n_i, also those in other micro-batches.

    Source: PPO as in VAPO Eq. 6; the value loss of the T-PPO recipe.
    """
    per_sample = sample_tokens.to(torch.float64)[segment_ids].clamp(min=1.0)
    return mask.to(torch.float64) / (per_sample * (global_samples or 1))


def fixed_length_weights(mask: Tensor, *, global_samples: float, length: int) -> Tensor:
    """[T] float64: mask / (G L), with one L for all samples, e.g. the length cap.

    Long and short samples then differ by what they sum to, without token loss's dependence on
    the batch. Source: Dr. GRPO, Liu et al. 2025."""
    return mask.to(torch.float64) / ((global_samples or 1) * length)


def weighted_sum(loss: Tensor, weights: Tensor) -> Tensor:
    """Scalar: sum_t weight_t loss_t; losses of tokens without a weight are not read."""
    return (torch.where(weights != 0, loss, 0.0) * weights.to(loss.dtype)).sum()
