"""Pairwise-RL in miniature: what is paid, and that each part runs."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.kit.rows import Rows
from benchmarks.studies import pairwise, reinforce, small_tasks
from headrace.host.install import ROOT


def test_what_beats_an_anchor_knows_no_offset() -> None:
    prompts = [letter + digit for letter in "uvw" for digit in "123"]
    scores = {pairwise.scalar(prompt, 1.0, 0) for prompt in prompts}
    assert len(scores) == len(prompts)
    assert max(scores) - min(scores) > 1
    paid = [pairwise.against_anchor(prompt, t, 0) for prompt in prompts for t in (0.0, 1.0)]
    half, sure = 0.5, pairwise.beats(1.0, 0.0)
    assert {round(x, 6) for x in paid} <= {half, round(sure, 6), round(1 - sure, 6)}
    assert sure == pytest.approx(0.952574, abs=1e-6)


def test_pairs_are_a_copy_and_another_digit(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(pairwise, "PAIRS", 50)
    pairwise.write_pairs(tmp_path / "pairs.jsonl", 0)
    lines = (tmp_path / "pairs.jsonl").read_text().splitlines()
    assert len(lines) == 50
    assert len(set(lines)) > 40


@pytest.mark.parametrize("part", ["position", "offset", "anchors"])
def test_a_little_of_each_part(part: str, tmp_path: Path, monkeypatch: Any) -> None:
    for module, values in {
        pairwise: {"STEPS": 2, "PAIRS": 60, "HELD_OUT": 8},
        reinforce: {"UPDATES": 2, "HELD_OUT": 8, "PROMPTS_AN_UPDATE": 4},
        small_tasks: {"STEPS": 4},
    }.items():
        for name, value in values.items():
            monkeypatch.setattr(module, name, value)
    path = tmp_path / "rows.jsonl"
    assert pairwise.main(["--part", part, "--seeds", "1", "--rows", str(path)]) in (0, 1)
    (row,) = Rows(path).rows.values()
    first = pairwise.FIRST_OFFSET_SEED if part == "offset" else 0
    assert (row["part"], row["seed"]) == (part, first)
    if part == "anchors":
        rewards = list(row["reward"].values())
        assert rewards == sorted(rewards, reverse=True)
    else:
        assert len(row["arms"]) == 2
    if part == "offset":
        assert (row["task"], row["steps"], row["gate"]) == ("sums", 4, pairwise.TRUTH_HIGHER)
    assert isinstance(row["passed"], bool)


def test_it_is_a_benchmark_of_the_command() -> None:
    from headrace_cli.commands.system.benchmark import available

    assert "pairwise" in available(ROOT / "benchmarks")
