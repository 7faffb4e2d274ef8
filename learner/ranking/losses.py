"""The losses of a session ranker.

In: representations of two views of each session, or scores and labels. Out: losses for each anchor
or score. Source: COCA (arXiv 2108.10510), equations 2 and 5; NT-Xent as in its released code:
negatives are those of the batch at hand.
"""

import torch
import torch.nn.functional as functional
from torch import Tensor


def contrastive(first: Tensor, second: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """NT-Xent of N sessions, each in two views.

    Args:
        first, second: [N, D] representations of the views. temperature: divides cosines.

    Returns:
        [2N] -log softmax of each anchor's other view among all other views, and [2N] whether that
        one is the nearest. N equal views give log(2N - 1).
    """
    views = functional.normalize(torch.cat([first, second]).float(), dim=-1)
    near = (views @ views.T) / temperature
    near.fill_diagonal_(-torch.inf)
    places = torch.arange(len(views), device=views.device)
    others = places.roll(len(first))
    return functional.cross_entropy(near, others, reduction="none"), near.argmax(1) == others


def pointwise(scores: Tensor, labels: Tensor) -> Tensor:
    """[B] cross-entropy of each candidate's score against whether it is relevant."""
    relevant = (labels > 0).float()
    return functional.binary_cross_entropy_with_logits(scores.float(), relevant, reduction="none")
