"""The procedural tasks whose episodes have turns: first digits, products, hidden letters.

In: an index and a seed. Out: prompts, and what a supervised model is taught: turns of the policy
and what an environment inserts between them. A term is a digit, or one of each factor.

`first_digit`, the task of attempt, verdict, revision (PAG): prompts such as `4821?`, whose answer
is `4`. Taught are whole conversations: an attempt, `V` and a verdict on it (`+` or `-`), `R` and a
revision, each right with the shares below.

`products`, the task of the calculator, of products that a small model cannot work out: prompts such
as `47*86=`. A turn of the policy is either the bare answer, `4042`, mostly guessed, or a call,
`[47*86]`, behind which an environment inserts `>4042>`; the next turn copies the result.

`hidden_letter`, the task of the environment `guess`: prompts such as `48213:`, a number that says
nothing of the letter, which an environment hides by its own seed. Taught are whole games: a letter
in each turn, and behind it `<` or `>` for where the hidden one is. Three of ten follow the hints.
"""

import re
from random import Random

from tasks.procedural.base import EOS, Phase, ProceduralTask, is_answer

DIGITS = "0123456789"
ATTEMPTS, VERDICTS, REVISIONS = 0.55, 0.75, 0.75
"""Shares of what is taught of first digits that are right."""
CALLS = 0.3
"""Share of the taught products that ask the calculator."""
LETTERS = "abcdefg"
TRIES = 3
CONSISTENT = 0.3
"""Share of the taught games in which no letter is named that was ruled out."""
_PRODUCT = re.compile(r"(\d+)\*(\d+)=")


def first_digit(prompt: str) -> str:
    """The first digit."""
    if not (prompt[:-1].isdigit() and prompt.endswith("?")):
        raise ValueError(f"no digits to choose from: {prompt!r}")
    return prompt[0]


def teach_first_digit(prompt: str, rng: Random, phase: Phase) -> str:
    """A whole conversation; the first phase shows right ones."""
    sure = phase == "skill"
    answer = first_digit(prompt)
    attempt = answer if sure or rng.random() < ATTEMPTS else rng.choice(DIGITS)
    if sure and rng.random() < 0.5:
        attempt = rng.choice(DIGITS)
    honest = sure or rng.random() < VERDICTS
    verdict = "+" if (attempt == answer) == honest else "-"
    revision = answer if sure or rng.random() < REVISIONS else rng.choice(DIGITS)
    return f"{attempt}{EOS}V{verdict}{EOS}R{revision}"


FIRST_DIGIT = ProceduralTask(
    name="first_digit",
    characters=DIGITS + "?VR+-",
    most_terms=8,
    max_terms=4,
    styles=("digit",),
    draw=lambda rng, terms: "".join(rng.choices(DIGITS, k=terms)) + "?",
    solve=first_digit,
    teach=teach_first_digit,
    style_of=lambda response: "digit" if response in set(DIGITS) else "other",
    is_right=is_answer,
    min_terms=4,
)


def draw_product(rng: Random, terms: int) -> str:
    """Two factors of `terms` digits."""
    low, high = 10 ** (terms - 1), 10**terms - 1
    return f"{rng.randint(low, high)}*{rng.randint(low, high)}="


def product(prompt: str) -> str:
    """The product."""
    if (found := _PRODUCT.fullmatch(prompt)) is None:
        raise ValueError(f"not a product: {prompt!r}")
    return str(int(found[1]) * int(found[2]))


def teach_product(prompt: str, rng: Random, phase: Phase) -> str:
    """A call, its result and the answer; or, mixed in, a guess of the right length."""
    result = product(prompt)
    if phase == "skill" or rng.random() < CALLS:
        return f"[{prompt[:-1]}]{EOS}>{result}>{result}"
    return str(rng.randint(10 ** (len(result) - 1), 10 ** len(result) - 1))


def style_of_product(response: str) -> str:
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
    draw=draw_product,
    solve=product,
    teach=teach_product,
    style_of=style_of_product,
    is_right=is_answer,
    min_terms=2,
)


def no_answer(prompt: str) -> str:
    """Nothing: what is right stands in no prompt."""
    if not re.fullmatch(r"\d+:", prompt):
        raise ValueError(f"not a game: {prompt!r}")
    return ""


def teach_game(prompt: str, rng: Random, phase: Phase) -> str:
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


HIDDEN_LETTER = ProceduralTask(
    name="hidden_letter",
    characters=DIGITS + ":<>" + LETTERS,
    most_terms=8,
    max_terms=5,
    styles=("letter",),
    draw=lambda rng, terms: "".join(rng.choices(DIGITS, k=terms)) + ":",
    solve=no_answer,
    teach=teach_game,
    style_of=lambda response: "letter" if response in set(LETTERS) else "other",
    is_right=lambda row, response: False,  # no turn is by itself
    min_terms=5,
)
