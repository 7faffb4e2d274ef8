"""Sides in turns, their spread, and rows of calm results alone."""

import argparse
import json
from functools import partial
from pathlib import Path

import pytest

from benchmarks.kit.machine_state import DISTURBED_CORES, MachineWatch
from benchmarks.kit.pairs import conclude, in_turns, ratios, spread, spread_text, time_call
from benchmarks.kit.rows import ResultFile


def test_sides_take_turns_at_going_first() -> None:
    asked: list[tuple[str, int]] = []

    def measure(name: str, turn: int) -> float:
        asked.append((name, turn))
        return float(turn)

    sides = {name: partial(measure, name) for name in ("a", "b", "c")}
    assert in_turns(sides, 2, warm_up=False) == {name: [1.0, 2.0] for name in sides}
    assert asked == [("a", 1), ("b", 1), ("c", 1), ("b", 2), ("c", 2), ("a", 2)]


def test_the_turn_that_warms_up_does_not_count() -> None:
    seen: list[object] = []
    sides = {name: lambda turn: turn for name in ("a", "b")}
    assert in_turns(sides, 2, seen=seen.append) == {"a": [1, 2], "b": [1, 2]}
    assert seen == [{"a": 1, "b": 1}, {"a": 2, "b": 2}]


def test_ratios_are_of_the_same_turn() -> None:
    found = ratios([2.0, 8.0, 3.0], [1.0, 2.0, 3.0])
    assert spread(found, "speed") == {"speed": 2.0, "speed_min": 1.0, "speed_max": 4.0}
    assert spread_text(spread(found)) == "2.000 (1.000 to 4.000)"


def test_a_side_is_timed_on_the_clock() -> None:
    assert time_call(lambda: sum(range(10**6))) > 0


@pytest.mark.parametrize(("others", "kept"), [(0.01, 1), (0.3, 0)])
def test_a_disturbed_result_is_printed_and_becomes_no_row(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    others: float,
    kept: int,
) -> None:
    state = {"others_cpu_share": others, "disturbed": others > DISTURBED_CORES}
    monkeypatch.setattr(MachineWatch, "state", lambda watch, roles: state)
    rows = tmp_path / "rows.jsonl"
    options = argparse.Namespace(json=True, rows=ResultFile(rows))
    assert conclude("speed", options, lambda: {"ratio": 1.0}) == 0
    said = capsys.readouterr()
    result = json.loads(said.out)
    assert (result["name"], result["ratio"]) == ("speed", 1.0)
    assert result["others_cpu_share"] == others
    assert result["disturbed"] is not bool(kept)
    assert len(rows.read_text().splitlines() if rows.exists() else []) == kept
    assert ("no row" in said.err) is not bool(kept)
