"""The answers that `headrace reward label` labels: of a file, or prompts that are still unanswered.

In: a recipe and the command's options. Out: `Answer`s in order. Promise: a prompt has the token ids
that a run gives it.
"""

import argparse
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.commands.answers import items_of, load_tokenizer
from headrace.config.run import RunConfig
from headrace.config.task import DatasetConfig
from headrace.errors import UserError
from headrace.protocol.messages import ScoreItem

MAX_SKIPS = 10_000


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
    from reward_models.encoding import prompt_ids
    from tasks.answers import read_answers

    tokenizer, task = load_tokenizer(config), config.task
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
    """The first training prompts of the task, those that are too long left out as in a run."""
    from reward_models.encoding import prompt_ids
    from tasks.answers import Answered
    from tasks.source import build_source

    source, longest = build_source(config.task, config.seed), config.task.max_prompt_length
    position = skipped = 0
    while samples:
        row = source.row_at(position)
        ids = prompt_ids(tokenizer, row.prompt, config.model.chat_template)
        position += 1
        if len(ids) <= longest:
            yield Answered(row.prompt, "", row.answer, row.info, finished=False, prompt_ids=ids)
            samples, skipped = samples - 1, 0
        elif (skipped := skipped + 1) == MAX_SKIPS:
            raise UserError(
                f"{MAX_SKIPS} prompts in a row are longer than task.max_prompt_length = {longest} "
                "tokens; raise it or filter the dataset"
            )


def draw_seed(seed: int, prompt: Sequence[int], prefix: Sequence[int], number: int) -> int:
    """Of one completion: a hash, so that it does not depend on what else is asked."""
    text = f"{seed}/{list(prompt)}/{list(prefix)}/{number}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "big") >> 1
