"""The procedural task of long answers: step a small register, line by line, and check the lines.

In: an index and a seed. Out: prompts such as `003:3714=` (three steps to go from state 3714), the
written answers a supervised model is taught, and the score of an answer. All are pure functions of
their arguments.

A step drops the first digit of the state and appends the last digit of the sum of its first and its
last: 3714 becomes 7147, for 3 + 4 = 7. The prompt opens the first line; the answer completes it and
writes one more for every step, then the last digit of the final state:

    003:3714=7;002:7147=4?002:7147=4;001:1474=5;#5

A line ends in `;`, which takes its digit for right and goes on, or in `?`, which takes nothing: the
same line is written again. So what a line says before `?` costs tokens and nothing else, and a
wrong digit before `;` is fatal: the step can be inverted, and no later line leads back. An answer
is right when every step is there, in order, with the right digit before its `;`. There is no short
cut, and an answer of n steps succeeds in about (1 - f)^n of all cases, f being the share of fatal
steps.

The supervised model is taught to slip: each digit it writes is wrong with probability `SLIP`.
With probability `CHECK` it checks a step, whatever it wrote: it writes the line again until the
same digit stands there twice in a row. An unchecked step is thus fatal with probability `SLIP` and
a checked one almost never, f is (1 - CHECK) * SLIP, and even answers of forty steps succeed now and
then. To slip less or to check more, all the time or where it sees a slip, is what is left to learn,
and how long an answer gets is the policy's own doing.
"""

import re
import string
from dataclasses import dataclass
from random import Random
from typing import Literal

from tasks.procedural.base import Phase, ProceduralTask

SLIP = 0.08
CHECK = 0.25
SKILL_SLIP = 0.12
SKILL_CHECK = 0.5
"""More wrong and more checked lines while the skill is formed: what to do when two writings of a
line differ is seen often enough to be learnt."""

Ending = Literal["right", "slip", "illegal"]

_PROMPT = re.compile(r"(\d{3}):(\d{4})=")
_LINE = re.compile(r"\d{3}:\d{4}=\d[;?]")
_MARKED = re.compile(r"\d[;?]")


@dataclass(frozen=True, slots=True)
class RegisterProblem:
    """The number of steps to go, and the four digits to start from."""

    steps: int
    state: str


@dataclass(frozen=True, slots=True)
class AnswerCheck:
    """Progress of an answer: steps done before its end or its first mistake, the lines written for
    them, how many of these were not accepted, and how it ends."""

    ending: Ending
    steps: int
    lines: int
    checks: int


def next_digit(state: str) -> str:
    """The digit that a step appends."""
    return str((int(state[0]) + int(state[-1])) % 10)


def write_opening(left: int, state: str) -> str:
    """A line up to its digit, with `left` steps to go: `003:3714=`."""
    return f"{left:03d}:{state}="


def write_prompt(problem: RegisterProblem) -> str:
    """`003:3714=`."""
    return write_opening(problem.steps, problem.state)


def read_prompt(prompt: str) -> RegisterProblem:
    """The inverse of `write_prompt`. Raises ValueError for any other text, no steps, and the state
    0000, which never changes."""
    match = _PROMPT.fullmatch(prompt)
    if match is None or match[1] == "000" or match[2] == "0000":
        raise ValueError(f"not a register to step: {prompt!r}")
    return RegisterProblem(int(match[1]), match[2])


def solve(prompt: str) -> str:
    """The last digit of the final state."""
    problem = read_prompt(prompt)
    state = problem.state
    for _ in range(problem.steps):
        state = state[1:] + next_digit(state)
    return state[-1]


def write_run(
    problem: RegisterProblem, rng: Random, *, slip: float = 0.0, check: float = 0.0
) -> str:
    """`7;002:7147=4?002:7147=4;001:1474=5;#5`, the answer that follows the prompt.

    Each digit is wrong with probability `slip`, and what follows goes on from the digit that is
    accepted. Each step is checked with probability `check`.
    """
    state, text = problem.state, ""
    for left in range(problem.steps, 0, -1):
        before = ""
        checked = rng.random() < check
        while True:
            digit = next_digit(state)
            if rng.random() < slip:
                digit = rng.choice([other for other in string.digits if other != digit])
            accepted = digit == before or not (before or checked)
            text += write_opening(left, state) + digit + (";" if accepted else "?")
            if accepted:
                break
            before = digit
        state = state[1:] + digit
    return text.removeprefix(write_prompt(problem)) + f"#{state[-1]}"


def check_answer(prompt: str, response: str) -> AnswerCheck:
    """Read an answer to its end or first mistake. Raises ValueError for a bad `prompt`."""
    problem = read_prompt(prompt)
    text, position = prompt + response, 0
    state, left = problem.state, problem.steps
    lines = checks = 0

    def ended(ending: Ending) -> AnswerCheck:
        return AnswerCheck(ending, problem.steps - left, lines, checks)

    while left:
        opening = write_opening(left, state)
        digit_at = position + len(opening)
        if not text.startswith(opening, position) or not _MARKED.match(text, digit_at):
            return ended("illegal")
        digit, mark = text[digit_at], text[digit_at + 1]
        position = digit_at + 2
        lines += 1
        if mark == "?":
            checks += 1
            continue
        if digit != next_digit(state):
            return ended("slip")
        state, left = state[1:] + digit, left - 1
    return ended("right" if text[position:] == f"#{state[-1]}" else "illegal")


def score(prompt: str, completion: str) -> dict[str, float]:
    """The reward function of the task: 1 when every step is there and right, else 0.

    The parts: `legal`, nothing but a fatal slip is wrong with it; `done`, the share of the steps
    before the first mistake; `again`, the share of the lines up to there that were not accepted.
    Raises ValueError for another prompt.
    """
    account = check_answer(prompt, completion)
    return {
        "score": float(account.ending == "right"),
        "legal": float(account.ending != "illegal"),
        "done": account.steps / read_prompt(prompt).steps,
        "again": account.checks / max(1, account.lines),
    }


def teach(prompt: str, rng: Random, phase: Phase) -> str:
    """Steps with slips, some of them checked; more of both while the skill is formed."""
    slip, check = (SKILL_SLIP, SKILL_CHECK) if phase == "skill" else (SLIP, CHECK)
    return write_run(read_prompt(prompt), rng, slip=slip, check=check)


def style_of(response: str) -> str:
    """`checked` when a line was written again, `plain` when none was, else `other`."""
    # The prompt's half of the first line is missing from the response; any will do.
    body, result = f"000:0000={response}"[:-2], response[-2:]
    if not re.fullmatch(r"#\d", result) or _LINE.sub("", body):
        return "other"
    return "checked" if "?" in body else "plain"


SHIFT_REGISTER = ProceduralTask(
    name="shift_register",
    characters=string.digits + ":=;?#",
    most_terms=999,
    min_terms=3,
    max_terms=130,
    tail_exponent=1.3,
    styles=("plain", "checked"),
    draw=lambda rng, terms: write_prompt(RegisterProblem(terms, f"{rng.randint(1, 9999):04d}")),
    solve=solve,
    teach=teach,
    style_of=style_of,
    is_right=lambda row, text: check_answer(str(row.prompt), text).ending == "right",
)
