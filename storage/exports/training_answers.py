"""The exports `sft` and `preferences`: answers of training groups as other trainers take them.

A row of `sft` is a finished training answer that is right, or, in the schema `turns`, one turn of
the policy in it behind all that was said before. Of equal answers to a prompt the first counts.

A row of `preferences` is a group with its best and its worst answer. The best one is a finished
answer with the highest reward, the worst one, perhaps cut at the length limit, has the lowest.
Among equals the first one counts. Groups in which all answers earned the same teach nothing and are
left out.
"""

import hashlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import chain, groupby
from typing import Any, NamedTuple

import pyarrow as pa
from sqlalchemy import and_, select

from storage.database.filters import Filter, to_sql
from storage.database.reader import RunReader
from storage.database.tables import Trajectory
from storage.database.trajectory_rows import COLUMNS, joined
from storage.exports.chats import CHAT, Chat, PromptChats, response_chats
from storage.exports.columns import ColumnNames, chosen_fields, field, scalar_field
from storage.exports.packed_rows import ExportPart, from_rows
from storage.exports.pages import SQL_ROWS, Page, RowsOfTrajectories, pages, selection_of
from storage.text.detokenize import TextDecoder, required_decoder

_SCALARS = ("run_id", "prompt_id", "group_id", "trajectory_id", "reward", "prompt", "answer")
_MESSAGES = field("messages", CHAT, "the prompt and the response as chat messages")
_NATIVE = [
    *(scalar_field(name, repeated=False) for name in _SCALARS),
    field("response", pa.string(), "the response without special tokens except tags"),
    _MESSAGES,
]
_NATIVE_PAIR = [
    *(scalar_field(name, repeated=False) for name in ("run_id", "group_id", "prompt_id")),
    field("chosen_id", pa.int64(), "trajectory_id of the best answer"),
    field("rejected_id", pa.int64(), "trajectory_id of the worst answer"),
    scalar_field("prompt", repeated=False),
    field("prompt_messages", CHAT, "the prompt as rewards read it, if that is a chat"),
    field("chosen", pa.string(), "the best answer of the group"),
    field("rejected", pa.string(), "the worst answer of the group"),
    field("chosen_reward", pa.float64(), "reward of the best answer"),
    field("rejected_reward", pa.float64(), "reward of the worst answer"),
    field("margin", pa.float64(), "how much more the best answer earned"),
    scalar_field("answer", repeated=False),
]


class Answer(NamedTuple):
    """A trajectory's scalars, and its response as text and as a chat."""

    scalars: dict[str, Any]
    text: str
    chat: Chat
    own: list[int]
    """Places of the policy's turns in the chat."""


class SftRows(RowsOfTrajectories):
    """Rows of the export `sft`.

    `layout`: native, trl (prompt and completion), verl (messages) or turns. In trl's they are chats
    where the policy read every training prompt as one, or an environment answers, else texts. What
    is said before the policy's first turn is of the prompt."""

    def __init__(
        self, reader: RunReader, where: Filter | None, columns: ColumnNames, layout: str = "native"
    ) -> None:
        self._decoder = required_decoder(reader.run_dir)
        # verl hands what a column of this name holds to the template, which takes no text.
        self._chats = PromptChats(reader, columns, for_verl=layout == "verl")
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
        t = Trajectory
        accepted = (t.purpose == "train", t.status == "finished", t.correct.is_(True))
        more = () if where is None else (to_sql(where, COLUMNS),)
        super().__init__(reader, and_(*accepted, *more))

    def parts(self) -> Iterator[ExportPart]:
        """Rows in batches of bounded size."""
        seen: set[bytes] = set()
        for page in pages(self._reader, self._wanted, _SCALARS, most=self._chats.most):
            yield ExportPart(page.size, from_rows(self.schema, list(self._rows(page, seen))))

    def _rows(self, page: Page, seen: set[bytes]) -> Iterator[Mapping[str, Any]]:
        for scalars, text, chat, own in answers_of(page, self._decoder):
            said = f"{scalars['prompt_id']}\0{text}"
            key = hashlib.blake2b(said.encode(), digest_size=16).digest()
            if key in seen:
                continue
            seen.add(key)
            prompt = self._chats.prompt(scalars["prompt_id"], scalars["prompt"])
            scalars = {**scalars, **self._chats.beside(scalars)}
            if self._layout == "turns":
                for turn, i in enumerate(own):
                    before = {"prompt": [*prompt, *chat[:i]], "completion": [chat[i]]}
                    yield {**scalars, **before, "turn": turn}
                continue
            first = min(own, default=0)
            yield {
                **scalars,
                "prompt": [*prompt, *chat[:first]] if self._as_chat else scalars["prompt"],
                "completion": chat[first:] if self._as_chat else text,
                "response": text,
                "messages": [*prompt, *chat],
            }


