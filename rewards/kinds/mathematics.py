"""`math`: the final answer of a response (see `rewards/answers/math_answer.py`)."""

import re
from collections.abc import Callable
from decimal import Decimal

from pydantic import Field

from headrace.config.sections.base import StrictModel
from headrace.data.answer_text import marked_part
from headrace.protocol.messages.control import ScoreItem
from rewards.answers import formula, math_answer
from rewards.answers.final_answer import wanted_answer
from rewards.answers.row import right_or_wrong
from rewards.functions.results import Verdict
from rewards.verifier import Verifier

_NUMBER = re.compile(r"[-+]?[0-9]{1,15}(?:\.[0-9]{1,15})?")
_BOXED = re.compile(r"\\boxed\{([^\s{}\\]{1,32})\}")
_BOXES = re.compile(r"boxed|fbox")
_SAID_LAST = re.compile(r"final\s+answer", re.IGNORECASE)


class Options(StrictModel):
    """Place of the answer."""

    answer_marker: str | None = Field(default=None, min_length=1)
    """Text right before the final answer. None: the last box, what follows `####`, what a sentence
    calls the answer, or the last expression."""


def build(options: Options) -> Verifier:
    """The verifier, with math-verify loaded."""
    formula.load()

    def judge(item: ScoreItem) -> Verdict:
        return right_or_wrong(
            math_answer.is_right(item.text, item.answer, marker=options.answer_marker)
        )

    return Verifier(judge)


def fast_path(options: Options) -> Callable[[ScoreItem], bool | None]:
    """Return a function that says whether a plain answer is right; None for others."""
    marker = options.answer_marker
    return lambda item: is_right_by_text(item.text, item.answer, marker=marker)


def is_right_by_text(text: str, answer: str, *, marker: str | None = None) -> bool | None:
    """Return whether a plain answer is right; None where only `math_answer` can say.

    Plain are numbers and the same text as the right answer; one without the marker is wrong. The
    result is what `math_answer` says, is never an error, and takes time linear in the texts."""
    try:
        wanted = wanted_answer(answer, marker).strip()
    except ValueError:
        return None
    given = marked_part(text, marker).strip()
    if not given:
        return False
    if given == wanted:
        return True
    if _NUMBER.fullmatch(wanted) is None:
        return None
    if marker is None:
        given = _boxed(given) or given
    return Decimal(given) == Decimal(wanted) if _NUMBER.fullmatch(given) else None


def _boxed(text: str) -> str | None:
    """Return the content of a text's only box if nothing behind is called the answer."""
    if len(_BOXES.findall(text)) != 1:
        return None
    box = _BOXED.search(text)
    return None if box is None or _SAID_LAST.search(text, box.end()) else box[1]
