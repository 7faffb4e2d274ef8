"""Variants of search sessions, which a ranker is pretrained to recognise.

In: pairs of a query and the document that was clicked, as texts; a random generator. Out: variants.
Promise: the same generator gives the same variants on every machine. Source: COCA (arXiv
2108.10510), section 3.2, and its released code, where that says more.
"""

from collections.abc import Callable, Sequence
from random import Random

from headrace.data.sessions import Pair

TERM_GONE, PART_GONE = "\ue001", "\ue002"
"""A run of masked terms, a deleted text: private use characters, in no text."""
Strategy = Callable[[Sequence[Pair], Random, float], list[Pair]]


def mask_terms(pairs: Sequence[Pair], draw: Random, ratio: float) -> list[Pair]:
    """Mask round(ratio * n) of each text's n whitespace terms, runs as one.

    A text of one term stays."""

    def masked(text: str) -> str:
        terms = text.split()
        gone = set(draw.sample(range(len(terms)), round(ratio * len(terms))))
        kept: list[str] = []
        for place, term in enumerate(terms):
            if place not in gone:
                kept.append(term)
            elif not kept or kept[-1] != TERM_GONE:
                kept.append(TERM_GONE)
        return " ".join(kept)

    return [(masked(query), masked(document)) for query, document in pairs]


def delete_parts(pairs: Sequence[Pair], draw: Random, ratio: float) -> list[Pair]:
    """Delete floor(ratio * 2n) of the queries and documents of n pairs."""
    parts = [part for pair in pairs for part in pair]
    for place in draw.sample(range(len(parts)), int(ratio * len(parts))):
        parts[place] = PART_GONE
    return list(zip(parts[::2], parts[1::2], strict=True))


def reorder(pairs: Sequence[Pair], draw: Random, ratio: float) -> list[Pair]:
    """Swap two pairs, where there are two; the ratio does not matter."""
    swapped = list(pairs)
    if len(swapped) > 1:
        one, other = draw.sample(range(len(swapped)), 2)
        swapped[one], swapped[other] = swapped[other], swapped[one]
    return swapped


STRATEGIES: tuple[Strategy, ...] = (mask_terms, delete_parts, reorder)


def two_views(
    pairs: Sequence[Pair], draw: Random, *, ratio: float = 0.5, one_deletes: bool = False
) -> tuple[list[Pair], list[Pair]]:
    """Return two variants of a session by two different strategies.

    `one_deletes`: like the released code, never masking and reordering together."""
    first, second = draw.sample(STRATEGIES, 2)
    while one_deletes and delete_parts not in (first, second):
        first, second = draw.sample(STRATEGIES, 2)
    return first(pairs, draw, ratio), second(pairs, draw, ratio)
