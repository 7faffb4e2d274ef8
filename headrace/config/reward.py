"""How finished trajectories are scored."""

from typing import Literal

from pydantic import Field

from headrace.config.base import StrictModel

Adapter = Literal["trl", "verl", "openrlhf", "areal", "verifiers", "plain"]


class WeightedFunction(StrictModel):
    """One of several functions, in `reward.functions`."""

    name: str
    """`package.module:name` or `path/to/file.py:name`."""

    weight: float = 1.0
    """The reward is the sum of the functions' scores, each times its weight."""

    adapter: Adapter | None = None
    """Its convention. None: `reward.adapter`."""


class RewardConfig(StrictModel):
    """The verifier and the processes that run it."""

    kind: Literal["math", "exact", "function"] = "math"
    """math: exact numbers first, then math-verify. exact: the answer string itself. function: the
    callable named by `function`, or those in `functions`."""

    function: str | None = None
    """`package.module:name` or `path/to/file.py:name` of
    `(prompt, completion, answer, **info) -> float | dict` (a dict has `score` and perhaps
    `correct`; the rest are parts), or of a function or rubric of TRL, verl, OpenRLHF, AReaL or
    verifiers."""

    functions: tuple[WeightedFunction, ...] = ()
    """Several functions, in the place of `function`. The first that applies to a response says
    whether it is right."""

    adapter: Adapter | None = None
    """The convention by which functions are called. None: told by the names of their arguments."""

    token_ids: bool = False
    """Send token ids of prompts and responses to the reward workers. A function that takes them
    switches it on by itself when a run starts."""

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

    python: str | None = None
    """The Python program of the scoring children. None: ours. Name another environment's where the
    packages of a reward function do not go with ours; it needs numpy, msgspec and pydantic."""

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

    def named(self) -> str:
        """The functions as the recipe names them, for a sentence."""
        return ", ".join(repr(name) for name in self.names())

    def names(self) -> tuple[str, ...]:
        """Names of the functions."""
        own = () if self.function is None else (self.function,)
        return (*own, *(entry.name for entry in self.functions))
