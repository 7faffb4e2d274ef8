"""`gym`: tasks of reasoning-gym, scored by the package's own scorers.

The row's metadata name the generator of the question (`source_dataset`), as reasoning-gym writes
it. The score may lie between 0 and 1. An answer that makes the task's scorer raise is wrong, and
the part `unreadable` is 1, unless the scorer raises at the row's own answer too. Headrace does not
depend on the package: users of this kind install it.
"""

import importlib
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from pydantic import Field

from headrace.config.sections.base import StrictModel
from headrace.errors import UserError
from headrace.protocol.messages.control import ScoreItem
from rewards.answers.final_answer import find
from rewards.answers.row import column, columns
from rewards.functions.results import Verdict
from rewards.verifier import Verifier


class Options(StrictModel):
    """Place of the answer and of the task."""

    metadata_column: str = "metadata"
    """Column with the entry's metadata, an object with `source_dataset`."""

    answer_tag: str | None = Field(default="answer", min_length=1)
    """The answer is between `<answer>` and `</answer>`. None: it is the response's final answer."""

    correct_from: float = Field(default=1.0, gt=0, le=1)
    """A score from here on is a right answer."""


def build(options: Options) -> Verifier:
    """The verifier; UserError where reasoning-gym is not installed."""
    try:
        create = importlib.import_module("reasoning_gym").create_dataset
    except ImportError as error:
        raise UserError(
            f"reward kind `gym` needs the package reasoning-gym ({error}); install it with "
            "`pip install reasoning-gym`"
        ) from error
    scorer = lru_cache(maxsize=256)(lambda name: create(name, size=1, seed=0).score_answer)

    def judge(item: ScoreItem) -> Verdict:
        metadata = column(item, options.metadata_column)
        if not isinstance(metadata, dict) or not isinstance(metadata.get("source_dataset"), str):
            raise ValueError(f"column {options.metadata_column!r} has no `source_dataset`")
        score_answer: Callable[..., Any] = scorer(metadata["source_dataset"])
        row = columns(item)
        entry = {
            "question": row.get("question", item.prompt),
            "answer": row.get("answer", item.answer),
            "metadata": metadata,
        }
        answer = _answer(item.text, options.answer_tag)
        score, read = _scored(score_answer, answer, entry)
        right = score >= options.correct_from
        return Verdict(score, right, {"correct": float(right), "unreadable": float(not read)})

    return Verifier(judge, (options.metadata_column,))


def _scored(
    score_answer: Callable[..., Any], answer: str | None, entry: dict[str, Any]
) -> tuple[float, bool]:
    """Return the score of an answer, and whether the task's scorer could read it.

    A scorer that raises at this answer and not at the row's own calls it wrong: many convert it."""
    try:
        return float(score_answer(answer=answer, entry=entry)), True
    except Exception:
        if entry["answer"] is None or answer == entry["answer"]:
            raise
        score_answer(answer=entry["answer"], entry=entry)
        return 0.0, False


def _answer(text: str, tag: str | None) -> str | None:
    """The response's answer; None where the tags are missing."""
    if tag is None:
        return find(text).answer or text.strip()
    _, opened, rest = text.rpartition(f"<{tag}>")
    answer, closed, _ = rest.partition(f"</{tag}>")
    return answer.strip() if opened and closed else None
