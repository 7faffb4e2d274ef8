"""Finished answers of a file as a reward worker is asked to score them.

In: a run's configuration and `tasks.datasets.answers.Answered` rows. Out: ScoreItems. A chat
becomes text by the policy's chat template, and token ids that the file does not have are those of
the text, by the policy's tokenizer, which is loaded only where one of the two is needed.
"""

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from headrace.config.sections.run import RunConfig
from headrace.errors import UserError
from headrace.protocol.messages.control import ScoreItem
from headrace.protocol.token_spans import Int32
from headrace_cli.commands.checks.anchor_check import policy_tokenizer


def items_of(config: RunConfig, rows: Sequence[Any]) -> list[ScoreItem]:
    """One item a row; its trajectory id is its place."""

    @cache
    def tokenizer() -> Any:
        return policy_tokenizer(config)

    def text_of(prompt: Any) -> str:
        if isinstance(prompt, str):
            return prompt
        shown = tokenizer().apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
        return str(shown)

    def ids_of(given: list[int] | None, text: str) -> Int32 | None:
        if not config.reward.token_ids:
            return None
        ids = tokenizer()(text, add_special_tokens=False)["input_ids"] if given is None else given
        return np.array(ids, np.int32)

    def item_of(place: int, row: Any) -> ScoreItem:
        prompt = text_of(row.prompt)
        source = config.reward.route_of(config.task.kind, lambda: row.info)
        if source is None:
            raise UserError(f"reward.route leaves answer {place} without a source")
        return ScoreItem(
            trajectory_id=place,
            prompt=prompt,
            text=row.completion,
            answer=row.answer,
            finished=row.finished,
            num_tokens=len(row.completion_ids or ()),
            info=json.dumps(row.info, default=str),
            messages="" if isinstance(row.prompt, str) else json.dumps(row.prompt),
            prompt_ids=ids_of(row.prompt_ids, prompt),
            completion_ids=ids_of(row.completion_ids, row.completion),
            source=source,
        )

    return [item_of(place, row) for place, row in enumerate(rows)]
