"""`exact`: is the response, or what follows its marker, the right answer to the letter?"""

from collections.abc import Callable

from pydantic import Field

from headrace.config.sections.base import StrictModel
from headrace.protocol.messages.control import ScoreItem
from rewards.answers.exact_match import is_exact
from rewards.answers.row import right_or_wrong
from rewards.functions.verdict import Verdict
from rewards.verifier import Verifier


class Options(StrictModel):
    """Where the answer stands."""

    answer_marker: str | None = Field(default=None, min_length=1)
    """Text right before the final answer. None: the whole response is the answer."""


def build(options: Options) -> Verifier:
    """The verifier."""

    def judge(item: ScoreItem) -> Verdict:
        return right_or_wrong(is_exact(item.text, item.answer, marker=options.answer_marker))

    return Verifier(judge)


def glance(options: Options) -> Callable[[ScoreItem], bool | None]:
    """Whether a response is right, wherever there is a right answer."""

    def judge(item: ScoreItem) -> bool | None:
        try:
            return is_exact(item.text, item.answer, marker=options.answer_marker)
        except ValueError:
            return None

    return judge
