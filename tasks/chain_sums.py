"""The procedural demo task: add labelled digits modulo ten.

In: an index and a seed. Out: prompts such as `a3b5c7=` whose answer is the last digit of the sum,
and the written answers a supervised model is taught. All are pure functions of their arguments.

An answer ends in `#d`. There are three styles, and every written answer is correct:

- direct  `#5`                           nothing worked out; a tiny model can only guess
- jumps   `a3b5+0=8;c7+8=5;#5`           two to five terms in one go; mostly guessed as well
- fine    `a3+0=3;b5+3=8;c7+8=5;#5`      one term at a time; nearly always right, seven characters
                                         a term

The number of terms follows a Pareto law, so that a few prompts need very long answers. A prompt is
held out when the hash of its text says so: training never yields it, evaluation yields no other.
"""

from __future__ import annotations

import re
import string
from dataclasses import dataclass
from random import Random
from typing import Literal

from headrace.errors import UserError
from tasks.rows import Row, prompt_hash

LABELS = string.ascii_letters
MAX_TERMS = len(LABELS)
MIN_TERMS = 3
TAIL_EXPONENT = 1.6
HELD_OUT_SHARE = 8
"""One prompt in this many is held out."""

Style = Literal["direct", "jumps", "fine", "other"]
Split = Literal["train", "eval"]

_TERM = re.compile(r"([a-zA-Z])([1-9])")
_PROMPT = re.compile(r"(?:[a-zA-Z][1-9])+=")
_STEP = re.compile(r"((?:[a-zA-Z]\d)+)\+\d=\d;")
_ANSWER = re.compile(r"#(\d)$")


@dataclass(frozen=True, slots=True)
class Mixture:
    """How often the supervised model is shown each style; the rest is `fine`."""

    direct: float
    jumps: float


def draw_terms(rng: Random, *, max_terms: int, min_terms: int, tail: float) -> int:
    """A number of terms from floor(min_terms * u^(-1/tail)), capped at `max_terms`."""
    u = 1.0 - rng.random()
    return int(min(max_terms, min_terms * u ** (-1.0 / tail)))


def write_prompt(digits: list[int]) -> str:
    """`[3, 5, 7]` -> `a3b5c7=`."""
    return "".join(f"{LABELS[i]}{digit}" for i, digit in enumerate(digits)) + "="


def read_prompt(prompt: str) -> list[int]:
    """`a3b5c7=` -> `[3, 5, 7]`. Raises ValueError for any other text."""
    if not _PROMPT.fullmatch(prompt):
        raise ValueError(f"not a chain of sums: {prompt!r}")
    return [int(digit) for _, digit in _TERM.findall(prompt)]


def is_held_out(prompt: str) -> bool:
    """Whether the prompt belongs to evaluation, by the hash of its text."""
    return prompt_hash(prompt) % HELD_OUT_SHARE == 0


def prompt_row(
    index: int,
    seed: int,
    *,
    max_terms: int = 32,
    min_terms: int = MIN_TERMS,
    tail: float = TAIL_EXPONENT,
    split: Split = "train",
) -> Row:
    """The row at `index` of an endless stream; the same arguments always give the same row.

    Draws that fall on the other side of the hash split are drawn again, so the law of the lengths
    holds on both sides.
    """
    rng = Random(f"chain-sums/{split}/{seed}/{index}")
    while True:
        terms = draw_terms(rng, max_terms=max_terms, min_terms=min_terms, tail=tail)
        digits = [rng.randint(1, 9) for _ in range(terms)]
        prompt = write_prompt(digits)
        if is_held_out(prompt) == (split == "eval"):
            return Row(f"{split}-{index}", prompt, str(sum(digits) % 10), {"terms": terms})


def evaluation_rows(
    count: int,
    *,
    max_terms: int = 32,
    min_terms: int = MIN_TERMS,
    tail: float = TAIL_EXPONENT,
) -> list[Row]:
    """`count` distinct held-out rows, the same for every run, whatever its seed.

    Short prompts are few (729 with three terms, about 90 of them held out). A prompt that was
    already taken is drawn again with a new length, so a large evaluation set holds fewer of the
    shortest prompts than the training stream and is slightly harder. UserError when the settings
    do not allow that many distinct prompts.
    """
    rows: list[Row] = []
    seen: set[str] = set()
    index = 0
    while len(rows) < count:
        if index >= 1000 + 50 * count:
            raise UserError(
                f"chain_sums has only about {len(rows)} distinct held-out prompts with "
                f"min_terms={min_terms}, max_terms={max_terms}, but {count} were asked for: "
                "raise max_terms or evaluate on fewer prompts"
            )
        row = prompt_row(
            index, 0, max_terms=max_terms, min_terms=min_terms, tail=tail, split="eval"
        )
        index += 1
        if str(row.prompt) not in seen:
            seen.add(str(row.prompt))
            rows.append(row)
    return rows


def write_steps(digits: list[int], jumps: list[int]) -> str:
    """Written-out steps of `jumps[i]` terms each, then the answer. The jumps sum to the terms."""
    if sum(jumps) != len(digits) or min(jumps) < 1:
        raise ValueError(f"steps {jumps} do not cover {len(digits)} terms")
    steps: list[str] = []
    position = total = 0
    for jump in jumps:
        taken = range(position, position + jump)
        after = (total + sum(digits[i] for i in taken)) % 10
        steps.append("".join(f"{LABELS[i]}{digits[i]}" for i in taken) + f"+{total}={after};")
        position, total = position + jump, after
    return "".join(steps) + write_direct(digits)


def write_direct(digits: list[int]) -> str:
    """The bare answer, `#5`."""
    return f"#{sum(digits) % 10}"


def write_fine(digits: list[int]) -> str:
    """One step a term: `a3+0=3;b5+3=8;c7+8=5;#5`."""
    return write_steps(digits, [1] * len(digits))


def write_jumps(digits: list[int], rng: Random) -> str:
    """Steps of two to five terms; the last takes what is left."""
    jumps: list[int] = []
    while (left := len(digits) - sum(jumps)) > 0:
        jumps.append(min(left, rng.randint(2, 5)))
    return write_steps(digits, jumps)


def sample_response(digits: list[int], rng: Random, mixture: Mixture) -> str:
    """A correct answer in a style drawn from `mixture`, without the end token."""
    u = rng.random()
    if u < mixture.direct:
        return write_direct(digits)
    if u < mixture.direct + mixture.jumps:
        return write_jumps(digits, rng)
    return write_fine(digits)


def style_of(response: str) -> Style:
    """Which style a response is written in; `other` when it is none of the three."""
    body = _ANSWER.sub("", response)
    if body == response:
        return "other"
    sizes = [len(match.group(1)) // 2 for match in _STEP.finditer(body)]
    if _STEP.sub("", body):
        return "other"
    if not sizes:
        return "direct"
    return "fine" if max(sizes) == 1 else "jumps"


def is_correct(response: str, answer: str) -> bool:
    """Whether a response that ended by itself closes with `#answer`."""
    match = _ANSWER.search(response)
    return match is not None and match.group(1) == answer
