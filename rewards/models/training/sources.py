"""Sources of a recipe's examples.

In: the data section, the objective, the folder of runs. Out: examples to learn from and held-out
ones. Promise: every mistake in them is a UserError of one line before any model is loaded.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from headrace.config.sections.reward_model import (
    FileDataConfig,
    LinesConfig,
    RewardModelConfig,
    RunDataConfig,
    SftConfig,
    TaskDataConfig,
)
from headrace.errors import UserError
from headrace.run_files.run_folder import find_run
from rewards.models.training import data_files, synthetic_errors
from rewards.models.training.data_files import GroupAnswer, pairs_of
from rewards.models.training.examples import (
    Demonstration,
    E,
    Examples,
    LabelledAnswer,
    PreferencePair,
    split,
)
from tasks.datasets.records import Record
from tasks.rows import question_of

PER_GROUP = 4
"""Pairs of one prompt that an export of answers gives, as `data.pairs_per_group` is by default."""


def read_examples(config: RewardModelConfig) -> Examples[Any]:
    """All examples of a recipe, split; UserError where they cannot be had."""
    if isinstance(config.objective, SftConfig):
        return _demonstrations(config)
    if isinstance(config.objective, LinesConfig):
        return _labelled(config, config.objective.separator)
    return _pairs(config)


def _demonstrations(config: RewardModelConfig) -> Examples[Demonstration]:
    data = config.data
    match data:
        case FileDataConfig():
            found = _demonstrations_in(data.path, data.limit)
            if data.eval_path is not None:
                return _apart(found, _demonstrations_in(data.eval_path, None), 0)
        case TaskDataConfig():
            found = synthetic_errors.demonstrations(data, seed=config.seed)
        case _:
            raise UserError(
                f"objective.kind = 'sft' reads a file or a task, not data.kind = {data.kind!r}; "
                "`headrace export RUN sft` writes a run's right answers into a file"
            )
    return split(found, fraction=data.eval_fraction)


def _demonstrations_in(path: str, limit: int | None) -> list[Demonstration]:
    return [data_files.read_demonstration(w, record, f) for f, w, record in _rows_in(path, limit)]


def _pairs(config: RewardModelConfig) -> Examples[PreferencePair]:
    data, held_out = config.data, None
    match data:
        case FileDataConfig():
            found = _pairs_in(data.path, data.limit)
            held_out = None if data.eval_path is None else _pairs_in(data.eval_path, None)
        case RunDataConfig():
            found = _pairs_of_run(data, Path(config.root))
        case TaskDataConfig():
            found = synthetic_errors.pairs(data, seed=config.seed)
    different = [pair for pair in found if pair.chosen != pair.rejected]
    ties = len(found) - len(different)
    if not different:
        name = data.path if isinstance(data, FileDataConfig) else f"data.kind = {data.kind!r}"
        raise UserError(f"{name} has no two different answers to one prompt")
    if held_out is not None:
        return _apart(different, [p for p in held_out if p.chosen != p.rejected], ties)
    return split(different, fraction=data.eval_fraction, ties=ties)


def _labelled(config: RewardModelConfig, separator: str) -> Examples[LabelledAnswer]:
    data = config.data
    match data:
        case FileDataConfig():
            found = _labelled_in(data.path, data.limit, separator)
            if data.eval_path is not None:
                return _apart(found, _labelled_in(data.eval_path, None, separator), 0)
        case RunDataConfig():
            raise UserError(
                "objective.kind = 'lines' needs labelled lines, which a run has not: use "
                "data.kind = 'file' or 'task'"
            )
        case TaskDataConfig():
            if data.task != "shapes" and separator != synthetic_errors.SEPARATOR:
                raise UserError(
                    f"objective.separator = {separator!r}: the lines of {data.task} end in "
                    f"{synthetic_errors.SEPARATOR!r}"
                )
            found = synthetic_errors.labelled(data, seed=config.seed)
    return split(found, fraction=data.eval_fraction)


def _pairs_in(path: str, limit: int | None) -> list[PreferencePair]:
    """Pairs in a file of preferences, or made of the answers in a run's export."""
    rows = _rows_in(path, limit)
    if {"chosen", "rejected"} & rows[0][2].keys():
        return [data_files.read_pair(where, record, folder) for folder, where, record in rows]
    answers = [
        data_files.read_answer(where, record)
        for _, where, record in rows
        if record.get("purpose") != "eval"
    ]
    pairs = pairs_of(answers, per_group=PER_GROUP)
    if not pairs:
        raise UserError(
            f"{path} makes no pairs: no prompt in it has a right and a wrong answer (`correct`)"
        )
    return pairs


def _labelled_in(path: str, limit: int | None, separator: str) -> list[LabelledAnswer]:
    rows = _rows_in(path, limit)
    found = [data_files.read_labelled(where, record, separator) for _, where, record in rows]
    labelled = [one for one in found if any(label is not None for label in one.labels)]
    if not labelled:
        raise UserError(f"{path} has no labels: all of them are null")
    return labelled


def _pairs_of_run(data: RunDataConfig, root: Path) -> list[PreferencePair]:
    from storage.queries import group_answers

    run_dir = find_run(root, data.run)
    answers = (
        GroupAnswer(str(a.group_id), a.prompt, a.text, a.correct) for a in group_answers(run_dir)
    )
    pairs = pairs_of(answers, per_group=data.pairs_per_group)
    if not pairs:
        raise UserError(
            f"{run_dir.name} makes no pairs: none of its groups has right and wrong answers; "
            "schedule.num_generations must be over 1, and the rewards must say what is correct"
        )
    return pairs


def _apart(training: list[E], held_out: Iterable[E], ties: int) -> Examples[E]:
    """Return both sides, the second without the first's prompts; UserError if it is empty."""
    learned = {question_of(one.prompt) for one in training}
    kept = [one for one in held_out if question_of(one.prompt) not in learned]
    if not kept:
        raise UserError("data.eval_path has no prompt that data.path has not: nothing is held out")
    return Examples(training, kept, ties)


def _rows_in(path: str, limit: int | None) -> list[tuple[str, str, Record]]:
    """Rows as `data_files.rows` has them; UserError without any."""
    if not (rows := list(data_files.rows(path, limit))):
        raise UserError(f"{path} has no rows: name a file with at least one")
    return rows
