"""What rows keep of a run's folder."""

from typing import Any

import pytest

from benchmarks.kit.arm_run import cpu_at_evaluations, evaluation_fields
from benchmarks.kit.machine_state import MachineSample, MachineWatch


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


@pytest.mark.parametrize(
    ("accuracies", "final"), [([0.02, 0.1], 0.1), ([0.0, 0.2, 0.4, 0.6], 0.5), ([0.3], 0.3)]
)
def test_the_start_is_no_part_of_the_final_accuracy(accuracies: list[float], final: float) -> None:
    lengths = {"response_length": 1.0, "max_response_length": 1}
    evaluations = [
        {
            **evaluation(1.0, 1.0, 1.0, update),
            **lengths,
            "update": update,
            "label": "",
            "accuracy": a,
        }
        for update, a in enumerate(accuracies)
    ]
    assert evaluation_fields(evaluations)["final"] == pytest.approx(final)
