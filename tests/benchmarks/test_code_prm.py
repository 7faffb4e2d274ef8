"""The study of process rewards: its figures, and a small labelling with the policy that ships."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import code_prm, line_labels
from benchmarks.line_labels import scan
from headrace.install import ROOT


@pytest.mark.parametrize(
    ("lines", "good", "probes"), [(8, 3, [1, 2, 3, 4]), (4, 0, [1]), (4, 3, [1, 2, 3]), (1, 0, [])]
)
async def test_a_scan_tries_prefixes_until_one_is_lost(
    lines: int, good: int, probes: list[int]
) -> None:
    asked = []

    async def recoverable(count: int) -> bool:
        asked.append(count)
        return count <= good

    assert await scan(lines, recoverable) == good
    assert asked == probes


def labelled_row(index: int, completion: str, boundary: int, *, completions: int) -> dict[str, Any]:
    counted = completion.count("\n")
    return {"index": index, "prompt": "3a+1b+1:", "completion": completion, "boundary": boundary,
            "passed": boundary == counted, "counted": counted, "calls": 1,
            "completions": completions}  # fmt: skip


def test_the_labeler_is_held_against_the_oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three wrong answers one has a boundary too early; a right one does not count."""
    wrong = "a+1=4\nb+1=6\n"
    texts = [("a+1=4\nb+1=5\n", 2), (wrong, 1), (wrong, 0), ("a+1=5\nb+1=6\n", 0)]

    def rows(samples: int, seed: int, *, find: Any = None) -> list[dict[str, Any]]:
        del samples, seed
        found = [labelled_row(i, *one, completions=8 if find else 4) for i, one in enumerate(texts)]
        return found[::-1] if find else found

    monkeypatch.setattr(line_labels, "labelled", rows)
    found = line_labels.labeler_figures(4, 0)
    assert found["wrong"] == 3
    assert found["exact"] == found["exact_from_the_front"] == pytest.approx(2 / 3)
    assert (found["completions"], found["completions_from_the_front"]) == (4, 8)
    assert found["answers_of_8_lines"] == 0
    assert line_labels.labeler_figures(4, 0, wrong=1)["exact"] == 1


def test_answers_are_told_by_their_lines() -> None:
    def row(terms: int, correct: bool | None, **parts: float) -> dict[str, Any]:
        return {"info": json.dumps({"terms": terms}), "correct": correct,
                "reward_parts": json.dumps(parts)}  # fmt: skip

    rows = [
        row(2, True, lines=2, neutral=0),
        row(2, False, lines=4, neutral=0.5),
        row(5, True, lines=5, neutral=0),
        row(6, False, lines=6, neutral=0),
        row(8, True, lines=8, neutral=0),
        row(7, None),
    ]
    assert code_prm.written(rows) == {"short": 0.5, "long": 0.3333, "lines": 5.0, "neutral": 0.1}
    assert code_prm.written([])["long"] == 0.0


def test_the_parts_of_the_study_are_rows_and_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def row(part: str, seed: int) -> dict[str, Any]:
        return {"part": part, "seed": seed, "exact": 0.9 + seed / 100}

    monkeypatch.setattr(code_prm, "part_row", row)
    rows = tmp_path / "rows.jsonl"
    assert code_prm.parts_table({}).startswith("Not measured yet")
    for part in ("labels", "model", "model"):
        assert code_prm.main(["--part", part, "--seeds", "2", "--rows", str(rows), "--json"]) == 0
    kept = {entry["key"]: entry for entry in map(json.loads, rows.read_text().splitlines())}
    assert len(kept) == rows.read_text().count("\n") == 4
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["part"] == "model"
    assert "| labels | exact | 0.900, 0.910 |" in code_prm.parts_table(kept)


def test_arms_differ_in_what_lines_earn_and_in_where_the_critic_starts() -> None:
    settings = {arm.name: set(arm.overrides) - set(code_prm.SETTINGS) for arm in code_prm.ARMS}
    assert settings == {
        "sparse": {*code_prm.NO_REWARD, *code_prm.NEW_HEAD},
        "dense": set(code_prm.NEW_HEAD),
        "dense, critic": {f"model.critic_path={code_prm.MODEL}"},
    }


def test_it_is_a_benchmark_of_the_command() -> None:
    from headrace.commands.benchmark import available

    names: Iterable[str] = available(ROOT / "benchmarks")
    assert "code-prm" in names
    assert "line-labels" not in names
