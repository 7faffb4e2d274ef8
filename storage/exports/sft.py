"""The export `sft`: right answers to learn from, each once.

A row is a finished training answer that is right, or, in the schema `turns`, one turn of the policy
in it behind all that was said before. Of equal answers to a prompt the first counts.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from sqlalchemy import and_

from storage.database.filters import Filter, to_sql
from storage.database.reader import RunReader
from storage.database.tables import Trajectory
from storage.database.trajectory_rows import COLUMNS
from storage.exports.chats import CHAT, Chat, PromptChats, response_chats
from storage.exports.columns import chosen_fields, field, scalar_field
from storage.exports.packed_rows import ExportPart, from_rows
from storage.exports.pages import Page, RowsOfTrajectories, pages
from storage.text.detokenize import TextDecoder, required_decoder

_SCALARS = ("run_id", "prompt_id", "group_id", "trajectory_id", "reward", "prompt", "answer")
_MESSAGES = field("messages", CHAT, "the prompt and the response as chat messages")
_NATIVE = [
    *(scalar_field(name, repeated=False) for name in _SCALARS),
    field("response", pa.string(), "the response without special tokens"),
    _MESSAGES,
]


class SftRows(RowsOfTrajectories):
    """Rows of the export `sft`.

    `layout`: native, trl (prompt and completion), verl (messages) or turns. In trl's they are chats
    where every training prompt of the run is one, or an environment answers, else texts."""

    def __init__(
        self,
        reader: RunReader,
        where: Filter | None,
        columns: Sequence[str] | None,
        layout: str = "native",
    ) -> None:
        self._decoder = required_decoder(reader.run_dir)
        self._chats = PromptChats(reader)
        self._layout = layout
        self._as_chat = layout == "turns" or (layout == "trl" and self._chats.complete)
        kind = CHAT if self._as_chat else pa.string()
        fields = {
            "native": _NATIVE,
            "trl": [field("prompt", kind, "the prompt"), field("completion", kind, "the response")],
            "verl": [_MESSAGES],
            "turns": [
                *(scalar_field(name, repeated=False) for name in _SCALARS if name != "prompt"),
                field("turn", pa.int64(), "turn of the policy, from 0"),
                field("prompt", CHAT, "the conversation before the turn"),
                field("completion", CHAT, "the turn"),
            ],
        }
        self.schema = chosen_fields([*fields[layout], *self._chats.fields], columns)
        accepted = (
            Trajectory.purpose == "train",
            Trajectory.status == "finished",
            Trajectory.correct.is_(True),
        )
        more = () if where is None else (to_sql(where, COLUMNS),)
        super().__init__(reader, and_(*accepted, *more))

    def parts(self) -> Iterator[ExportPart]:
        """Rows in batches of bounded size."""
        seen: set[bytes] = set()
        for page in pages(self._reader, self._wanted, _SCALARS, tokens=True, windows=False):
            yield ExportPart(page.size, from_rows(self.schema, list(self._rows(page, seen))))

    def _rows(self, page: Page, seen: set[bytes]) -> Iterator[Mapping[str, Any]]:
        for scalars, text, chat in answers_of(page, self._decoder):
            said = f"{scalars['prompt_id']}\0{text}"
            key = hashlib.blake2b(said.encode(), digest_size=16).digest()
            if key in seen:
                continue
            seen.add(key)
            prompt = self._chats.prompt(scalars["prompt_id"], scalars["prompt"])
            scalars = {**scalars, "images": self._chats.images(scalars["prompt_id"])}
            if self._layout == "turns":
                own = [i for i, message in enumerate(chat) if message["role"] == "assistant"]
                for turn, i in enumerate(own):
                    before = {"prompt": [*prompt, *chat[:i]], "completion": [chat[i]]}
                    yield {**scalars, **before, "turn": turn}
                continue
            yield {
                **scalars,
                "prompt": prompt if self._as_chat else scalars["prompt"],
                "completion": chat if self._as_chat else text,
                "response": text,
                "messages": [*prompt, *chat],
            }


def answers_of(page: Page, decoder: TextDecoder) -> Iterator[tuple[dict[str, Any], str, Chat]]:
    """Each trajectory's scalars, and its response as text and as a chat."""
    texts = decoder.texts(page.tokens.token_ids, page.borders)
    for row, (text, chat) in enumerate(zip(texts, response_chats(page, decoder), strict=True)):
        yield {name: values[row] for name, values in page.scalars.items()}, text, chat
