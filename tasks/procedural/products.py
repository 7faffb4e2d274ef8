"""The procedural task of the calculator: products that a small model cannot work out.

In: an index and a seed. Out: prompts such as `47*86=` whose answer is the product, and what a
supervised model is taught. A turn of the policy is either the bare answer, `4042`, mostly guessed,
or a call, `[47*86]`, behind which an environment inserts `>4042>`; the next turn copies the result.
A term is a digit of each factor.
"""

from __future__ import annotations

import re
from random import Random

from tasks.procedural.base import EOS, Phase, ProceduralTask, is_answer

CALLS = 0.3
"""Share of the taught answers that ask the calculator."""
_PROMPT = re.compile(r"(\d+)\*(\d+)=")


def draw(rng: Random, terms: int) -> str:
    """Two factors of `terms` digits."""
    low, high = 10 ** (terms - 1), 10**terms - 1
    return f"{rng.randint(low, high)}*{rng.randint(low, high)}="


def solve(prompt: str) -> str:
    """The product."""
    if (found := _PROMPT.fullmatch(prompt)) is None:
        raise ValueError(f"not a product: {prompt!r}")
    return str(int(found[1]) * int(found[2]))


def teach(prompt: str, rng: Random, phase: Phase) -> str:
    """A call, its result and the answer; or, mixed in, a guess of the right length."""
    result = solve(prompt)
    if phase == "skill" or rng.random() < CALLS:
        return f"[{prompt[:-1]}]{EOS}>{result}>{result}"
    return str(rng.randint(10 ** (len(result) - 1), 10 ** len(result) - 1))


def style_of(response: str) -> str:
    """`call` for a turn that calls the calculator, `guess` for a number, else `other`."""
    if re.fullmatch(r"\[\d+\*\d+\]", response):
        return "call"
    return "guess" if response.isdigit() else "other"


PRODUCTS = ProceduralTask(
    name="products",
    characters="0123456789*=[]>",
    most_terms=4,
    max_terms=2,
    styles=("guess", "call"),
    draw=draw,
    solve=solve,
    teach=teach,
    style_of=style_of,
    is_right=is_answer,
    min_terms=2,
)
