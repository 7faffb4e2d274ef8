"""The procedural task of process rewards: a program without branches, one register value a line.

In: an index and a seed. Out: prompts such as `3a*4b+9c-1:` (begin with 3; multiply by 4, add 9,
subtract 1, all modulo ten), the written answers a supervised model is taught, the score of an
answer, and how far it is right. All are pure functions of their arguments.

    a*4=2 b+9=1 c-1=0

An answer is one line per operation: its label, the operation, the register after it. Lines that
begin with `#` are comments. The score looks at the last line alone, as a unit test looks at what a
program returns; `right_lines` knows which line was the first to be wrong.

The supervised model is taught to slip: a register is one too high with probability `SLIP`, and the
next line goes on from what is written. A wrong register never becomes right again: sums and
differences keep how far it is off, slips all go one way, so that ten of them would have to come
together, and a multiplication, which might bring two numbers together, stands first or not at all.
An answer that is wrong in one line is thus wrong for good, and n lines succeed in about (1 -
SLIP)^n of all cases.
"""

import re
import string
from dataclasses import dataclass
from itertools import takewhile
from random import Random

from tasks.procedural.base import Phase, ProceduralTask

LABELS = string.ascii_lowercase[:9]
MULTIPLIED = 0.5
"""Share of the programs that begin with a multiplication."""
SLIP = 0.25
NOTE = 0.08
"""Probability of a comment before a line."""

_PROMPT = re.compile(r"(\d)((?:[a-i][+*-]\d)+):")
_LINE = re.compile(r"([a-i])[+*-]\d=(\d)")


@dataclass(frozen=True, slots=True)
class StraightLineProblem:
    """The register's first value, and the operations on it, such as `+4`."""

    start: int
    operations: tuple[str, ...]


def apply(operation: str, register: int) -> int:
    """The register after one operation."""
    sign, number = operation[0], int(operation[1])
    if sign == "*":
        return register * number % 10
    return (register + (number if sign == "+" else -number)) % 10


def draw_problem(rng: Random, operations: int) -> StraightLineProblem:
    """Sums and differences, in half of all problems behind a multiplication."""
    drawn = [f"{rng.choice('+-')}{rng.randint(1, 9)}" for _ in range(operations)]
    if rng.random() < MULTIPLIED:
        drawn[0] = f"*{rng.randint(2, 9)}"
    return StraightLineProblem(rng.randint(0, 9), tuple(drawn))


def write_prompt(problem: StraightLineProblem) -> str:
    """`3a*4b+9c-1:`."""
    labelled = zip(LABELS, problem.operations, strict=False)
    return f"{problem.start}{''.join(label + operation for label, operation in labelled)}:"


def read_prompt(prompt: str) -> StraightLineProblem:
    """The inverse of `write_prompt`. Raises ValueError for any other text."""
    match = _PROMPT.fullmatch(prompt)
    body = "" if match is None else match[2]
    if match is None or body[::3] != LABELS[: len(body) // 3]:
        raise ValueError(f"not a straight-line program: {prompt!r}")
    return StraightLineProblem(
        int(match[1]), tuple(body[i + 1 : i + 3] for i in range(0, len(body), 3))
    )


def registers(problem: StraightLineProblem) -> list[int]:
    """The register after each operation."""
    values, register = [], problem.start
    for operation in problem.operations:
        register = apply(operation, register)
        values.append(register)
    return values


def solve(prompt: str) -> str:
    """The register after the last operation."""
    return str(registers(read_prompt(prompt))[-1])


def write_program(
    problem: StraightLineProblem, rng: Random, *, slip: float = 0.0, note: float = 0.0
) -> str:
    """The lines of an answer, each ended by a newline. `slip`: probability that a register is one
    too high; `note`: of a comment before a line."""
    register, text = problem.start, ""
    for label, operation in zip(LABELS, problem.operations, strict=False):
        register = apply(operation, register)
        if rng.random() < slip:
            register = (register + 1) % 10
        if rng.random() < note:
            text += "#\n"
        text += f"{label}{operation}={register}\n"
    return text


def code_lines(response: str) -> list[str]:
    """The lines that are neither blank nor comments."""
    lines = (line.strip() for line in response.split("\n"))
    return [line for line in lines if line and not line.startswith("#")]


def right_lines(prompt: str, response: str) -> int:
    """Number of code lines before the first with a wrong label or register."""
    expected = zip(LABELS, registers(read_prompt(prompt)), strict=False)
    pairs = zip(map(_written, code_lines(response)), expected, strict=False)
    return len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))


def passes(prompt: str, response: str) -> bool:
    """Return whether the last code line, the only one read, has its label and register."""
    problem, lines = read_prompt(prompt), code_lines(response)
    last = (LABELS[len(problem.operations) - 1], registers(problem)[-1])
    return bool(lines) and _written(lines[-1]) == last


def _written(line: str) -> tuple[str, int] | None:
    """The label and the register of a line."""
    match = _LINE.fullmatch(line)
    return None if match is None else (match[1], int(match[2]))


def score(prompt: str, completion: str) -> dict[str, float]:
    """The reward function of the task: 1 when its unit test passes, else 0.

    The parts: `right`, the share of the operations before the first wrong line; `lines`, how many
    there are; `neutral`, the share of comments among them. Raises ValueError for another prompt.
    """
    written = [line for line in completion.split("\n") if line.strip()]
    code = code_lines(completion)
    return {
        "score": float(passes(prompt, completion)),
        "right": right_lines(prompt, completion) / len(read_prompt(prompt).operations),
        "lines": float(len(written)),
        "neutral": 1 - len(code) / len(written) if written else 0.0,
    }


def teach(prompt: str, rng: Random, phase: Phase) -> str:
    """Right lines while the skill is formed, then lines with slips; comments always."""
    slip = 0.0 if phase == "skill" else SLIP
    return write_program(read_prompt(prompt), rng, slip=slip, note=NOTE)


def style_of(response: str) -> str:
    """`plain`, `noted` with a comment, `other` when there is any other line."""
    if not response.endswith("\n"):
        return "other"
    lines = response[:-1].split("\n")
    if not all(line == "#" or _LINE.fullmatch(line) for line in lines):
        return "other"
    return "noted" if "#" in lines else "plain"


STRAIGHT_LINE = ProceduralTask(
    name="straight_line",
    characters=string.digits + "+-*=:#\n" + LABELS,
    most_terms=len(LABELS),
    min_terms=2,
    max_terms=8,
    tail_exponent=1.0,
    styles=("plain", "noted"),
    draw=lambda rng, terms: write_prompt(draw_problem(rng, terms)),
    solve=solve,
    teach=teach,
    style_of=style_of,
    is_right=lambda row, response: passes(str(row.prompt), response),
)
