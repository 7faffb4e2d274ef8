"""Columns of a row and verdicts on it, as reward kinds read and give them."""

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


def right_or_wrong(right: bool, **parts: float) -> Verdict:
    """The verdict of a kind that knows nothing between the two."""
    return Verdict(float(right), right, {"correct": float(right), **parts})
