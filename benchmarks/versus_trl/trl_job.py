"""TRL's job, which travels as JSON, and the check of answers.

In: nothing but the standard library: TRL's environment knows none of our packages. Out: `TrlJob`, made
by `benchmarks.versus_trl.trl_arms` from the recipe that our runs have, done by
`benchmarks.versus_trl.trl_trainer`.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TrlJob:
    """A training run of TRL. Row files are JSON lines of `prompt` and `answer`, those of training
    in the order in which they are trained on."""

    model: str
    """Folder of the starting policy, which is also the reference of the divergence."""

    train_rows: str
    held_out_rows: str
    arguments: dict[str, Any]
    """Of TRL 1.16's `GRPOConfig`."""

    updates: int
    steps_an_update: int
    """Optimizer steps."""

    limit_s: float
    """Maximum seconds of training."""

    accuracy: float | None
    """Held-out accuracy that ends the run when two successive evaluations have it."""

    evaluate_before: bool
    evaluate_after: bool
    every_updates: int | None
    """Updates between evaluations."""

    marker: str | None
    """What stands before an answer."""

    correct_reward: float
    wrong_reward: float
    processes: int


def is_correct(text: str, answer: str, *, finished: bool, marker: str | None) -> bool:
    """The verdict of the recipes' `math` verifier: a completion without its end is wrong."""
    from rewards.answers.math_answer import is_right

    return finished and is_right(text, answer, marker=marker)
