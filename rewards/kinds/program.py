"""The kind `code`: a response's program, judged by the tests of its row, in the sandbox.

Rows are those of HumanEval (`test` with a function `check`, `entry_point`; the prompt is code that
goes on in the response), of MBPP (`test_list`, perhaps `test_setup_code`, `test_imports`,
`challenge_test_list`) and of programming contests (inputs with outputs, see `contest.py`). A column
that the task takes for the answer is looked up there as well. The program is the response's last
fenced block that has what is asked for, else the whole response.

Right is a program whose tests all hold; they run in a process of their own (see
`sandbox/checker.py`). One that ends early, or takes too long or too much memory, is wrong. A
machine without a sandbox is a UserError when the verifier is built.
"""

import ast
import asyncio
import atexit
import builtins
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from headrace.config.sections.base import StrictModel
from headrace.protocol.messages.control import ScoreItem
from rewards.functions.arguments import InvalidRewardError
from rewards.functions.results import Verdict
from rewards.kinds.contest import (
    ContestResult,
    as_on_leetcode,
    function_program,
    read_contest,
    run_contest,
)
from rewards.verifier import Verifier
from sandbox.checker import foreign_names, nodes_of
from sandbox.interpreter import interpreter_for
from sandbox.limits import MIB, Checks, Limits, Program, ProgramResult
from sandbox.pool import Sandbox

_BLOCK = re.compile(r"^```[ \t]*(\w*)[^\n`]*\n(.*?)(?:^```|\Z)", re.DOTALL | re.MULTILINE)
_CODE_BEGINS = re.compile(r"^(?:from|import|def|async|class|@)", re.MULTILINE)
OUTPUT_BYTES = 4 * MIB
"""Kept of a program's output: a test with more of it cannot be passed."""


class Options(StrictModel):
    """Bounds of a program, and its pay."""

    seconds: float = Field(default=5.0, gt=0)
    """Deadline of a program with its tests; shorter than that of the source."""

    memory_mib: int = Field(default=512, ge=64)
    """Memory of a program, in MiB."""

    processes: int = Field(default=16, ge=1)
    """Processes and threads of a program at a time."""

    max_tests: int = Field(default=100, ge=1)
    """Maximum number of a row's test cases that a program is run on: the first ones."""

    packages: tuple[str, ...] = ()
    """Installed packages that programs and tests may import, with what these require."""

    python: str | None = None
    """The Python that programs run with, with all its packages. None: ours, without packages."""

    partial: bool = False
    """Pay the share of tests that hold instead of all or nothing."""


def build(options: Options) -> Verifier:
    """The verifier, with a cell that is ready; UserError where there is no sandbox."""
    limits = Limits(
        seconds=options.seconds,
        memory_bytes=options.memory_mib * MIB,
        processes=options.processes,
        output_bytes=OUTPUT_BYTES,
    )
    python = interpreter_for(options.python, options.packages)
    runner = asyncio.Runner()
    sandbox = runner.run(Sandbox(limits, parallel=1, python=python).open())
    atexit.register(lambda: runner.run(sandbox.close()))

    def run(program: Program) -> ProgramResult:
        return runner.run(sandbox.run(program))

    def judge(item: ScoreItem) -> Verdict:
        columns = {"answer": item.answer, **json.loads(item.info)}
        contest = read_contest(columns, most=options.max_tests)
        if contest is None:
            program = program_of(item.prompt, item.text, columns)
            result = run(program)
            assert program.checks is not None
            lacks = not result.passed and result.errors[0].startswith("ModuleNotFoundError")
            if lacks and result.errors[0] in run(Program(program.checks.setup)).stderr:
                raise InvalidRewardError(f"the row's tests cannot run: {result.errors[0]}")
            return _verdict(result, options)
        code = code_of(item.text, contest.function, contest.function and "Solution")
        if contest.function is not None:
            return _verdict(run(function_program(code, contest, _defines)), options)
        done = run_contest(code, contest, run, seconds=options.seconds, to_end=options.partial)
        return _verdict(done, options)

    return Verifier(judge)


def _verdict(result: ProgramResult | ContestResult, options: Options) -> Verdict:
    right = result.status == "ok" and result.passed == result.total > 0
    share = result.passed / result.total if result.total else 0.0
    parts = {
        "correct": float(right),
        "tests_passed": share,
        "timeout": float(result.status == "timeout"),
        "memory": float(result.status == "memory"),
    }
    return Verdict(share if options.partial else float(right), right, parts)


