"""Tables and plots of the reward studies: golden lines, and nothing left out."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.kit.rows import Rows
from benchmarks.studies import reward_evidence


def arm(truth: float, alert: int | None) -> dict[str, Any]:
    """Figures of one arm that begins at 0.5 throughout."""
    names = ("truth", "proxy", "gap", "fillers", "length", "entropy_estimate", "edit_distance")
    return {
        "before": dict.fromkeys(names, 0.5),
        "after": dict.fromkeys(names, 1.0) | {"truth": truth},
        "updates": [dict.fromkeys(names, 0.5), dict.fromkeys(names, 1.0) | {"truth": truth}],
        "alert": alert,
    }


def hacking_row(seed: int, *, passed: bool, **more: Any) -> dict[str, Any]:
    arms = {"verifier": arm(0.9, None), "proxy": arm(0.6 + 0.1 * seed, 10 + seed)}
    return {"key": f"{more}{seed}", "seed": seed, "arms": arms, "passed": passed, **more}


def test_hacking_has_a_line_for_each_task_and_arm() -> None:
    rows = [hacking_row(seed, passed=seed > 0, task="sums") for seed in range(3)]
    head, _, *lines = reward_evidence.hacking_table([hacking_row(0, passed=False), *rows]).split(
        "\n"
    )[:-1]
    assert head.startswith("| task | trained on | seeds | truth | proxy less truth |")
    same = "0.50, then 1.00"
    assert lines == [
        f"| copy | verifier | 1 | 0.50, then 0.90{f' | {same}' * 4} | - | 0 of 1 |",
        f"| copy | proxy | 1 | 0.50, then 0.60{f' | {same}' * 4} | 10 | 0 of 1 |",
        f"| sums | verifier | 3 | 0.50, then 0.90{f' | {same}' * 4} | -, -, - | 2 of 3 |",
        f"| sums | proxy | 3 | 0.50, then 0.70 (0.60 to 0.80){f' | {same}' * 4} | 10, 11, 12 "
        "| 2 of 3 |",
    ]


def pairwise_rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for seed in range(2):
        found = {"score": {"after": 0.5 + 0.1 * seed}, "anchor": {"after": 0.7}}
        rows += [
            {"part": "offset", "task": "sums", "arms": found, "passed": True},
            {"part": "anchors", "reward": {"best of 2": 0.4, "right": 0.3}, "passed": seed == 0},
        ]
    return [{"key": str(at), **row} for at, row in enumerate(rows)]


def test_pairwise_has_a_line_for_each_figure() -> None:
    _, _, *lines = reward_evidence.pairwise_table(pairwise_rows()).split("\n")[:-1]
    assert lines == [
        "| offset, sums, gate 0.08 | score: after | 0.550 (0.500 to 0.600) | 2 | 2 of 2 |",
        "| offset, sums, gate 0.08 | anchor: after | 0.700 | 2 | 2 of 2 |",
        "| anchors | against: best of 2 | 0.400 | 2 | 1 of 2 |",
        "| anchors | against: right | 0.300 | 2 | 1 of 2 |",
    ]


def test_what_has_rows_is_drawn_and_what_has_none_says_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {"hacking": [hacking_row(0, passed=True), hacking_row(1, passed=True, task="sums")]}
    made["pairwise"] = pairwise_rows()
    studies = {
        name: study._replace(rows=tmp_path / f"{name}.jsonl")
        for name, study in reward_evidence.STUDIES.items()
    }
    monkeypatch.setattr(reward_evidence, "STUDIES", studies)
    assert reward_evidence.draw(tmp_path) == []
    for name, rows in made.items():
        assert reward_evidence.part(name) == f"Not measured yet: `headrace bench {name}`.\n"
        kept = Rows(studies[name].rows)
        for row in rows:
            kept.add(row["key"], row)
        assert f"(images/evidence/{name}.svg)" in reward_evidence.part(name)
    for path in reward_evidence.draw(tmp_path):
        assert path.read_text(encoding="utf-8").startswith("<?xml")
