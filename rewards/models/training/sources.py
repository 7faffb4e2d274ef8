"""Sources of a recipe's examples.

In: the data section, the objective, the folder of runs. Out: examples to learn from and held-out
ones. Promise: every mistake in them is a UserError of one line before any model is loaded.
"""

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
from headrace.protocol.messages.control import EVALUATIONS
from headrace.run_files.run_folder import find_run
from rewards.models.training import data_files, synthetic_errors
from rewards.models.training.data_files import pairs_of
from rewards.models.training.examples import (
    Demonstration,
    Examples,
    LabelledAnswer,
    PreferencePair,
    question,
    split,
)

PER_GROUP = 4
"""Pairs of one prompt that an export of answers gives, as `data.pairs_per_group` is by default."""


def read_examples(config: RewardModelConfig) -> Examples[Any]:
    """All examples of a recipe, split; UserError where they cannot be had."""
    data, (found, ties) = config.data, _read(config)
    if not isinstance(data, FileDataConfig) or data.eval_path is None:
        return split(found, fraction=data.eval_fraction, ties=ties)
    apart = data.model_copy(update={"path": data.eval_path, "limit": None})
    others, _ = _read(config.model_copy(update={"data": apart}))
    learned = {question(one) for one in found}
    held_out = [one for one in others if question(one) not in learned]
    if not held_out:
        raise UserError("data.eval_path has no prompt that data.path has not: nothing is held out")
    return Examples(found, held_out, ties)


def _read(config: RewardModelConfig) -> tuple[list[Any], int]:
    """Return the examples of a recipe's data, and the number of ties that were left out."""
    match config.objective:
        case SftConfig():
            return _demonstrations(config), 0
        case LinesConfig(separator=separator):
            return _labelled(config, separator), 0
    found = _pairs(config)
    different = [pair for pair in found if pair.chosen != pair.rejected]
    if not different:
        data = config.data
        name = data.path if isinstance(data, FileDataConfig) else f"data.kind = {data.kind!r}"
        raise UserError(f"{name} has no two different answers to one prompt")
    return different, len(found) - len(different)


def _demonstrations(config: RewardModelConfig) -> list[Demonstration]:
    data = config.data
    match data:
        case FileDataConfig():
            rows = data_files.rows(data.path, data.limit)
            return [data_files.read_demonstration(w, record, f) for f, w, record in rows]
        case TaskDataConfig():
            return synthetic_errors.demonstrations(data, seed=config.seed)
        case _:
            raise UserError(
                f"objective.kind = 'sft' reads a file or a task, not data.kind = {data.kind!r}; "
                "`headrace export RUN sft` writes a run's right answers into a file"
            )


def _pairs(config: RewardModelConfig) -> list[PreferencePair]:
    data = config.data
    match data:
        case FileDataConfig():
            return _pairs_in(data.path, data.limit)
        case RunDataConfig():
            return _pairs_of_run(data, Path(config.root))
        case TaskDataConfig():
            return synthetic_errors.pairs(data, seed=config.seed)
        case _:
            raise UserError(f"data.kind = {data.kind!r} goes with objective.kind = 'ranker'")


def _labelled(config: RewardModelConfig, separator: str) -> list[LabelledAnswer]:
    data = config.data
    match data:
        case FileDataConfig():
            rows = data_files.rows(data.path, data.limit)
            found = [data_files.read_labelled(w, record, separator) for _, w, record in rows]
            labelled = [one for one in found if any(label is not None for label in one.labels)]
            if not labelled:
                raise UserError(f"{data.path} has no labels: all of them are null")
            return labelled
        case TaskDataConfig():
            if data.task != "shapes" and separator != synthetic_errors.SEPARATOR:
                raise UserError(
                    f"objective.separator = {separator!r}: the lines of {data.task} end in "
                    f"{synthetic_errors.SEPARATOR!r}"
                )
            return synthetic_errors.labelled(data, seed=config.seed)
        case _:
            raise UserError(
                "objective.kind = 'lines' needs labelled lines, which a run has not: use "
                "data.kind = 'file' or 'task'"
            )


def _pairs_in(path: str, limit: int | None) -> list[PreferencePair]:
    """Pairs in a file of preferences, or made of the answers in a run's export."""
    rows = data_files.rows(path, limit)
    if {"chosen", "rejected"} & rows[0][2].keys():
        return [data_files.read_pair(where, record, folder) for folder, where, record in rows]
    answers = [
        data_files.read_answer(where, record)
        for _, where, record in rows
        if record.get("purpose") not in EVALUATIONS
    ]
    pairs = pairs_of(answers, per_group=PER_GROUP)
    if not pairs:
        raise UserError(
            f"{path} makes no pairs: no prompt in it has a right and a wrong answer (`correct`)"
        )
    return pairs


def _pairs_of_run(data: RunDataConfig, root: Path) -> list[PreferencePair]:
    from storage.queries import group_answers

    run_dir = find_run(root, data.run)
    pairs = pairs_of(group_answers(run_dir), per_group=data.pairs_per_group)
    if not pairs:
        raise UserError(
            f"{run_dir.name} makes no pairs: none of its groups has right and wrong answers; "
            "schedule.num_generations must be over 1, and the rewards must say what is correct"
        )
    return pairs