def answers_of(page: Page, decoder: TextDecoder) -> Iterator[Answer]:
    """All answers of a page."""
    texts = decoder.texts(page.tokens.token_ids, page.borders)
    for row, (text, chat) in enumerate(zip(texts, response_chats(page, decoder), strict=True)):
        yield Answer({name: values[row] for name, values in page.scalars.items()}, text, *chat)


class PreferenceRows:
    """Rows of the export `preferences`.

    `layout`: native or trl (prompt, chosen, rejected). In trl's they are chats where the
    policy read every training prompt as one, or an environment answers, else texts."""

    def __init__(
        self, reader: RunReader, where: Filter | None, columns: ColumnNames, layout: str = "native"
    ) -> None:
        self._reader = reader
        self._where = where
        self._decoder = required_decoder(reader.run_dir)
        self._chats = PromptChats(reader, columns)
        self._as_chat = layout == "trl" and self._chats.complete
        kind = CHAT if self._as_chat else pa.string()
        trl = [
            field("prompt", kind, "the prompt"),
            field("chosen", kind, "the best answer of the group"),
            field("rejected", kind, "the worst answer of the group"),
        ]
        own = trl if layout == "trl" else _NATIVE_PAIR
        self.schema = chosen_fields([*own, *self._chats.fields], columns)

    @cached_property
    def _pairs(self) -> list[tuple[Any, Any]]:
        """(best, worst) of each group that has both."""
        t = Trajectory
        columns = (t.group_id, t.trajectory_id, t.last_offset, t.reward, t.status)
        query = joined(select(*columns), self._reader.key).where(
            t.purpose == "train", t.reward.is_not(None), t.last_offset.is_not(None),
            t.status.in_(["finished", "truncated"]),
        )  # fmt: skip
        if self._where is not None:
            query = query.where(to_sql(self._where, COLUMNS))
        ordered = query.order_by(t.group_id, t.trajectory_id)
        rows = (row for part in self._reader.stream(ordered, SQL_ROWS) for row in part)
        pairs = []
        for _, members in groupby(rows, key=lambda row: row.group_id):
            group = list(members)
            finished = [row for row in group if row.status == "finished"]
            if not finished:
                continue
            best = max(finished, key=lambda row: row.reward)
            worst = min(group, key=lambda row: row.reward)
            if best.reward > worst.reward:
                pairs.append((best, worst))
        return pairs

    def total(self) -> int:
        """Answers that are in a pair."""
        return 2 * len(self._pairs)

    def parts(self) -> Iterator[ExportPart]:
        """Rows in batches of bounded size."""
        rows_of_pairs = sorted(
            (row.trajectory_id, row.last_offset) for pair in self._pairs for row in pair
        )
        wanted = selection_of(chain.from_iterable(rows_of_pairs))
        halves: dict[int, Answer] = {}
        for page in pages(self._reader, wanted, _SCALARS, most=self._chats.most):
            rows = []
            for one in answers_of(page, self._decoder):
                other = halves.pop(group := one.scalars["group_id"], None)
                if other is None:
                    halves[group] = one
                else:
                    pair = sorted((one, other), key=lambda a: a.scalars["reward"], reverse=True)
                    rows.append(self._row(*pair))
            yield ExportPart(page.size, from_rows(self.schema, rows))

    def _row(self, best: Answer, worst: Answer) -> dict[str, Any]:
        scalars = best.scalars
        chat = self._chats.prompt(scalars["prompt_id"], scalars["prompt"])
        asked = self._chats.asked(scalars["prompt_id"], scalars["prompt"])
        first = min(best.own, default=0)
        if worst.chat[:first] != best.chat[:first]:
            first = 0
        return {
            **scalars,
            **self._chats.beside(scalars),
            "prompt": [*chat, *best.chat[:first]] if self._as_chat else scalars["prompt"],
            "prompt_messages": asked if isinstance(asked, list) else None,
            "chosen": best.chat[first:] if self._as_chat else best.text,
            "rejected": worst.chat[first:] if self._as_chat else worst.text,
            "chosen_id": scalars["trajectory_id"],
            "rejected_id": worst.scalars["trajectory_id"],
            "chosen_reward": scalars["reward"],
            "rejected_reward": worst.scalars["reward"],
            "margin": scalars["reward"] - worst.scalars["reward"],
        }
