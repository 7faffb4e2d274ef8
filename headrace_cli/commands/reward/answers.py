"""Finished answers of a file as a reward worker is asked to score them.

In: a run's configuration and `tasks.datasets.answers.FinishedAnswer` rows. Out: ScoreItems, whose
images are files in a folder as long as the caller keeps it, under their SHA-256 as in a run. A chat
becomes text by the policy's chat template, and token ids that the file does not have are those of
the text, by the policy's tokenizer, which is loaded only where one of the two is needed.
"""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from headrace.config.sections.run import RunConfig
from headrace.data.media import MediaError, MediaStore, image_bytes
from headrace.data.tokenizer import chat_text
from headrace.errors import UserError, first_line
from headrace.protocol.messages.control import ScoreItem
from headrace.protocol.token_spans import Int32
from headrace_cli.commands.checks.reward_check import policy_tokenizer


def items_of(config: RunConfig, rows: Sequence[Any], media: Path | None = None) -> list[ScoreItem]:
    """Return an item per row, with its place as id. `media`: folder of images; None: no images."""
    from tasks.rows import images_in, with_images

    task = config.task
    urls = task.kind == "dataset" and task.image_urls

    def stored(place: int, row: Any) -> Any:
        """The prompt with its images named by their digests."""
        if not images_in(row.prompt):
            return row.prompt
        if media is None:
            raise UserError(f"answer {place}: its prompt has images, and this reads text alone")
        try:
            files = [image_bytes(x, Path(row.folder), urls=urls) for x in images_in(row.prompt)]
        except MediaError as error:
            raise UserError(f"answer {place}: {error}") from error
        return with_images(row.prompt, [MediaStore(media).put(data) for data in files])

    @cache
    def tokenizer() -> Any:
        return policy_tokenizer(config)

    def text_of(place: int, prompt: Any) -> str:
        if isinstance(prompt, str):
            return prompt
        try:
            return chat_text(tokenizer(), prompt, begins_answer=True)
        except UserError as error:
            raise UserError(f"answer {place}: its prompt is a chat: {first_line(error)}") from error

    def ids_of(given: list[int] | None, text: str) -> Int32 | None:
        if not config.reward.token_ids:
            return None
        ids = tokenizer()(text, add_special_tokens=False)["input_ids"] if given is None else given
        return np.array(ids, np.int32)

    def item_of(place: int, row: Any) -> ScoreItem:
        asked = stored(place, row)
        prompt = text_of(place, asked)
        source = config.source_of(lambda: row.info)
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
            messages="" if isinstance(asked, str) else json.dumps(asked),
            media="" if media is None else str(media),
            prompt_ids=ids_of(row.prompt_ids, prompt),
            completion_ids=ids_of(row.completion_ids, row.completion),
            source=source,
        )

    return [item_of(place, row) for place, row in enumerate(rows)]
