"""The result of `headrace eval`, as the store has it."""

from pathlib import Path

import pytest

from headrace.errors import UserError
from headrace.protocol.records.record_types import EvaluationDone, RunPhase
from headrace_cli.commands.run import evaluate
from storage.run_store import RunStore
from tests.storage.samples import run_config


def evaluated(run_dir: Path, prompts: int) -> Path:
    """A run with an evaluation of that many prompts."""
    store = RunStore.create(run_dir, run_dir.name, run_config())
    done = EvaluationDone(
        at=2.0, label="before", update=0, version=0, num_prompts=prompts, accuracy=0.0,
        response_length=0.0, max_response_length=0, truncated=0.0, failed=0, seconds=1.25,
        train_time_s=0.0,
    )  # fmt: skip
    store.append([RunPhase(at=1.0, phase="evaluating", detail="before"), done])
    store.close()
    return run_dir


def test_an_evaluation_without_prompts_has_no_accuracy(tmp_path: Path) -> None:
    """All of them are too long, say: a script that reads the accuracy would take it for 0."""
    found = evaluate._result(evaluated(tmp_path / "some", 4))
    assert (found["run_id"], found["accuracy"], found["seconds"]) == ("some", 0.0, 1.2)
    with pytest.raises(UserError, match=r"longer than task\.max_prompt_length, or refused"):
        evaluate._result(evaluated(tmp_path / "none", 0))
