"""`choice`: multiple choice with the letters A to J.

The response's choice is the letter in its last box, the one that "the answer is (C)" names, the
first of its text, or the last that stands alone; the text of an option counts as its letter where
the row has the options. The right answer is a letter, or an option's text.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from headrace.config.sections.base import StrictModel
from headrace.data.answer_text import marked_part
from headrace.protocol.messages.control import ScoreItem
from rewards.answers.choices import LETTERS, read_letter, said_letter
from rewards.answers.final_answer import find, wanted_answer
from rewards.answers.notation import tidy, unwrap_text
from rewards.answers.row import column, right_or_wrong
from rewards.functions.results import Verdict
from rewards.verifier import Verifier


class Options(StrictModel):
    """Sources of the letters and of the answer."""

    num_options: int = Field(default=len(LETTERS), ge=2, le=len(LETTERS))
    """The letters from A on that are choices, where the row has no options."""

    options_column: str | None = None
    """Column with the options: a list of texts, or an object from letter to text. Needed where the
    right answer is an option's text."""

    answer_marker: str | None = Field(default=None, min_length=1)
    """Text right before the final answer. None: it is found in the response."""


def build(options: Options) -> Verifier:
    """The verifier. The part `answered` says whether the response chose anything."""

    def judge(item: ScoreItem) -> Verdict:
        texts = _texts(column(item, options.options_column)) if options.options_column else {}
        letters = "".join(texts) or LETTERS[: options.num_options]
        wanted = _wanted(wanted_answer(item.answer, options.answer_marker), texts, letters)
        given = marked_part(item.text, options.answer_marker)
        chosen = _chosen(given, texts, letters)
        return right_or_wrong(chosen == wanted, answered=float(chosen is not None))

    return Verifier(judge, (options.options_column,) if options.options_column else ())


def _texts(found: Any) -> dict[str, str]:
    """Options by letter."""
    if isinstance(found, Mapping):
        texts = {str(letter).strip("(). ").upper(): str(text) for letter, text in found.items()}
    elif isinstance(found, Sequence) and not isinstance(found, str):
        texts = dict(zip(LETTERS, _unlabelled(list(map(str, found))), strict=False))
    else:
        raise ValueError(f"the options are {type(found).__name__}, neither a list nor an object")
    if len(texts) < 2 or len(found) > len(LETTERS) or any(name not in LETTERS for name in texts):
        raise ValueError(f"{len(found)} options: there are to be 2 to 10, with letters from A to J")
    return texts


def _unlabelled(texts: list[str]) -> list[str]:
    """Options without their letters (`A) Rome`, `B) Pisa`); one like `C. elegans` stays."""
    labelled = [read_letter(text) for text in texts]
    both = zip(labelled, LETTERS, strict=False)
    own = all(read is not None and read[1] and read[0] == name for read, name in both)
    return [read[1] for read in labelled if read] if own else texts


def _wanted(answer: str, texts: Mapping[str, str], letters: str) -> str:
    same = [letter for letter, text in texts.items() if _plain(text) == _plain(answer)]
    letter = _letter(answer, letters)
    if len(same) == 1 and len(_plain(answer)) > 1:
        letter = same[0]
    if letter is None:
        raise ValueError(
            f"the right answer {answer[:60]!r} is no letter of {letters} and no option"
        )
    return letter


def _chosen(text: str, texts: Mapping[str, str], letters: str) -> str | None:
    found = find(text)
    said = [letter for letter, option in texts.items() if _plain(option) == _plain(found.answer)]
    if len(said) == 1 and len(_plain(found.answer)) > 1:
        return said[0]
    if found.marked and (letter := _letter(found.answer, letters)):
        return letter
    if len(said) == 1:
        return said[0]
    return said_letter(text, letters)


def _letter(answer: str, letters: str) -> str | None:
    read = read_letter(tidy(answer))
    return read[0].upper() if read and read[0].upper() in letters else None


def _plain(text: str) -> str:
    return unwrap_text(tidy(text)).casefold().strip(" .")
