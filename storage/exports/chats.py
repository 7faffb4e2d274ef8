"""Prompts and answers as texts or as chats.

In: a run's journal. Out: the chat messages of prompts that the policy read as chats, and the forms
that trainers take. Promise: a text is what the policy saw, token for token; a chat is what the
dataset had, for a trainer that applies the same template to it.
"""

import json
from collections.abc import Mapping
from sys import intern
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import select

from headrace.data.media import MediaStore
from headrace.protocol.records.record_types import ChunkArrived, GroupIssued
from headrace.protocol.token_spans import MediaRun
from headrace.run_files.run_folder import MEDIA
from storage.database.reader import RunReader, read_config
from storage.database.tables import Group
from storage.exports.columns import WORD, ColumnNames, field
from storage.exports.pages import Page
from storage.journal.segments import read_batches
from storage.journal.store import decode
from storage.text.detokenize import TextDecoder
from storage.text.token_table import ROLES, SOURCES

Chat = list[dict[str, str]]
_SPEAKERS = ("policy", "tool", "environment")
"""Sources of messages; the others write what is between them."""
IMAGES = pa.list_(pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
"""As `datasets.Image` reads them."""
IMAGE_ROWS = 64
CHAT = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))


class _PromptRecord(msgspec.Struct):
    """The fields that are read of a prompt's record; without any, a plain text's."""

    prompt_id: str = ""
    prompt_ids: bytes = b"\0"
    messages: str = ""
    media: list[MediaRun] = []


class PromptChats:
    """The chats among a run's prompts, their images and tools.

    `complete`: the policy read every training prompt as a chat, or an environment makes turns of
    what follows it. `fields`: columns of what there is of images and tools, if `columns` has
    them. With `for_verl` there are none of tools, and `<image>` stands in chats for each of the
    images. `most`: answers that are read at a time, as each has its images in memory."""

    def __init__(self, reader: RunReader, columns: ColumnNames, *, for_verl: bool = False) -> None:
        decoder = msgspec.msgpack.Decoder(_PromptRecord)
        self._asked: dict[str, _PromptRecord] = {}
        self._offered: dict[int, str] = {}
        """Tools by trajectory, where they are its agent's."""
        self._store = MediaStore(reader.run_dir / MEDIA)
        environment = read_config(reader.run_dir).get("environment") or {}
        read = ("images", "tools") if columns is None else columns
        for batch in read_batches(reader.journal):
            issues = batch.filter(pc.equal(batch.column("kind"), GroupIssued.__name__))
            for body in issues.column("body").to_pylist():
                issue = decoder.decode(body)
                issue.prompt_ids = issue.prompt_ids[:1]  # An agent's prompt has none.
                issue.media = issue.media if "images" in read else []
                if issue.messages or not issue.prompt_ids:
                    self._asked.setdefault(issue.prompt_id, issue)
            if environment and "tools" in read and not for_verl:
                for _, chunk in decode(batch.filter(pc.equal(batch.column("chunk_index"), 0))):
                    assert isinstance(chunk, ChunkArrived)
                    if chunk.streams and (step := chunk.streams.step) and step.tools:
                        self._offered[chunk.trajectory_id] = intern(json.dumps(step.tools))
        images = any(issue.media for issue in self._asked.values())
        shown = [field("images", IMAGES, "the prompt's images: bytes of files, and their paths")]
        tools = [field("tools", WORD, "schemas of the environment's tools, as JSON")]
        self._tools = json.dumps(environment.get("tools", []))
        offers = not for_verl and (self._offered or environment.get("tools"))
        self.fields = (shown if images else []) + (tools if offers else [])
        self.most = IMAGE_ROWS if images else None
        self._image = "<image>" if images and for_verl else ""
        prompts = select(Group.prompt_id).where(Group.run == reader.key, Group.purpose == "train")
        known = {row.prompt_id for row in reader.rows(prompts.distinct())}
        chats = {key for key, issue in self._asked.items() if issue.messages}
        self.complete = bool(environment) or (bool(known) and known <= chats)

    def beside(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        """An answer's values of `fields`. MediaError: an image is missing, or is damaged."""
        store, found = self._store, self._asked.get(answer["prompt_id"], _PromptRecord()).media
        images = [{"bytes": store.read(m.digest), "path": str(store.path(m.digest))} for m in found]
        return {"images": images, "tools": self._offered.get(answer["trajectory_id"], self._tools)}

    def prompt(self, prompt_id: str, text: str) -> Chat:
        """A prompt as a chat: a plain one is what the user says, an agent's is not read."""
        asked = self._asked.get(prompt_id, _PromptRecord())
        said = json.loads(asked.messages) if asked.messages else text
        return _plain(said, self._image) if asked.prompt_ids else []

    def asked(self, prompt_id: str, text: str) -> Chat | str:
        """A prompt as rewards read it: a chat without images by its messages, else the text."""
        asked = self._asked.get(prompt_id, _PromptRecord())
        is_chat = asked.messages and not asked.media
        return _plain(json.loads(asked.messages), "") if is_chat else text


def response_chats(page: Page, decoder: TextDecoder) -> list[tuple[Chat, list[int]]]:
    """Each trajectory's response as a chat, and which of its messages are the policy's turns.
    Template text is left out."""
    sources, turns, roles = (
        codes.astype(np.int64)
        for codes in (page.tokens.sources, page.tokens.turns, page.tokens.roles)
    )
    runs = np.flatnonzero(np.diff((turns * len(SOURCES) + sources) * len(ROLES) + roles)) + 1
    borders = np.unique(np.concatenate([runs, page.borders]))
    texts = decoder.texts(page.tokens.token_ids, borders)
    chats: list[tuple[Chat, list[int]]] = [([], []) for _ in range(page.size)]
    whose = np.searchsorted(page.borders, borders[:-1], side="right") - 1
    for text, start, row in zip(texts, borders[:-1].tolist(), whose.tolist(), strict=True):
        source, role, (chat, own) = SOURCES[sources[start]], ROLES[roles[start]], chats[row]
        # A frame stands before each message, an empty one too: a program may print nothing.
        begins = source == "template" and role != "assistant"
        if begins or source in _SPEAKERS:
            if role != "assistant" and chat[-1:] == [{"role": role, "content": ""}]:
                chat.pop()
            own += [len(chat)] * (source == "policy")
            chat.append({"role": role, "content": "" if begins else text})
    return chats


def _plain(asked: list[dict[str, Any]] | str, image: str) -> Chat:
    """Messages with their content as one text, and `image` for images. A text is the user's."""
    messages = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
    return [{"role": str(m["role"]), "content": _text(m["content"], image)} for m in messages]


def _text(content: str | list[dict[str, Any]], image: str) -> str:
    return content if isinstance(content, str) else "".join(p.get("text", image) for p in content)
