"""The answers that `headrace reward label` labels: of a file, or prompts that are still unanswered.

In: a recipe and the command's options. Out: `Answer`s in order. Promise: a prompt has the token ids
that a run gives it.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from headrace.config.sections.run import RunConfig
from headrace.config.sections.task import DatasetConfig
from headrace.protocol.messages.control import ScoreItem
from headrace_cli.commands.checks.anchor_check import policy_tokenizer
from headrace_cli.commands.reward.answers import items_of
from headrace_cli.commands.reward.sampling import draw_seed, training_prompts


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to be labelled. `item` is how a judge is asked about it; `ids` None: it is still to
    be sampled, with `seed`."""

    index: int
    prompt: Any
    info: dict[str, Any]
    item: ScoreItem
    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...] | None
    finished: bool = True
    seed: int = 0


def answers_of(config: RunConfig, arguments: argparse.Namespace) -> Iterator[Answer]:
    """The answers of the file, or prompts whose answers are still to be sampled."""
    from rewards.models.encoding import prompt_ids
    from tasks.datasets.answers import read_answers

    tokenizer, task = policy_tokenizer(config), config.task
    sampled = arguments.answers is None
    if sampled:
        rows = list(_unanswered(config, tokenizer, arguments.samples))
    else:
        dataset = task if isinstance(task, DatasetConfig) else None
        keys = (dataset.prompt_key, dataset.answer_key) if dataset else (None, None)
        rows = read_answers(arguments.answers, prompt_key=keys[0], answer_key=keys[1])
    for index, (row, item) in enumerate(zip(rows, items_of(config, rows), strict=True)):
        asked, ids = row.prompt_ids, row.completion_ids
        if asked is None:
            asked = prompt_ids(tokenizer, row.prompt, config.model.chat_template)
        if ids is None and not sampled:
            ids = tokenizer(row.completion, add_special_tokens=False)["input_ids"]
        written = None if ids is None else tuple(ids)
        seed = draw_seed(config.seed, asked, (), index)
        yield Answer(index, row.prompt, row.info, item, tuple(asked), written, row.finished, seed)


def _unanswered(config: RunConfig, tokenizer: Any, samples: int) -> Iterator[Any]:
    """The first training prompts of the task."""
    from tasks.datasets.answers import Answered

    for row, ids in islice(training_prompts(config, tokenizer), samples):
        yield Answered(row.prompt, "", row.answer, row.info, finished=False, prompt_ids=ids)
