"""Reward functions that score several things at once: siblings, lines."""

from typing import Any

import numpy as np


def longest(prompts: list[str], completions: list[str], **columns: list[Any]) -> list[float]:
    """As TRL calls it; the longest sibling is right, and every argument is a list."""
    assert len(prompts) == len(completions)
    assert all(len(values) == len(completions) for values in columns.values())
    most = max(map(len, completions))
    return [float(len(text) == most) for text in completions]


def against_answer(prompt: str, completions: list[str], answer: str, weight: float = 1.0) -> Any:
    """What belongs to the prompt comes once; a dict says more; None: it does not apply."""
    assert isinstance(prompt, str)
    return [
        None if not text else {"score": weight * (text == answer), "correct": text == answer}
        for text in completions
    ]


async def ranked(queries: list[str], prompts: list[str], labels: list[str]) -> Any:
    """As OpenRLHF calls it, awaited, with an array."""
    assert len(queries) == len(prompts) == len(labels)
    return np.argsort(np.argsort([len(query) for query in queries])).astype(float)


def by_ids(completions: list[str], completion_ids: list[list[int]]) -> list[int]:
    """A list of ids for each sibling."""
    return [len(ids) for ids in completion_ids]


def alone(prompt: str, completion: str) -> float:
    """Sees one response."""
    return 1.0


def whatever(completions: list[str], result: list[Any]) -> Any:
    """Returns the first one's column."""
    return result[0]


def lines_of(completion: str, answer: str, lines: list[str]) -> list[float | None]:
    """A comment is neutral, a line with the answer is good."""
    assert "".join(lines) in completion
    return [None if line.startswith("#") else float(answer in line) for line in lines]


def by_name(prompt: str, completion: str, **info: Any) -> list[float | None]:
    """Takes lines among all others."""
    return [0.5] * len(info["lines"])


def first_line(lines: list[str], completion: str, /) -> Any:
    """By position, an array."""
    return np.array([float(not i) for i, _ in enumerate(lines)])


def said(completion: str, lines: list[str], result: Any) -> Any:
    """Returns a column."""
    return result
