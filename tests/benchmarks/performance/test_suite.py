"""What the output of a suite says of it."""

from benchmarks.performance.suite import read

OUTPUT = """== ruff check
All checks passed!
== ruff check: passed in 1 s
== tests
.................... [ 52%]
SKIPPED [1] tests/x.py:3: 2 passed in 3 seconds is no outcome
1 failed, 6795 passed, 4 skipped, 2 warnings in 1617.03s (0:26:57)
== tests: FAILED (exit 1) after 1619 s
"""


def test_steps_and_outcomes_are_those_of_the_output() -> None:
    found = read(OUTPUT.splitlines())
    assert found["steps"] == {"ruff check": 1, "tests": 1619}
    assert found["tests"] == {"failed": 1, "passed": 6795, "skipped": 4}


def test_an_output_without_tests_has_none() -> None:
    assert read(["== ruff check: passed in 1 s"]) == {"steps": {"ruff check": 1}, "tests": {}}
