"""EGAE at one state, by many continuations: windows, rules at the cut, lambdas.

In: continuations of a state with their returns, and a value model. Out: an estimate of each, and
what the state adds to the figures of every estimator. The advantages are the learner's own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from benchmarks.estimator_error import Continuations, Terms, terms
from benchmarks.frozen_policy import MAX_TOKENS, Critic, Rollouts, State
from learner.advantages import Boundary, packed_egae
from learner.segments import segments_of

WINDOWS = (15, 30, 60, 120, MAX_TOKENS)
BOUNDARIES: tuple[Boundary, ...] = ("copy", "bootstrap", "terminal")
LAMBDAS = (0.95, 1.0)


@dataclass(frozen=True, slots=True)
class Estimator:
    """One setting of EGAE."""

    window: int
    boundary: Boundary
    lam: float


ESTIMATORS = tuple(
    Estimator(window, boundary, lam)
    for window in WINDOWS
    for boundary in BOUNDARIES
    for lam in LAMBDAS
    if window < MAX_TOKENS or boundary == BOUNDARIES[0]
)
"""Without a cut there is no rule at it."""


def window_end(position: int, window: int) -> int:
    """The response length at which the window that holds `position` is cut."""
    return (position // window + 1) * window


def estimates(
    position: int, lengths: Sequence[int], returns: Tensor, values: Tensor, estimator: Estimator
) -> Tensor:
    """[n] float64: the advantage at `position` by each of n continuations.

    Args:
        position: t, response tokens before the state.
        lengths: [n] tokens of each continuation from t on, 1 or more.
        returns: [n] reward of each continuation's last token, 0 elsewhere.
        values: [n, longest] V in the state before each token of each continuation.
        estimator: window, rule at the cut, lambda.

    Tokens before t do not matter to A_t, so each window is given from t on.
    """
    room = window_end(position, estimator.window) - position
    ends = [min(length, room) for length in lengths]
    finished = [length <= room for length in lengths]
    last = torch.tensor(ends).cumsum(0) - 1
    rewards = torch.zeros(sum(ends), dtype=torch.float64)
    rewards[last] = torch.where(torch.tensor(finished), returns, 0.0)
    after = torch.tensor(ends).clamp(max=values.shape[1] - 1)
    segments = segments_of(
        ends,
        finished=finished,
        lam=estimator.lam,
        bootstrap_value=values.gather(1, after[:, None])[:, 0],
    )
    packed = torch.cat([row[:end] for row, end in zip(values, ends, strict=True)])
    advantages = packed_egae(rewards, packed, segments, gamma=1.0, boundary=estimator.boundary)
    return advantages[segments.cu_lengths[:-1]]


@dataclass(frozen=True, slots=True)
class Sampled:
    """A state and what the policy wrote on from it, with its action held and without."""

    state: State
    held: Rollouts
    free: Rollouts


def state_terms(one: Sampled, critic: Critic) -> dict[Estimator, Terms]:
    """What one state adds to the figures of every estimator."""
    position = one.state.position
    known = one.state.prompt + one.state.prefix
    sides = [
        ([len(tokens) for tokens in side.tokens], side.returns, critic.values(known, side.tokens))
        for side in (one.held, one.free)
    ]
    lengths = np.array(sides[0][0])
    found = {}
    for estimator in ESTIMATORS:
        held, free = (estimates(position, *side, estimator).numpy() for side in sides)
        cut = lengths > window_end(position, estimator.window) - position
        returns = one.held.returns.numpy(), one.free.returns.numpy()
        found[estimator] = terms(Continuations(held, returns[0], free, returns[1], cut))
    return found


def is_near(position: int, window: int) -> bool:
    """Whether a position lies in the last quarter of its window."""
    return window_end(position, window) - position <= window / 4
