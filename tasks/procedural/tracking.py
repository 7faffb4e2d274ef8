"""The procedural task of credit assignment: under which cup is the object after all the swaps?

In: an index and a seed. Out: prompts such as `3a14b35c51=` (the object starts under cup 3; swap a
exchanges cups 1 and 4, b 3 and 5, c 5 and 1) whose answer is the last cup, and the written answers
a supervised model is taught. All are pure functions of their arguments.

    written   `a14+3=3;b35+3=5;c51+5=1;#1`   per swap: the swap, the cup before, the cup after
    direct    `#1`                           nothing worked out; right by luck

The supervised model is taught to slip: in every step, with probability `SLIP`, the cup after is
some wrong one, and the answer goes on from there. So it knows what is right and does not always do
it; answers of n swaps succeed in about (1 - SLIP)^n of all cases, and one token is to blame when
they fail. Half of the swaps move the object, so that neither keeping nor moving is a rule.
"""

import re
import string
from dataclasses import dataclass
from functools import reduce
from random import Random

from tasks.procedural.base import Phase, ProceduralTask

LABELS = string.ascii_lowercase + string.ascii_uppercase[:20]
CUPS = range(1, 10)
SLIP = 0.2
DIRECT_SHARE = 0.15

_PROMPT = re.compile(r"([1-9])((?:[a-zA-T][1-9]{2})+)=")
_STEP = re.compile(r"[a-zA-T]\d\d\+\d=\d;")
_ANSWER = re.compile(r"#\d$")


@dataclass(frozen=True, slots=True)
class TrackingProblem:
    """The cup the object starts under, and the pairs of cups that are exchanged."""

    start: int
    swaps: tuple[tuple[int, int], ...]


def follow(cup: int, swap: tuple[int, int]) -> int:
    """The object's cup after one swap."""
    first, second = swap
    return second if cup == first else first if cup == second else cup


def draw_problem(rng: Random, swaps: int) -> TrackingProblem:
    """Swaps of two different cups, half of which move the object."""
    start = cup = rng.choice(CUPS)
    pairs: list[tuple[int, int]] = []
    for _ in range(swaps):
        others = [other for other in CUPS if other != cup]
        pair = rng.sample(others, 2)
        if rng.random() < 0.5:
            pair[rng.randrange(2)] = cup
        pairs.append((pair[0], pair[1]))
        cup = follow(cup, pairs[-1])
    return TrackingProblem(start, tuple(pairs))


def write_prompt(problem: TrackingProblem) -> str:
    """`3a14b35c51=`."""
    return f"{problem.start}{''.join(_labelled(problem))}="


def read_prompt(prompt: str) -> TrackingProblem:
    """The inverse of `write_prompt`. Raises ValueError for any other text."""
    match = _PROMPT.fullmatch(prompt)
    if match is None:
        raise ValueError(f"not a tracking problem: {prompt!r}")
    swaps = match.group(2)
    pairs = [(int(swaps[i + 1]), int(swaps[i + 2])) for i in range(0, len(swaps), 3)]
    return TrackingProblem(int(match.group(1)), tuple(pairs))


def solve(prompt: str) -> str:
    """The cup the object ends under."""
    problem = read_prompt(prompt)
    return str(reduce(follow, problem.swaps, problem.start))


def write_steps(problem: TrackingProblem, rng: Random, slip: float = 0.0) -> str:
    """`a14+3=3;b35+3=5;c51+5=1;#1`, each step wrong with probability `slip`.

    A wrong step is any of the eight other cups; the next one goes on from what is written.
    """
    cup = problem.start
    steps: list[str] = []
    for labelled, swap in zip(_labelled(problem), problem.swaps, strict=True):
        after = follow(cup, swap)
        if rng.random() < slip:
            after = rng.choice([other for other in CUPS if other != after])
        steps.append(f"{labelled}+{cup}={after};")
        cup = after
    return "".join(steps) + f"#{cup}"


def teach(prompt: str, rng: Random, phase: Phase) -> str:
    """Right steps while the skill is formed, then steps with slips and direct answers."""
    if phase == "skill":
        return write_steps(read_prompt(prompt), rng)
    if rng.random() < DIRECT_SHARE:
        return f"#{solve(prompt)}"
    return write_steps(read_prompt(prompt), rng, SLIP)


def style_of(response: str) -> str:
    """`written`, `direct`, or `other` when the response is neither."""
    body = _ANSWER.sub("", response)
    if body == response or _STEP.sub("", body):
        return "other"
    return "written" if body else "direct"


def _labelled(problem: TrackingProblem) -> list[str]:
    return [f"{LABELS[i]}{first}{second}" for i, (first, second) in enumerate(problem.swaps)]


TRACKING = ProceduralTask(
    name="tracking",
    characters=string.digits + "+=;#" + LABELS,
    most_terms=len(LABELS),
    max_terms=24,
    styles=("direct", "written"),
    draw=lambda rng, terms: write_prompt(draw_problem(rng, terms)),
    solve=solve,
    teach=teach,
    style_of=style_of,
)
"""Tracking a shuffled object (BIG-bench's task of that name, with digits for words)."""
