"""The benchmark of threads: settings in turn, ratios turn by turn, company that ends."""

import json
import subprocess
import sys
from functools import partial

import psutil

from benchmarks.learner_load import MODEL
from benchmarks.threads import REFERENCE, company, in_turn, ratios, settings
from headrace.install import ROOT


def test_settings_take_turns_at_going_first() -> None:
    asked: list[tuple[str, int]] = []

    def measure(name: str, seed: int) -> float:
        asked.append((name, seed))
        return float(seed)

    found = in_turn({name: partial(measure, name) for name in ("a", "b", "c")}, 2)
    assert asked == [("a", 1), ("b", 1), ("c", 1), ("b", 2), ("c", 2), ("a", 2)]
    assert found == {"a": [1.0, 2.0], "b": [1.0, 2.0], "c": [1.0, 2.0]}


def test_ratios_are_of_the_same_turn() -> None:
    found = ratios({"spinning": [2.0, 8.0, 3.0], REFERENCE: [1.0, 2.0, 3.0]})
    assert found["spinning"] == {"median": 2.0, "min": 1.0, "max": 4.0}
    assert found[REFERENCE] == {"median": 1.0, "min": 1.0, "max": 1.0}


def test_settings_differ_in_threads_and_in_how_they_wait() -> None:
    chosen = settings(4)
    assert {name: one.threads for name, one in chosen.items()} == {
        "spinning": 4, "short": 4, "passive": 4, REFERENCE: 1,
    }  # fmt: skip
    assert chosen["spinning"].environment["GOMP_SPINCOUNT"] == "300000"
    assert chosen["short"].environment["GOMP_SPINCOUNT"] == "5000"
    assert chosen["passive"].environment["GOMP_SPINCOUNT"] == "0"


def test_company_keeps_a_core_each_and_ends() -> None:
    before = set(psutil.Process().children())
    with company(2):
        others = set(psutil.Process().children()) - before
        assert len(others) == 2
    assert not any(other.is_running() for other in others)


def test_a_learner_makes_an_update_for_each_line() -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "benchmarks.learner_steps", str(MODEL), "4", "1"],
        input="0\n1\n", cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    lines = [json.loads(line) for line in answer.stdout.splitlines() if line.startswith("{")]
    assert [set(line) for line in lines] == [{"seconds"}, {"seconds"}]
