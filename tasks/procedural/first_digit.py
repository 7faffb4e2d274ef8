"""The procedural task of attempt, verdict, revision (PAG): say the first of some digits.

In: an index and a seed. Out: prompts such as `4821?` whose answer is `4`, and whole conversations
that a supervised model is taught: an attempt, `V` and a verdict on it (`+` or `-`), `R` and a
revision, each right with the shares below. A term is a digit.
"""

from __future__ import annotations

from random import Random

from tasks.procedural.base import EOS, Phase, ProceduralTask, is_answer

ATTEMPTS, VERDICTS, REVISIONS = 0.55, 0.75, 0.75
"""Shares of what is taught that are right."""
DIGITS = "0123456789"


def draw(rng: Random, terms: int) -> str:
    """Number of digits."""
    return "".join(rng.choices(DIGITS, k=terms)) + "?"


def solve(prompt: str) -> str:
    """The first digit."""
    if not (prompt[:-1].isdigit() and prompt.endswith("?")):
        raise ValueError(f"no digits to choose from: {prompt!r}")
    return prompt[0]


def teach(prompt: str, rng: Random, phase: Phase) -> str:
    """A whole conversation; the first phase shows right ones."""
    sure = phase == "skill"
    answer = solve(prompt)
    attempt = answer if sure or rng.random() < ATTEMPTS else rng.choice(DIGITS)
    if sure and rng.random() < 0.5:
        attempt = rng.choice(DIGITS)
    honest = sure or rng.random() < VERDICTS
    verdict = "+" if (attempt == answer) == honest else "-"
    revision = answer if sure or rng.random() < REVISIONS else rng.choice(DIGITS)
    return f"{attempt}{EOS}V{verdict}{EOS}R{revision}"


def style_of(response: str) -> str:
    """`digit` for a turn that is an answer, else `other`."""
    return "digit" if response in set(DIGITS) else "other"


FIRST_DIGIT = ProceduralTask(
    name="first_digit",
    characters=DIGITS + "?VR+-",
    most_terms=8,
    max_terms=4,
    styles=("digit",),
    draw=draw,
    solve=solve,
    teach=teach,
    style_of=style_of,
    is_right=is_answer,
    min_terms=4,
)
