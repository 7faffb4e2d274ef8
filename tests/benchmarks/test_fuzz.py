"""The fuzzer in short: some thousand inputs for each target, and what it makes of a finding."""

import json
from pathlib import Path
from random import Random

import pytest

from benchmarks import fuzz
from headrace.errors import UserError

INPUTS = {"codec": 5_000, "filter": 3_000, "config": 2_000, "journal": 2_000, "intake": 3_000}


@pytest.mark.slow
@pytest.mark.parametrize("name", fuzz.TARGETS)
def test_nothing_is_found(name: str) -> None:
    """Inputs that the checked-in rows do not have."""
    row = fuzz.fuzz(name, 50_000_000, INPUTS[name])
    assert row["findings"] == []
    assert row["outcomes"].keys() <= {"taken", "refused", "ended"}
    assert min(row["outcomes"]["taken"], row["outcomes"]["refused"]) > INPUTS[name] / 50
    assert sum(row["outcomes"].values()) == row["inputs"] == INPUTS[name]


class Picky:
    """A target that does not like some numbers."""

    block = 1

    def attempt(self, random: Random) -> str:
        if random.random() < 0.1:
            raise KeyError("what a target may not raise")
        return "taken"

    def close(self) -> None:
        raise AssertionError("something is left behind")


def run(rows: Path, *arguments: str) -> int:
    return fuzz.main([*arguments, "--target", "picky", "--rows", str(rows), "--json"])


def test_findings_are_counted_by_kind_and_pieces_are_not_run_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(fuzz.TARGETS, "picky", Picky)
    monkeypatch.setattr(fuzz, "PIECE", 100)
    rows = tmp_path / "rows.jsonl"
    assert run(rows, "--inputs", "250") == 1
    told = json.loads(capsys.readouterr().out)
    assert told["inputs"] == told["targets"]["picky"]["inputs"] == 250
    kinds = {finding["what"] for finding in told["findings"]}
    assert kinds == {
        "KeyError in attempt of test_fuzz.py: 'what a target may not raise'",
        "AssertionError in close of test_fuzz.py: something is left behind",
    }
    before = rows.read_text()
    assert len(before.splitlines()) == 3
    assert run(rows, "--inputs", "250") == 1
    assert rows.read_text() == before
    assert json.loads(capsys.readouterr().out) == told
    run(rows, "--inputs", "350")
    assert len(rows.read_text().splitlines()) == 5


def test_an_input_is_known_by_its_number() -> None:
    first, again = (fuzz.fuzz("codec", 7, 50) for _ in range(2))
    assert first["outcomes"] == again["outcomes"]


def test_there_is_no_such_target() -> None:
    with pytest.raises(UserError, match="there are: codec"):
        fuzz.main(["--target", "none"])
