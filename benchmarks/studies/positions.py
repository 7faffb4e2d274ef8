"""Values and advantages by position in the answer.

In: the folder of a synchronous run with one lambda for all answers, so that an answer is one
window. Out: figures by tenth of the answer over the policy's first updates, before the value model
has had time to change. Promises: each answer counts once in each tenth, whatever its length (a
token that lies in two tenths counts in both, for its parts); advantages are those before whitening,
recomputed from the recorded values, because whitening removes their common part.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.kit.arm_run import exported_trajectories
from learner.algorithms.advantages import gae
from storage.queries import run_config

TENTHS = 10
EARLY = 4
"""Number of the policy's updates that count as its first."""
Floats = npt.NDArray[np.float64]


class TrainedAnswer(NamedTuple):
    """A trained answer of T tokens: V(s_t) [T] when its update began, and its reward."""

    values: Floats
    reward: float


def early_positions(folder: Path) -> dict[str, Any]:
    """Return figures of `all` answers of the policy's first `EARLY` updates.

    The number of `answers`, mean `reward`, and by tenth the mean `value` and `advantage`."""
    config = run_config(folder)["algorithm"]
    lam = float(config["advantages"]["gae_lambda_policy"])
    last = int(config["value"]["warmup_updates"]) + EARLY
    answers = list(trained_answers(folder, last))
    found = {"all": positions(answers, lam)} if answers else {}
    return {"early_positions": {"updates": EARLY, **found}}


def trained_answers(folder: Path, last: int) -> Iterator[TrainedAnswer]:
    """Yield the whole answers that updates up to `last` trained the policy on."""
    for row in exported_trajectories(folder, "purpose = 'train'"):
        if row["length"] and 0 <= row["trained_at_update"][0] <= last:
            yield TrainedAnswer(np.array(row["values"], np.float64), float(row["returns"][-1]))


def positions(answers: Sequence[TrainedAnswer], lam: float) -> dict[str, Any]:
    """Return the figures of some answers."""
    values = [by_tenth(answer.values) for answer in answers]
    advantages = [by_tenth(advantages_of(answer, lam)) for answer in answers]
    return {
        "answers": len(answers),
        "reward": round(float(np.mean([answer.reward for answer in answers])), 4),
        "value": np.mean(values, axis=0).round(4).tolist(),
        "advantage": np.mean(advantages, axis=0).round(4).tolist(),
    }


def advantages_of(answer: TrainedAnswer, lam: float) -> Floats:
    """[T] GAE, the reward being the last token's."""
    rewards = [0.0] * (len(answer.values) - 1) + [answer.reward]
    return gae(rewards, torch.from_numpy(answer.values), gamma=1.0, lam=lam).numpy()


def by_tenth(figures: Floats) -> Floats:
    """[10] the mean over each tenth of T tokens, each of them 1/T of the answer wide."""
    sums = np.concatenate([[0.0], np.cumsum(figures)])
    borders = np.linspace(0.0, len(figures), TENTHS + 1)
    return np.diff(np.interp(borders, np.arange(len(sums)), sums)) * TENTHS / len(figures)