def program_of(prompt: str, text: str, columns: Mapping[str, Any]) -> Program:
    """The program of a response with the tests of its row; ValueError where a row has none."""
    entry, test = columns.get("entry_point"), columns.get("test", columns.get("answer"))
    if isinstance(entry, str) and isinstance(test, str):
        return _continued(prompt, text, entry, test)
    tests = _texts(columns.get("test_list", columns.get("answer")))
    # An answer may hold tests; a right program there is none, and would pass whatever is written.
    asserts = any(isinstance(node, ast.Assert) for node in nodes_of(tests))
    if not tests or not ("test_list" in columns or asserts):
        raise ValueError(
            "the row has no tests: neither `test` and `entry_point` nor `test_list`, "
            "`input_output` or `public_tests`"
        )
    setup = [*_texts(columns.get("test_imports")), str(columns.get("test_setup_code") or "")]
    each = (*tests, *_texts(columns.get("challenge_test_list")))
    names = tuple(builtin_names(tests, str(columns.get("code") or "")))
    code = code_of(text, *names, *foreign_names(each))
    return Program(code, checks=Checks(each, setup="\n".join(setup), names=names))


def _continued(prompt: str, text: str, entry: str, test: str) -> Program:
    """A row of HumanEval. Helpers that the prompt defines are the tests' own, too."""
    # LeetCode's are `Solution().f`.
    call, entry = f"check({entry})", re.split(r"\W", entry, maxsplit=1)[0]
    if not re.search(r"^def check\b", test, re.MULTILINE):  # the program's would be called
        raise ValueError("the row's `test` defines no function `check`")
    begun = prompt_code(prompt, entry)
    if not begun and _defines(joined := f"{prompt.rstrip()}\n{text}", entry):
        # A head without a body is no code yet.
        return Program(joined, checks=Checks((call,), setup=test, names=(entry,)))
    code = f"{begun.rstrip()}\n\n{code_of(text, entry)}"
    checks = Checks((call,), setup=f"{begun}\n{test}", names=(entry,))
    return Program(as_on_leetcode(code) if entry == "Solution" else code, checks=checks)


def builtin_names(tests: Sequence[str], reference: str) -> list[str]:
    """Python's names that tests mean the program by (mbpp/126 asks for a `sum`).

    Those that the reference solution defines; without one, what tests of no foreign name call
    first."""
    python, called = set(dir(builtins)), list(map(_calls, tests))
    if not (reference or foreign_names(tests)):
        return sorted(python.intersection(name for names in called for name in names[:1]))
    named = python.intersection(name for names in called for name in names)
    return sorted(name for name in named if _defines(reference, name))


def code_of(text: str, *entries: str | None) -> str:
    """Return the last fenced block, preferably one that defines one of `entries`, else one that
    says that it is Python; without any block the text."""
    found = [(match[1].lower(), match[2]) for match in _BLOCK.finditer(text)]
    if not found:
        return text
    blocks = [block for _, block in found]
    defining = [each for each in blocks if any(name and _defines(each, name) for name in entries)]
    python = [block for language, block in found if language in ("python", "python3", "py")]
    return (defining or python or blocks)[-1]


def prompt_code(prompt: str, entry: str) -> str:
    """Return a prompt's longest run of lines that is Python and defines `entry`, or ""."""
    for text in (prompt, *(match[2] for match in _BLOCK.finditer(prompt))):
        if _defines(text, entry):
            return text
    for begin in _CODE_BEGINS.finditer(prompt):
        lines = prompt[begin.start() :].splitlines(keepends=True)
        for end in range(len(lines), 0, -1):
            if _defines(text := "".join(lines[:end]), entry):
                return text
    return ""


def _defines(code: str, name: str) -> bool:
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return any(isinstance(node, kinds) and node.name == name for node in tree.body)


def _calls(test: str) -> list[str]:
    """Return the names of what a test calls, in order; "" for what has none."""
    calls = [node for node in nodes_of([test]) if isinstance(node, ast.Call)]
    calls.sort(key=lambda call: (call.lineno, call.col_offset))
    return [call.func.id if isinstance(call.func, ast.Name) else "" for call in calls]


def _texts(value: Any) -> list[str]:
    """A list of texts, as it is or as JSON; a text alone is a list of one."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = [value] if value.strip() else []
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []
