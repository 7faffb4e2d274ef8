"""The result of `headrace eval`, as the store has it."""

from pathlib import Path

import pytest

from headrace.errors import UserError
from headrace.protocol.records.record_types import EvaluationDone, Record, RunPhase
from headrace_cli.commands.run import evaluate
from storage.run_store import RunStore
from tests.storage.samples import run_config
from tests.storage.test_training_data import answers


def evaluated(run_dir: Path, prompts: int, *groups: list[Record], samples: int = 1) -> Path:
    """A run with an evaluation of that many prompts, and their answers."""
    config = run_config(evaluation={"samples": samples})
    store = RunStore.create(run_dir, run_dir.name, config)
    done = EvaluationDone(
        at=2.0, label="before", update=0, version=0, num_prompts=prompts, accuracy=0.0,
        response_length=0.0, max_response_length=0, truncated=0.0, failed=0, seconds=1.25,
        train_time_s=0.0,
    )  # fmt: skip
    begun = RunPhase(at=1.0, phase="evaluating", detail="before")
    store.append([begun, *(record for records in groups for record in records), done])
    store.close()
    return run_dir


def test_an_evaluation_without_prompts_has_no_accuracy(tmp_path: Path) -> None:
    """All of them are too long, say: a script that reads the accuracy would take it for 0."""
    found = evaluate._result(evaluated(tmp_path / "some", 4))
    assert (found["run_id"], found["accuracy"], found["seconds"]) == ("some", 0.0, 1.2)
    with pytest.raises(UserError, match=r"longer than task\.max_prompt_length, or refused"):
        evaluate._result(evaluated(tmp_path / "none", 0))


def test_several_answers_to_each_prompt_have_a_pass_at_k(tmp_path: Path) -> None:
    """The share of prompts with a right answer; what could not be scored is not right."""
    asked = (
        answers(15, (4, "finished", 1.0, True), (5, "finished", 0.0, False), purpose="eval"),
        answers(16, (4, "finished", 0.0, False), (5, "truncated", 0.0, False), purpose="eval"),
        answers(17, (4, "failed", None, None), (5, "failed", None, None), purpose="eval"),
        answers(18, (4, "finished", 1.0, True), (5, "failed", None, None), purpose="eval"),
    )
    found = evaluate._result(evaluated(tmp_path / "twice", 4, *asked, samples=2))
    assert found["pass@2"] == 0.5
    assert "pass@1" not in evaluate._result(evaluated(tmp_path / "once", 4))
