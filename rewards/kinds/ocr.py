"""`ocr`: how near the text that a response read is to the right one.

The score is 1 - edits / length of the longer text, by Levenshtein's distance (insertions,
deletions, substitutions of characters), after normalisation: Unicode's NFKC, and any blanks one
blank.
"""

import unicodedata

from pydantic import Field

from headrace.config.sections.base import StrictModel
from headrace.data.answer_text import said_part
from headrace.data.edit_distance import edit_distance
from headrace.protocol.messages.control import ScoreItem
from rewards.answers.final_answer import wanted_answer
from rewards.functions.results import Verdict
from rewards.verifier import Verifier


class Options(StrictModel):
    """Compared texts, and the strictness of the comparison."""

    ignore_case: bool = False
    """Capital and small letters are the same."""

    correct_from: float = Field(default=1.0, gt=0, le=1)
    """A score from here on is a right answer."""

    thought: str | None = Field(default=None, pattern=r"^[\w-]+$")
    """Tag of the response's thought (`think`), which is not compared."""

    answer_marker: str | None = Field(default=None, min_length=1)
    """Text right before what is compared. None: all that the response says."""


def build(options: Options) -> Verifier:
    """The verifier. The part `edits` is the distance."""

    def plain(text: str) -> str:
        text = " ".join(unicodedata.normalize("NFKC", text).split())
        return text.casefold() if options.ignore_case else text

    def judge(item: ScoreItem) -> Verdict:
        wanted = plain(wanted_answer(item.answer, options.answer_marker))
        found = plain(said_part(item.text, options.thought, options.answer_marker))
        edits = edit_distance(found, wanted)
        score = 1 - edits / max(len(found), len(wanted))
        right = score >= options.correct_from
        return Verdict(score, right, {"correct": float(right), "edits": float(edits)})

    return Verifier(judge)
