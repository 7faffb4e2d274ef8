"""Examples that tasks make: what is called right is right, and a slip is where the labels say."""

from typing import Literal

import pytest

from headrace.config.sections.reward_model import TaskDataConfig
from headrace.errors import UserError
from rewards.models.training import synthetic_errors
from tasks.datasets.source import PROCEDURAL_TASKS
from tasks.procedural.base import is_correct
from tests.tasks.procedural.test_tracking import wrong_steps

Task = Literal["chain_sums", "tracking"]
TASKS: tuple[Task, ...] = ("chain_sums", "tracking")


def made_of(task: Task) -> TaskDataConfig:
    return TaskDataConfig(kind="task", task=task, examples=60, min_terms=2, max_terms=5)


@pytest.mark.parametrize("task", TASKS)
def test_one_answer_of_a_pair_is_right(task: Task) -> None:
    found = synthetic_errors.pairs(made_of(task), seed=0)
    assert len(found) == 60
    for pair in found:
        assert isinstance(pair.prompt, str)
        answer = PROCEDURAL_TASKS[task].solve(pair.prompt)
        assert is_correct(pair.chosen, answer)
        assert not is_correct(pair.rejected, answer)
    assert found == synthetic_errors.pairs(made_of(task), seed=0)
    assert found != synthetic_errors.pairs(made_of(task), seed=1)


@pytest.mark.parametrize("task", TASKS)
def test_labels_turn_at_the_slip(task: Task) -> None:
    for index, example in enumerate(synthetic_errors.labelled(made_of(task), seed=0)):
        assert isinstance(example.prompt, str)
        answer = PROCEDURAL_TASKS[task].solve(example.prompt)
        right = is_correct("".join(example.lines), answer)
        good = [label == 1.0 for label in example.labels]
        assert right == all(good) == (index % 2 == 0)
        assert good == sorted(good, reverse=True)


def test_labels_turn_where_the_task_itself_sees_the_wrong_step() -> None:
    for example in synthetic_errors.labelled(made_of("tracking"), seed=3):
        assert isinstance(example.prompt, str)
        wrong = wrong_steps(example.prompt, "".join(example.lines))
        first = wrong.index(True) if any(wrong) else len(example.lines)
        assert example.labels == tuple(1.0 if i < first else -1.0 for i in range(len(wrong) + 1))


def test_sizes_that_the_task_does_not_have() -> None:
    config = TaskDataConfig(kind="task", min_terms=6, max_terms=5)
    with pytest.raises(UserError, match=r"data\.min_terms = 6 and data\.max_terms = 5"):
        synthetic_errors.pairs(config, seed=0)
