import json
from pathlib import Path

import pytest

from benchmarks.robustness.math_verifier import VerifierCase, figures, main, read_cases
from headrace.errors import UserError


def test_figures() -> None:
    cases = [
        VerifierCase("1", "1", True),
        VerifierCase("1", "2", False),
        VerifierCase("1", "3", False),
        VerifierCase("1", "", True),
    ]
    assert figures(cases, [True, True, False, False]) == {
        "accuracy": 0.5,
        "right": 2,
        "false_accepts": 1,
        "false_rejects": 1,
    }


def test_a_file_of_cases(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cases.jsonl"
    rows = [
        {"gold": "-2,1", "prediction": "\\boxed{-2.1}", "expected": False},
        {"gold": "-2,1", "prediction": "\\boxed{1,-2}", "expected": True},
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    scorer = tmp_path / "scorer.py"
    scorer.write_text(
        "def score(solution_str, ground_truth):\n"
        "    return {'score': -1.0, 'acc': ground_truth in solution_str}\n"
    )
    kept = tmp_path / "rows.jsonl"
    asked = ["--scorer", f"{scorer}:score", "--rows", str(kept), "--json"]
    assert main([str(path), *asked]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [json.loads(line) for line in kept.read_text().splitlines()] == [result]
    assert result["files"] == ["cases.jsonl"]
    assert result[f"{tmp_path.name}.scorer.score"]["right"] == 1
    assert result["cases"] == 2
    assert result["ours"]["accuracy"] == 1.0
    assert result["false_accepts_math_verify_rejects"] == 0


@pytest.mark.parametrize("text", ["", "{}", "[1]", "no"])
def test_a_file_without_cases(tmp_path: Path, text: str) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_text(text)
    with pytest.raises(UserError, match=r"cases\.jsonl: ") as raised:
        read_cases(path)
    assert "\n" not in str(raised.value)
