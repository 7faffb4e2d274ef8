"""Values and advantages by place in the answer: each answer counts once in each tenth."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.studies.positions import (
    TrainedAnswer,
    advantages_of,
    by_tenth,
    early_positions,
    positions,
    trained_answers,
)


def test_a_token_of_a_short_answer_lies_in_more_than_one_tenth() -> None:
    assert by_tenth(np.array([1.0, 3.0])) == pytest.approx([1.0] * 5 + [3.0] * 5)
    assert by_tenth(np.array([0.0, 3.0, 6.0]))[3] == pytest.approx((0.0 + 2 * 3.0) / 3)
    assert by_tenth(np.arange(20, dtype=np.float64)) == pytest.approx(
        [2 * i + 0.5 for i in range(10)]
    )


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=60))
def test_the_mean_of_the_tenths_is_the_mean_of_the_tokens(figures: list[float]) -> None:
    assert by_tenth(np.array(figures)).mean() == pytest.approx(np.mean(figures), abs=1e-9)


def test_a_constant_value_leaves_the_decayed_reward() -> None:
    answer = TrainedAnswer(np.full(30, 0.25), 1.0)
    expected = 0.75 * 0.95 ** np.arange(29, -1, -1)
    assert advantages_of(answer, 0.95) == pytest.approx(expected)


def test_values_that_rise_make_early_tokens_look_good() -> None:
    """The mechanism of VC-PPO's section 3: nothing was won, the reward is what the last value
    said, and the first tokens have the largest advantage."""
    found = positions([TrainedAnswer(np.linspace(-1.5, 1.0, 60), 1.0)] * 2, 0.95)
    assert (found["answers"], found["reward"]) == (2, 1.0)
    assert found["value"] == sorted(found["value"])
    assert found["advantage"] == sorted(found["advantage"], reverse=True)
    assert found["advantage"][0] > 0.5


def write_export(rows: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    def export(folder: Path, kind: str, fmt: str | None, out: Path, where: str) -> None:
        assert (kind, where) == ("trajectories", "purpose = 'train'")
        out.write_text("".join(json.dumps(row) + "\n" for row in rows))

    monkeypatch.setattr("benchmarks.kit.arm_run.export", export)


def trajectory(length: int, update: int, reward: float = 1.0) -> dict[str, Any]:
    return {
        "length": length,
        "trained_at_update": [update] * length,
        "values": [0.5] * length,
        "returns": [reward] * length,
    }


def test_only_what_the_first_updates_trained_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two updates of warm-up, then the policy's; what the warm-up used is in no policy update."""
    rows = [trajectory(3, -1), trajectory(4, 3), trajectory(30, 6, reward=0.0), trajectory(5, 7)]
    write_export([*rows, {"length": 0, "trained_at_update": []}], monkeypatch)
    assert [len(answer.values) for answer in trained_answers(tmp_path, 6)] == [4, 30]
    config = {
        "advantages": {"gae_lambda_policy": 0.95},
        "value": {"warmup_updates": 2},
    }
    monkeypatch.setattr(
        "benchmarks.studies.positions.run_config", lambda folder: {"algorithm": config}
    )
    found = early_positions(tmp_path)["early_positions"]
    assert (found["updates"], found["all"]["answers"]) == (4, 2)
    assert found["all"]["reward"] == 0.5
