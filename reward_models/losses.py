"""The three losses, as pure functions. Imports torch and nothing of ours.

Letters: N examples, M labelled line ends. All return one number an example (or line end); whoever
trains divides the sum by how many there are in the whole batch.
"""

import torch
from torch import Tensor
from torch.nn.functional import softplus


def bradley_terry(chosen: Tensor, rejected: Tensor, margin: Tensor) -> Tensor:
    """[N] -log sigma(chosen - rejected - margin)."""
    return softplus(margin + rejected - chosen)


def probability_of_yes(log_yes: Tensor, log_no: Tensor) -> Tensor:
    """The softmax over the two words alone: sigma(log_yes - log_no)."""
    return torch.sigmoid(log_yes - log_no)


def consistency(front: Tensor, back: Tensor) -> Tensor:
    """[N] (p(a, b) + p(b, a) - 1)^2 of p(yes) in both orders (Pairwise-RL, L_pos; the paper's exact
    form is not known to us)."""
    return (front + back - 1.0).square()


def pairwise(log_yes: Tensor, log_no: Tensor, is_yes: Tensor, *, weight: float) -> Tensor:
    """[N] cross-entropy of the right word, averaged over the orders shown, plus `weight` times
    `consistency` where both are.

    Args:
        log_yes, log_no: [N, orders] log-probabilities of the words over the whole vocabulary.
        is_yes: [N, orders] whether yes is right, i.e. the better answer stands first.
        weight: zeta.
    """
    entropy = -torch.where(is_yes, log_yes, log_no).mean(dim=1)
    if log_yes.shape[1] < 2 or not weight:
        return entropy
    front, back = probability_of_yes(log_yes, log_no).unbind(dim=1)
    return entropy + weight * consistency(front, back)


def line_error(scores: Tensor, labels: Tensor) -> Tensor:
    """[M] squared errors at labelled line ends."""
    return (scores - labels).square()
