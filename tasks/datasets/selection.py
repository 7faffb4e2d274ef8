"""Selection of training prompts: those on which a policy scores lowest (Pre-PPO).

In: the rewards of the answers to each prompt, before training. Out: ids of the prompts that are
kept, and of those whose reference seems broken. Source: Data scaling (arXiv 2503.22230) section
3.2. Changed: the mean of several answers counts where the paper's number of answers is not known,
and prompts that no answer ever solves are left out, because wrong references score lowest.
"""

import math
from collections.abc import Sequence
from hashlib import blake2b
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.errors import UserError

Norm = Literal["raw", "quantile", "zscore"]
GUARD_SAMPLES = 16
"""Minimum number of answers per prompt for the guard: with fewer a hard prompt looks unsolvable. At
4 the guard takes a fifth of the hard prompts away, at 1 two thirds."""


class PromptScore(NamedTuple):
    """Number, mean, lowest and highest reward of a prompt's scored answers, and the share of right
    ones (`solved`). `domain`: whose scores can be compared."""

    prompt_id: str
    domain: str
    samples: int
    mean: float
    lowest: float
    best: float
    solved: float = 0.0


class PromptSelection(NamedTuple):
    """Ids: `kept`, lowest first; `broken`, those that no answer ever solved."""

    kept: list[str]
    broken: list[str]


def select_prompts(
    scores: Sequence[PromptScore], keep: float, *, norm: Norm, guard: bool
) -> PromptSelection:
    """The prompts with the lowest scores.

    Args:
        scores: one for each prompt. keep: a share below 1, of all prompts, rounded up; or a number
        of them from 1 on. norm: what is compared: raw means; the quantile of a prompt in its
        domain; or (mean - mean of the domain) / standard deviation of the domain, of a population.
        z-scores are for reward models whose offsets differ by domain: on pass rates they select
        easy prompts, whose scores hardly spread. guard: leave out prompts without a right answer of
        which none earned more than the lowest reward of the domain.

    Ties are broken by a hash of the id. UserError: `keep` does not fit; too few answers to guard.
    """
    count = math.ceil(round(keep * len(scores), 6)) if keep < 1 else int(keep)  # 0.07 * 100 > 7
    if not scores or keep <= 0 or count > len(scores) or (keep >= 1 and keep != count):
        raise UserError(f"keep {keep:g}: a share between 0 and 1, or up to {len(scores)} prompts")
    broken = _broken(scores) if guard else set()
    hashes = [blake2b(score.prompt_id.encode(), digest_size=8).digest() for score in scores]
    ranked = zip(_comparable(scores, norm), hashes, scores, strict=True)
    order = [score.prompt_id for _, _, score in sorted(ranked) if score.prompt_id not in broken]
    return PromptSelection(order[:count], sorted(broken))


def _broken(scores: Sequence[PromptScore]) -> set[str]:
    scores = sorted(scores, key=lambda score: score.samples)
    floors = {s.domain: s.lowest for s in sorted(scores, key=lambda s: s.lowest, reverse=True)}
    unsolved = [s for s in scores if s.best <= floors[s.domain] and not s.solved]
    few = (unsolved or scores[-1:])[0]  # A solved prompt needs no more answers.
    if few.samples < GUARD_SAMPLES:
        raise UserError(
            f"prompt {few.prompt_id} has {few.samples} scored answers, and whether a reference is "
            f"broken takes {GUARD_SAMPLES}: score with more --samples, or select with --no-guard"
        )
    return {score.prompt_id for score in unsolved}


def _comparable(scores: Sequence[PromptScore], norm: Norm) -> list[float]:
    """[N] what orders the prompts, lowest first."""
    means = np.array([score.mean for score in scores])
    domains = np.array([score.domain for score in scores])
    found = means.copy()
    for domain in np.unique(domains) if norm != "raw" else ():
        own = domains == domain
        found[own] = _quantiles(means[own]) if norm == "quantile" else _standard(means[own])
    return [float(value) for value in found]


def _standard(means: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    spread = means.std()
    return (means - means.mean()) / (spread if spread > 0 else 1.0)


def _quantiles(means: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The share of the values that are below each one, and half of those equal to it."""
    ordered = np.sort(means)
    below = np.searchsorted(ordered, means, "left") + np.searchsorted(ordered, means, "right")
    return below / (2.0 * len(means))
