"""How finished trajectories are scored."""

from typing import Literal

from pydantic import Field

from headrace.config.base import StrictModel


class RewardConfig(StrictModel):
    """The verifier and the processes that run it."""

    kind: Literal["math", "exact", "function"] = "math"
    """math: exact numbers first, then math-verify. exact: the answer string itself. function: the
    callable named by `function`."""

    function: str | None = None
    """`package.module:name` or `path/to/file.py:name` of
    `(prompt, completion, answer, **info) -> float | dict` (a dict has `score` and perhaps
    `correct`; the rest are parts)."""

    answer_marker: str | None = Field(default=None, min_length=1)
    """Text that comes right before the final answer (for example `#`); the answer is what follows
    its last occurrence. None: math-verify finds the answer (boxed, or the last expression)."""

    require_finish: bool = True
    """A response without an end token counts as wrong."""

    correct_reward: float = 1.0
    """What math and exact pay for a right answer."""

    wrong_reward: float = 0.0
    """What math and exact pay for a wrong answer, and every kind for a response without its end."""

    correct_threshold: float = 0.5
    """A function's score from here on means a right answer, where it does not say `correct` itself.
    Accuracy and the likelihood of right answers go by it."""

    workers: int = Field(default=1, ge=1)
    """Reward worker processes the supervisor starts."""

    children: int = Field(default=1, ge=1)
    """Scoring child processes of one worker."""

    batch: int = Field(default=64, ge=1)
    """Most responses handed to a child at once."""

    timeout_s: float = Field(default=10.0, gt=0)
    """Deadline of one response; a child that misses it is killed and replaced."""

    max_consecutive_failures: int = Field(default=64, ge=1)
    """So many failed scorings in a row stop the run with the reason."""
