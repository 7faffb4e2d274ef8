"""TRL's job, which travels as JSON, and the check of answers.

In: nothing but the standard library: TRL's environment has none of our packages. Out: `TrlJob`,
written by `benchmarks.versus_trl.trl_arms` from the recipe of our runs, run by
`benchmarks.versus_trl.trl_trainer`.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TrlJob:
    """A training run of TRL.

    Row files are JSON lines of `prompt` and `answer`, those of training in their order."""

    model: str
    """Folder of the starting policy, which is also the reference of the divergence."""
    train_rows: str
    held_out_rows: str
    arguments: dict[str, Any]
    """Arguments of TRL 1.16's `GRPOConfig`."""
    updates: int
    steps_an_update: int
    """Optimizer steps per update."""
    limit_s: float
    """Maximum seconds of training."""
    accuracy: float | None
    """Held-out accuracy that ends the run when two successive evaluations have it."""
    evaluate_before: bool
    evaluate_after: bool
    every_updates: int | None
    """Updates between evaluations."""
    marker: str | None
    """The text before an answer."""
    correct_reward: float
    wrong_reward: float
    processes: int


def is_correct(text: str, answer: str, *, finished: bool, marker: str | None) -> bool:
    """Return the `math` verifier's verdict; an unfinished completion is wrong."""
    from rewards.answers.math_answer import is_right

    return finished and is_right(text, answer, marker=marker)
