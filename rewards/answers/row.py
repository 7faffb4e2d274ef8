"""What a kind reads of a row: its columns, and the marked answer of a response."""

import json
from typing import Any

from headrace.protocol.messages.control import ScoreItem
from rewards.functions.results import Verdict


def columns(item: ScoreItem) -> dict[str, Any]:
    """The row's columns; ValueError where `info` is no JSON object."""
    found = json.loads(item.info)
    if not isinstance(found, dict):
        raise ValueError("info is no JSON object")
    return found


def column(item: ScoreItem, name: str) -> Any:
    """One column; ValueError where the row has none of that name."""
    found = columns(item)
    if name not in found:
        raise ValueError(f"the row has no column {name!r}")
    return found[name]


def right_answer(item: ScoreItem) -> str:
    """The row's right answer; ValueError where there is none."""
    if not item.answer.strip():
        raise ValueError("the right answer is empty")
    return item.answer


def marked_part(text: str, marker: str | None) -> str:
    """What follows the marker's last occurrence on its line, empty where it does not occur;
    without a marker the whole text."""
    return text if marker is None else (answer_after(text, marker) or "")


def right_or_wrong(right: bool, **parts: float) -> Verdict:
    """The verdict of a kind that knows nothing between the two."""
    return Verdict(float(right), right, {"correct": float(right), **parts})


def answer_after(text: str, marker: str) -> str | None:
    """What follows the last occurrence of `marker` on its line; None where it does not occur."""
    _, found, rest = text.rpartition(marker)
    if not found:
        return None
    lines = rest.strip().splitlines()
    return lines[0].strip() if lines else ""


def wanted_answer(answer: str, marker: str | None) -> str:
    """The right answer as a dataset writes it: what follows the marker where it has one (a worked
    solution), since no given answer can hold the marker. Raises ValueError when it is empty."""
    after = None if marker is None else answer_after(answer, marker)
    wanted = answer if after is None else after
    if not wanted.strip():
        raise ValueError("the right answer is empty")
    return wanted
