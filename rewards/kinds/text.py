"""`text`: strings, regular expressions and required formats.

`exact` compares the response with the right answer. `regex` looks for a pattern: the option's, or
the row's right answer. `format` asks for a pattern that spans the response, none of whose groups
may be empty, and compares the group `answer_group` with the right answer where one is named.
"""

import re
from typing import Literal

from pydantic import Field

from headrace.config.sections.base import StrictModel
from headrace.data.answer_text import marked_part
from headrace.errors import UserError
from headrace.protocol.messages.control import ScoreItem
from rewards.answers.final_answer import wanted_answer
from rewards.answers.row import right_or_wrong
from rewards.functions.results import Verdict
from rewards.verifier import Verifier


class Options(StrictModel):
    """Compared texts, and the strictness of the comparison."""

    match: Literal["exact", "regex", "format"] = "exact"
    """exact: the right answer itself. regex: a pattern somewhere in the response. format: a pattern
    that the whole response has."""

    pattern: str | None = Field(default=None, min_length=1)
    """Regular expression (`.` matches line ends). None: the row's answer (`regex` only)."""

    answer_group: str | None = None
    """Named group of the pattern that has to be the right answer. None: the pattern is enough."""

    format_reward: float = Field(default=0.0, ge=0, le=1)
    """Score of a response that has the format and not the right answer."""

    ignore_case: bool = False
    """Capital and small letters are the same."""

    ignore_blanks: bool = False
    """Any blanks and line ends are one blank."""

    answer_marker: str | None = Field(default=None, min_length=1)
    """Text right before what is compared. None: the whole response."""


def build(options: Options) -> Verifier:
    """The verifier; UserError for options that do not fit one another."""
    pattern = _checked(options)

    def judge(item: ScoreItem) -> Verdict:
        given = _plain(marked_part(item.text, options.answer_marker), options)
        if options.match == "exact":
            right = wanted_answer(item.answer, options.answer_marker)
            return right_or_wrong(_folded(given, options) == _folded(right, options))
        wanted = pattern or _of_row(wanted_answer(item.answer, None), options)
        found = wanted.search(given) if options.match == "regex" else wanted.fullmatch(given)
        filled = found.groups() if found and options.match == "format" else ()
        if found is None or not all(part and part.strip() for part in filled):
            return right_or_wrong(False, format=0.0)
        group = options.answer_group
        said = None if group is None else _folded(found[group] or "", options)
        marker = options.answer_marker
        if said is None or said == _folded(wanted_answer(item.answer, marker), options):
            return right_or_wrong(True, format=1.0)
        return Verdict(options.format_reward, False, {"correct": 0.0, "format": 1.0})

    return Verifier(judge)


def _checked(options: Options) -> re.Pattern[str] | None:
    if options.match == "format" and options.pattern is None:
        raise UserError("reward kind `text`: match = 'format' needs a pattern")
    if options.match == "exact" and options.pattern is not None:
        raise UserError("reward kind `text`: match = 'exact' has no pattern; take 'regex'")
    if options.pattern is None:
        if options.answer_group is not None:
            raise UserError("reward kind `text`: answer_group needs a pattern that has the group")
        return None
    try:
        pattern = re.compile(options.pattern, _flags(options))
    except re.error as error:
        raise UserError(f"reward kind `text`: pattern {options.pattern!r}: {error}") from error
    if options.answer_group is not None and options.answer_group not in pattern.groupindex:
        raise UserError(
            f"reward kind `text`: the pattern has no group (?P<{options.answer_group}>...)"
        )
    return pattern


def _of_row(answer: str, options: Options) -> re.Pattern[str]:
    try:
        return re.compile(answer, _flags(options))
    except re.error as error:
        raise ValueError(f"the row's pattern {answer[:60]!r}: {error}") from error


def _flags(options: Options) -> re.RegexFlag:
    return re.DOTALL | (re.IGNORECASE if options.ignore_case else re.RegexFlag(0))


def _plain(text: str, options: Options) -> str:
    return " ".join(text.split()) if options.ignore_blanks else text.strip()


def _folded(text: str, options: Options) -> str:
    """A text as it is compared."""
    text = _plain(text, options)
    return text.casefold() if options.ignore_case else text
