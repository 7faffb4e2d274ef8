"""Rows of programming contests: tests that are inputs with the right outputs.

In: a row's columns. Out: a Contest, or None where the row has no such tests. Rows are those of APPS
(`input_output`, JSON with `inputs`, `outputs` and perhaps `fn_name`; verl keeps the same in its
ground truth) and of CodeContests (`public_tests`, `private_tests`, `generated_tests`, each with
`input` and `output`). With a function's name the tests are calls of it, run by the checker of a
cell; else every test is a run of the program, which reads standard input and writes standard
output. Blanks at ends of lines, empty lines at the end and 1e-6 of a decimal do not count.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isclose
from typing import Any, NamedTuple

from sandbox.limits import Checks, Program, ProgramResult, Status

RunProgram = Callable[[Program], ProgramResult]
_GROUPS = ("public_tests", "private_tests", "generated_tests")
_NUMBER = re.compile(r"(-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)")
_NEAR = {"rel_tol": 1e-6, "abs_tol": 1e-6}
_LEETCODE = """from typing import *; from bisect import *; from collections import *
from functools import *; from heapq import *; from itertools import *
import bisect, collections, functools, heapq, itertools, math
"""
_SAME = """
from json import loads as _loads  # data are texts: to compile them takes of the program's time
from math import isclose


def _same(given, wanted):
    if isinstance(wanted, list) and isinstance(given, (list, tuple)):
        return len(given) == len(wanted) and all(map(_same, given, wanted))
    if isinstance(wanted, dict) and isinstance(given, dict):
        given = {str(k): v for k, v in given.items()}
        return given.keys() == wanted.keys() and all(_same(given[k], wanted[k]) for k in wanted)
    near = isinstance(wanted, float) and isinstance(given, (int, float))
    return given == wanted or (near and isclose(given, wanted, rel_tol=1e-6, abs_tol=1e-6))


def _right(given, wanted):
    return _same(given, wanted) or (isinstance(wanted, list) and _same([given], wanted))
"""


class ContestTest(NamedTuple):
    """Input of a test and the right output."""

    given: Any
    wanted: Any


@dataclass(frozen=True)
class Contest:
    """The tests of a row."""

    tests: tuple[ContestTest, ...]
    function: str | None = None
    """Function that tests call; None: the program reads and writes."""


class ContestResult(NamedTuple):
    """Result of a program on the tests of a row."""

    status: Status
    """That of the last run that did not end well."""
    passed: int
    total: int


def read_contest(columns: Mapping[str, Any], *, most: int) -> Contest | None:
    """Read a row's first `most` tests; None without any, ValueError where they are invalid."""
    for name in ("input_output", "answer"):
        told = _parsed(columns.get(name))
        if isinstance(told, dict) and "inputs" in told and "outputs" in told:
            tests = _paired(told["inputs"], told["outputs"])
            function = told.get("fn_name")
            return _contest(tests, function if isinstance(function, str) else None, most)
    groups = [_parsed(columns[name]) for name in _GROUPS if columns.get(name)]
    tests = [test for group in groups for test in _grouped(group)]
    return _contest(tests, None, most) if groups else None


def _contest(tests: Sequence[ContestTest], function: str | None, most: int) -> Contest:
    if not tests:
        raise ValueError("the row has no tests: its lists of inputs and outputs are empty")
    if function is None:
        tests = [ContestTest(_text(test.given), _text(test.wanted)) for test in tests]
    return Contest(tuple(tests[:most]), function)


def _parsed(value: Any) -> Any:
    """A value, or what it says as JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return None


def _grouped(group: Any) -> Iterator[ContestTest]:
    """Tests of one column: two lists side by side, or a list of tests."""
    if isinstance(group, dict):
        yield from _paired(group.get("input", []), group.get("output", []))
    elif isinstance(group, list) and all(isinstance(each, dict) for each in group):
        for each in group:
            yield from _paired([each.get("input")], [each.get("output")])
    else:
        raise ValueError("tests are an object with `input` and `output`, or a list of such objects")


def _paired(inputs: Any, outputs: Any) -> list[ContestTest]:
    if not isinstance(inputs, list) or not isinstance(outputs, list):
        raise ValueError("inputs and outputs of tests are lists")
    if len(inputs) != len(outputs):
        raise ValueError(f"{len(inputs)} inputs and {len(outputs)} outputs of tests")
    return [ContestTest(given, wanted) for given, wanted in zip(inputs, outputs, strict=True)]


def _text(value: Any) -> str:
    """Return what a program reads or writes as text; a list is its lines."""
    if isinstance(value, list):
        return "\n".join(_text(line) for line in value)
    if isinstance(value, str | int | float):
        return str(value)
    raise ValueError(f"a test's input or output is {type(value).__name__}, not text")


def same_output(given: str, wanted: str) -> bool:
    """Return whether outputs are equal but for trailing blanks, empty lines, 1e-6 of a decimal."""
    trimmed = ("\n".join(map(str.rstrip, text.splitlines())) for text in (given, wanted))
    said, right = (_NUMBER.split(text.rstrip("\n")) for text in trimmed)
    pairs = zip(said[1::2], right[1::2], strict=False)
    return said[::2] == right[::2] and all(
        a == b or ("." in b and isclose(float(a), float(b), **_NEAR)) for a, b in pairs
    )


def function_program(code: str, contest: Contest, defines: Callable[[str, str], bool]) -> Program:
    """Return a program whose tests call its function, perhaps of a class `Solution`."""
    name = str(contest.function)
    if not name.isidentifier():
        raise ValueError(f"fn_name is {name!r}, no name of a function")
    owner = "Solution" if defines(code, "Solution") and not defines(code, name) else name
    call = f"Solution().{name}" if owner == "Solution" else name
    checks = []
    for test in contest.tests:
        arguments = test.given if isinstance(test.given, list) else [test.given]
        given, wanted = (f"_loads({json.dumps(each)!r})" for each in (arguments, test.wanted))
        checks.append(f"assert _right({call}(*{given}), {wanted})")
    return Program(as_on_leetcode(code), checks=Checks(tuple(checks), setup=_SAME, names=(owner,)))


def as_on_leetcode(code: str) -> str:
    """Return a program behind LeetCode's imports: its tasks' heads name `List` without one."""
    return code if "from __future__" in code else _LEETCODE + code


def run_contest(
    code: str, contest: Contest, run: RunProgram, *, seconds: float, to_end: bool
) -> ContestResult:
    """Run a program on tests that share `seconds`, up to the first failure or `to_end`."""
    left = seconds
    status: Status = "ok"
    passed = 0
    for test in contest.tests:
        if left <= 0:
            status = "timeout"
            break
        result = run(Program(code, stdin=test.given, seconds=left))
        left -= result.seconds
        if result.status != "ok":
            status = result.status
        elif not result.cut and same_output(result.stdout, test.wanted):
            passed += 1
            continue
        if not to_end:
            break
    return ContestResult(status, passed, len(contest.tests))
