"""`math`: is the final answer of a response the right one? See `rewards/math_answer.py`."""

from collections.abc import Callable

from pydantic import Field

from headrace.config.base import StrictModel
from headrace.protocol.messages import ScoreItem
from rewards import math_answer
from rewards.kinds.row import right_or_wrong
from rewards.plain_answer import at_a_glance
from rewards.verdict import Verdict
from rewards.verifier import Verifier


class Options(StrictModel):
    """Where the answer stands."""

    answer_marker: str | None = Field(default=None, min_length=1)
    """Text right before the final answer. None: the last box, what follows `####`, what a sentence
    calls the answer, or the last expression."""


def build(options: Options) -> Verifier:
    """The verifier, with math-verify loaded."""
    math_answer.load()

    def judge(item: ScoreItem) -> Verdict:
        return right_or_wrong(
            math_answer.is_right(item.text, item.answer, marker=options.answer_marker)
        )

    return Verifier(judge)


def glance(options: Options) -> Callable[[ScoreItem], bool | None]:
    """Whether plain answers are right."""
    marker = options.answer_marker
    return lambda item: at_a_glance(item.text, item.answer, marker=marker)
