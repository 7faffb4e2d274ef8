"""What the windows' tokens are worth: the algorithm's advantages and returns, of a whole batch.

In: windows, and numbers of the models at the update's start. Out: `WindowAdvantages`. Promise: no
model is run here, so the same numbers give the same advantages whenever they are asked for.
"""

from typing import NamedTuple

from torch import Tensor

from learner.algorithms.advantages import moments
from learner.algorithms.registry import Algorithm
from learner.batching.batch import PolicyHalf
from learner.device import Place


class WindowAdvantages(NamedTuple):
    """What each of the windows' T tokens is worth.

    Attributes:
        values: [T] V at the update's start, None without a critic. raw: [T] advantages before
        whitening and clamping. advantages: [T] as the loss sees them. returns: [T] discounted
        reward up to the end, shaping and penalties included. returns_known: [T] bool, the
        trajectory ends with the token's window.
    """

    values: Tensor | None
    raw: Tensor
    advantages: Tensor
    returns: Tensor
    returns_known: Tensor


def judge(
    algorithm: Algorithm,
    place: Place,
    windows: PolicyHalf,
    *,
    values: Tensor | None,
    at_cuts: Tensor | None,
    penalty: Tensor,
) -> WindowAdvantages:
    """What the windows' tokens are worth, by `values` [T] of the update's start, those behind cut
    windows where the algorithm asks for them, and what the divergence costs each token [T]."""
    rewards = windows.rewards.to(place.dtype)
    cuts = None if at_cuts is None else at_cuts[windows.windows_of]
    segments = windows.segments._replace(bootstrap_value=cuts)
    raw = algorithm.advantages(rewards, penalty, values, segments, windows.groups)
    whole = place.total(moments(raw, windows.mask))
    advantages = algorithm.normalise(raw, windows.mask, whole)
    return WindowAdvantages(
        values, raw, advantages, *algorithm.returns(rewards + penalty, segments)
    )
