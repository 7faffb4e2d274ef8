"""The best of some answers to one prompt, by a judge of pairs.

In: texts, and how likely one of two beats the other. Out: which is best and how likely it beats
another of them. Promise: where the judge puts them into an order, the first of that order wins,
however they stand; n answers take at most 2n - 3 questions. No model.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple


class Best(NamedTuple):
    """Place of the best one, and its mean probability to beat one of the others (equal ones count
    1/2; 1/2 where there are no others)."""

    place: int
    score: float


def best_of(answers: Sequence[str], beats: Callable[[str, str], float]) -> Best:
    """A knock-out: each answer meets the winner so far. `beats(a, b)`: how likely a beats b; of b
    and a it is one minus that, so that a pair is asked about once."""
    known: dict[tuple[str, str], float] = {}

    def won(first: str, second: str) -> float:
        if first == second:
            return 0.5
        if (first, second) not in known:
            p = beats(first, second)
            known[first, second], known[second, first] = p, 1.0 - p
        return known[first, second]

    best = 0
    for index, answer in enumerate(answers):
        if won(answer, answers[best]) > 0.5:
            best = index
    others = [*answers[:best], *answers[best + 1 :]]
    return Best(best, sum(won(answers[best], o) for o in others) / len(others) if others else 0.5)
