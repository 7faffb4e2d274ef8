"""The procedural task of the environment `guess`: a number that says nothing of the letter.

In: an index and a seed. Out: prompts such as `48213:`, to which an environment hides a letter by
its own seed, and whole games that a supervised model is taught: a letter in each turn, and behind
it `<` or `>` for where the hidden one is. Three of ten games follow the hints. A term is a digit.
"""

from __future__ import annotations

import re
from random import Random

from tasks.procedural.base import EOS, Phase, ProceduralTask

LETTERS = "abcdefg"
TRIES = 3
CONSISTENT = 0.3
"""Share of the taught games in which no letter is named that was ruled out."""


def draw(rng: Random, terms: int) -> str:
    """Number of digits."""
    return "".join(rng.choices("0123456789", k=terms)) + ":"


def solve(prompt: str) -> str:
    """Nothing: what is right stands in no prompt."""
    if not re.fullmatch(r"\d+:", prompt):
        raise ValueError(f"not a game: {prompt!r}")
    return ""


def teach(prompt: str, rng: Random, phase: Phase) -> str:
    """A whole game."""
    hidden = rng.choice(LETTERS)
    consistent = rng.random() < CONSISTENT
    left, said = LETTERS, ""
    for _ in range(TRIES):
        named = rng.choice(left if consistent else LETTERS)
        said += named
        if named == hidden or said.count(EOS) == TRIES - 1:
            break
        lower = hidden < named
        said += EOS + ("<" if lower else ">")
        left = "".join(c for c in left if (c < named if lower else c > named))
    return said


def style_of(response: str) -> str:
    """`letter` for a turn that names one, else `other`."""
    return "letter" if response in set(LETTERS) else "other"


HIDDEN_LETTER = ProceduralTask(
    name="hidden_letter",
    characters="0123456789:<>" + LETTERS,
    most_terms=8,
    max_terms=5,
    styles=("letter",),
    draw=draw,
    solve=solve,
    teach=teach,
    style_of=style_of,
    is_right=lambda row, response: False,  # no turn is by itself
    min_terms=5,
)
