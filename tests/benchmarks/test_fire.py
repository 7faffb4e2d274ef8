"""FIRE's test B: a hot first token lets a model answer as it can, but hardly ever does."""

import json
from pathlib import Path
from random import Random

import pytest

from benchmarks import digit_task, fire, fire_task
from headrace.install import ROOT


def test_a_strategy_answers_as_it_says() -> None:
    assert [fire_task.answer("x7", letter) for letter in "ABCD"] == ["A2", "B7", "C0", "D0"]
    right = [fire_task.is_right("x7", fire_task.answer("x7", letter)) for letter in "ABCD"]
    assert right == [False, True, False, False]
    assert not any(
        fire_task.is_right(prompt, fire_task.answer(prompt, letter))
        for prompt in digit_task.prompts(200, Random(0))
        for letter in "ACD"
    )


def hit(picked: float, success: float, samples: int) -> float:
    """pass@n where a strategy picked with this probability succeeds with that one."""
    return 1 - (1 - picked * success) ** samples


def test_golden_theory_of_two_strategies() -> None:
    """A, 97 % of the time, is useless; B succeeds in 60 of 100 cases."""
    odds = (0.03 / 0.97) ** (1 / 30)
    hot = odds / (1 + odds)
    assert hot == pytest.approx(0.471065, abs=5e-7)
    found = [hit(0.03, 0.6, 10), hit(0.5, 0.6, 10), hit(hot, 0.6, 10), hit(0.03, 0.6, 40)]
    assert found == pytest.approx([0.1661, 0.9718, 0.9639, 0.5164], abs=5e-5)


def test_figures_of_a_handful_of_answers() -> None:
    def group(*texts: str) -> list[fire.Answer]:
        return [fire.Answer("x7", text, [], [], False) for text in texts]

    found = fire.figures([group(*["A2"] * 7, "B7"), group(*["A2"] * 4, *["C0"] * 4)])
    assert found["pass@1"] == pytest.approx(1 / 16)
    assert found["pass@8"] == pytest.approx(0.5)
    assert found["distinct"] == 2
    assert found["first A"] == pytest.approx(11 / 16)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_hot_first_token_raises_pass_at_8_and_what_is_tried(tmp_path: Path) -> None:
    """Thresholds were calibrated apart from this code: + 0.50, and twice as many answers."""
    rows = tmp_path / "rows.jsonl"
    assert fire.main(["--no-training", "--rows", str(rows)]) == 0
    found = [json.loads(line)["sampled"] for line in rows.read_text().splitlines()]
    assert len(found) == 3
    for row in found:
        assert row["regular"]["first A"] > 0.98
        assert row["fire"]["pass@8"] - row["regular"]["pass@8"] >= 0.5
        assert row["fire"]["distinct"] / row["regular"]["distinct"] >= 2
    assert rows.read_text().count("\n") == 3
    assert fire.main(["--no-training", "--rows", str(rows)]) == 0
    assert rows.read_text().count("\n") == 3


@pytest.mark.slow
def test_every_correction_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few updates of each arm: nothing is NaN, and the ratio's statistics are there."""
    monkeypatch.setattr(fire, "UPDATES", 4)
    monkeypatch.setattr(fire, "PROMPTS", 40)
    monkeypatch.setattr(fire_task, "EVEN_STEPS", 20)
    monkeypatch.setattr(fire_task, "ONE_SIDED_STEPS", 10)
    arms = fire.run(0, training=True)["trained"]
    assert set(arms) == set(fire.TRAINED)
    assert all(arm["finite"] for arm in arms.values())
    assert arms["regular"]["mean_ratio"] == 0
    assert all(arms[name]["mean_ratio"] > 0 for name in arms if name != "regular")
    assert arms["fire, mask"]["over_cap"] == 0


def test_it_is_a_benchmark_of_the_command() -> None:
    from headrace.commands.benchmark import available

    assert "fire" in available(ROOT / "benchmarks")
    assert "fire-task" not in available(ROOT / "benchmarks")
