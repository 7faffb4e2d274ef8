"""`exact`: equality of the response, or of its marked part, with the right answer."""

from collections.abc import Callable

from pydantic import Field

from headrace.config.sections.base import StrictModel
from headrace.data.answer_text import marked_part
from headrace.protocol.messages.control import ScoreItem
from rewards.answers.final_answer import wanted_answer
from rewards.answers.row import right_or_wrong
from rewards.functions.results import Verdict
from rewards.verifier import Verifier


class Options(StrictModel):
    """Place of the answer."""

    answer_marker: str | None = Field(default=None, min_length=1)
    """Text right before the final answer. None: the whole response is the answer."""


def is_exact(text: str, answer: str, *, marker: str | None) -> bool:
    """Return whether both are equal to the letter; ValueError without a right answer."""
    wanted = wanted_answer(answer, marker)
    return marked_part(text, marker).strip() == wanted.strip()


def build(options: Options) -> Verifier:
    """The verifier."""

    def judge(item: ScoreItem) -> Verdict:
        return right_or_wrong(is_exact(item.text, item.answer, marker=options.answer_marker))

    return Verifier(judge)


def fast_path(options: Options) -> Callable[[ScoreItem], bool | None]:
    """Return a function that says whether a response is right; None without an answer."""

    def judge(item: ScoreItem) -> bool | None:
        try:
            return is_exact(item.text, item.answer, marker=options.answer_marker)
        except ValueError:
            return None

    return judge
