"""What rows keep of a run's folder."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from benchmarks.kit.machine_state import MachineSample, MachineWatch
from benchmarks.kit.run_facts import cpu_at_evaluations, long_prompts, lost_by_tenth
from tests.storage.samples import write_run


def evaluation(at: float, seconds: float, train_time_s: float, version: int) -> dict[str, Any]:
    return {"at": at, "seconds": seconds, "train_time_s": train_time_s, "version": version}


def test_evaluations_and_start_up_are_in_no_cpu_seconds() -> None:
    """Two cores busy all the time: 30 s of start-up, then training 10 s, evaluation 5 s, training
    20 s, evaluation 5 s."""
    watch = MachineWatch()
    watch.samples = [MachineSample(float(at), 0.0, 0.0, 2.0 * at) for at in range(0, 101, 10)]
    found = [evaluation(45, 5, 10.0, 4), evaluation(70, 5, 30.0, 8)]
    assert cpu_at_evaluations(watch, found, [4, 8]) == pytest.approx([20.0, 60.0])
    # Two evaluations of one version: the later one counts, as it does for accuracy.
    warm = [evaluation(38, 2, 6.0, 0), evaluation(45, 3, 10.0, 0), *found[1:]]
    assert cpu_at_evaluations(watch, warm, [0, 8]) == pytest.approx([20.0, 60.0])
    # Before training nothing is used.
    first = [evaluation(30, 5, 0.0, 0), evaluation(45, 5, 10.0, 4)]
    assert cpu_at_evaluations(watch, first, [0, 4]) == pytest.approx([0.0, 20.0])


def test_tokens_lost_by_tenth_of_length(tmp_path: Path) -> None:
    found = lost_by_tenth(write_run(tmp_path / "run"))
    assert found == [
        {"longest": 20, "tokens": 20, "stale": 0.15, "other": 0.1},
        {"longest": 24, "tokens": 24, "stale": 0.0, "other": round(16 / 24, 5)},
    ]


@pytest.mark.parametrize("by", ["tokens", "terms"])
def test_accuracy_on_the_longest_prompts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """Of 20 prompts 17 have one token or term; the tenth that is longest has 8 and 9. Where a task
    names terms, all its prompts may have as many tokens."""
    sizes = [1] * 17 + [2, 8, 9]
    info = ["{}" if by == "tokens" else json.dumps({"terms": size}) for size in sizes]
    answers = pd.DataFrame(
        {
            "version": [0] * 20 + [4] * 20,
            "info": info * 2,
            "prompt_tokens": sizes * 2 if by == "tokens" else [10] * 40,
            "correct": [True] * 19 + [False] + [False] * 18 + [True] * 2,
        }
    )
    monkeypatch.setattr("benchmarks.kit.run_facts.evaluation_answers", lambda folder: answers)
    found = long_prompts(tmp_path, [0, 4])
    assert found == {"by": by, "least": 8, "share": 0.1, "accuracy": [0.5, 1.0]}
