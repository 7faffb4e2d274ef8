"""Rows whose tests are inputs with right outputs: read, called, played in real cells."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.errors import UserError
from rewards.kinds.contest import (
    Contest,
    ContestTest,
    function_program,
    read_contest,
    run_contest,
    same_output,
)
from rewards.kinds.program import Options, build
from rewards.verifier import Verifier
from sandbox.checker import nodes_of
from sandbox.limits import Program, ProgramResult
from tests.rewards.items import item

ADDS = "```python\na, b = map(int, input().split())\nprint(a + b, '')\n```"
READS = {"inputs": ["1 2\n", ["3 4"]], "outputs": ["3\n", ["7"]]}
CALLS = {"fn_name": "pairs", "inputs": [[[1, 2], 2], [[], 1]], "outputs": [[[1, 1], [2, 2]], []]}
INFINITE = {"fn_name": "limit", "inputs": [[1], [2]], "outputs": [float("inf"), float("nan")]}
THIRDS = {"fn_name": "third", "inputs": [[1], [2]], "outputs": [[0.333333333], [0.6667]]}
PAIRS = (
    "class Solution:\n    def pairs(self, items, k):\n        return [(i,) * k for i in items]\n"
)


def read(columns: dict[str, Any], most: int = 9) -> Contest:
    found = read_contest(columns, most=most)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "columns",
    [
        {"input_output": json.dumps(READS)},
        {"input_output": READS},
        {"answer": json.dumps(READS)},
        {"public_tests": {"input": ["1 2\n"], "output": ["3\n"]},
         "private_tests": {"input": ["3 4"], "output": ["7"]}, "generated_tests": None},
        {"public_tests": json.dumps([{"input": "1 2\n", "output": "3\n"}]),
         "private_tests": [{"input": "3 4", "output": 7}]},
    ],
)  # fmt: skip
def test_every_shape_is_the_same_tests(columns: dict[str, Any]) -> None:
    first, second = ContestTest("1 2\n", "3\n"), ContestTest("3 4", "7")
    assert read(columns) == Contest((first, second))
    assert read(columns, most=1) == Contest((first,))


def test_a_row_of_another_shape_is_none() -> None:
    others: list[dict[str, Any]] = [{}, {"answer": "7"}, {"answer": "[1]"}, {"test_list": ["x"]}]
    for columns in others:
        assert read_contest(columns, most=9) is None


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"input_output": {"inputs": ["1"], "outputs": []}}, "1 inputs and 0 outputs"),
        ({"input_output": {"inputs": "1", "outputs": "2"}}, "are lists"),
        ({"input_output": {"inputs": [], "outputs": []}}, "are empty"),
        ({"input_output": {"inputs": [None], "outputs": ["1"]}}, "NoneType, not text"),
        ({"public_tests": "no JSON"}, "tests are an object"),
    ],
)
def test_tests_without_sense_are_an_error_of_the_row(columns: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read_contest(columns, most=9)


@pytest.mark.parametrize(
    ("given", "same"),
    [("3\n7", True), ("3  \n7\n\n", True), ("3\r\n7", True), ("3 7", False), (" 3\n7", False),
     ("3\n\n7", False), ("", False)],
)  # fmt: skip
def test_outputs_may_differ_in_blanks_at_the_end(given: str, same: bool) -> None:
    assert same_output(given, "3\n7\n") is same


def test_data_of_calls_are_not_compiled() -> None:
    tests = {"fn_name": "count", "inputs": [[list(range(9999))]], "outputs": [9999]}
    program = function_program("", read({"input_output": tests}), lambda code, name: False)
    assert program.checks is not None
    assert len(list(nodes_of(program.checks.each))) < 50


def test_a_decimal_may_be_a_millionth_off() -> None:
    for given, wanted in (("1 0.5000004\n", "1 0.5"), ("3", "3.0"), ("2e-7", "0.0")):
        assert same_output(given, wanted)
    for given, wanted in (("1 0.50001", "1 0.5"), ("2 0.5", "1 0.5"), ("3.0", "3"), ("x", "0.5")):
        assert not same_output(given, wanted)


@pytest.fixture(scope="module")
def verifiers() -> Iterator[dict[str, Verifier]]:
    try:
        yield {
            "whole": build(Options(seconds=8)),
            "partial": build(Options(seconds=8, partial=True)),
        }
    except UserError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ("text", "tests", "share"),
    [
        (ADDS, READS, 1.0),
        (ADDS.replace("a + b", "3"), READS, 0.5),
        (ADDS.replace("print(a + b", "print(7 if a == 3 else 1 / 0"), READS, 0.5),
        ("if __name__ == '__main__':\n    print(sum(map(int, input().split())))", READS, 1.0),
        ("import os\nprint(3)\nos._exit(1)", READS, 0.0),
        (ADDS.replace("a, b =", "import sys\nsys.stderr.write(5242880 * '.')\na, b ="), READS, 1.0),
        (f"First a class:\n```python\n{PAIRS}```\nNo, it reads input:\n{ADDS}", READS, 1.0),
        (PAIRS, CALLS, 1.0),
        (PAIRS.replace("items, k", "items: List[int], k: int"), CALLS, 1.0),
        (f"from __future__ import annotations\n{PAIRS}", CALLS, 1.0),
        (PAIRS.replace("(i,) * k", "(i,)"), CALLS, 0.5),
        ("def pairs(items, k):\n    return [[i] * k for i in items]", CALLS, 1.0),
        ("no code", CALLS, 0.0),
        ("def third(n):\n    return [n / 3]", THIRDS, 0.5),
        # Infinity is what it is, whatever the program calls so; NaN is never right.
        ("def limit(n):\n    return float('inf') if n == 1 else float('nan')", INFINITE, 0.5),
        ("inf = nan = 3\ndef limit(n):\n    return 3", INFINITE, 0.0),
    ],
)
def test_a_program_is_right_where_every_output_is(
    verifiers: dict[str, Verifier], text: str, tests: dict[str, Any], share: float
) -> None:
    scored = item(text, answer="", info=json.dumps({"input_output": json.dumps(tests)}))
    whole, partial = verifiers["whole"](scored), verifiers["partial"](scored)
    assert (whole.reward, whole.correct) == (float(share == 1), share == 1)
    assert (partial.reward, partial.correct) == (share, share == 1)


def test_all_tests_of_a_program_share_its_deadline(verifiers: dict[str, Verifier]) -> None:
    quick = build(Options(seconds=1.0, partial=True))
    tests = {"inputs": ["0", "9", "0"], "outputs": ["", "", ""]}
    text = "import time\ntime.sleep(float(input()))"
    verdict = quick(item(text, answer="", info=json.dumps({"input_output": tests})))
    assert not verdict.correct
    assert verdict.parts["tests_passed"] == pytest.approx(1 / 3)
    assert verdict.parts["timeout"] == 1.0


def test_making_cells_takes_nothing_from_a_programs_time() -> None:
    """Nor does waiting for one: what counts is how long the programs ran."""
    contest = Contest(tuple(ContestTest("1", "1") for _ in range(5)))

    def run(program: Program) -> ProgramResult:
        assert program.seconds is not None
        time.sleep(0.03)
        return ProgramResult("ok", 0, "1", "", 0.01)

    assert run_contest("", contest, run, seconds=0.1, to_end=False).passed == 5
    assert run_contest("", contest, run, seconds=0.035, to_end=False) == ("timeout", 4, 5)
