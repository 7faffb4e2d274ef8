"""Rendering of an environment's messages to token ids behind a turn of the policy.

In: messages. Out: ids. Promises: the policy's own text is never encoded again; a message cannot
forge a special token, so it cannot end its own turn or begin another.

A chat's frame around messages is the difference of two renderings of the model's template: a
conversation that ends with an answer, and the same with the messages behind it.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from headrace.data.tokenizer import chat_text
from headrace.errors import UserError
from headrace.protocol.messages.environments import InsertedMessage, Role
from headrace.protocol.token_spans import Int32, Source, Speaker

_ANSWER = "c8b07e"
_MARK = re.compile(r'f3a9d(\d+)e1(\\?)"')
"""Mark of a message; the second group has a character where the template makes JSON of it."""
_OPENING = [{"role": "user", "content": "a4d1c2"}, {"role": "assistant", "content": _ANSWER}]


class RenderedMessages(NamedTuple):
    """Messages as ids. `cut`: number of ids cut off the ends of their texts.

    `pieces`: source, role and number of ids, in order; a chat's frames are the template's."""

    ids: Int32
    cut: int
    pieces: list[tuple[Source, Speaker, int]]


class MessageRenderer:
    """Messages to ids by a tokenizer and, for chats, its template."""

    def __init__(self, tokenizer: Any, *, is_chat: bool, appends: bool = False) -> None:
        """UserError where a chat's template drops or changes text before a message.

        With `appends` that is accepted: sampled tokens stay as they are."""
        self._tokenizer, self._is_chat, self._appends = tokenizer, is_chat, appends
        if is_chat:
            self._frame([InsertedMessage("user", "")], is_first=False)

    def ids(
        self,
        messages: Sequence[InsertedMessage],
        *,
        most: int,
        is_first: bool = False,
        whole: bool = False,
        tools: Sequence[Mapping[str, Any]] = (),
        behind: int = -1,
    ) -> "RenderedMessages | None":
        """Render at most `most` ids; None where not even a chat's frame fits.

        `is_first`: they follow the prompt. `whole`: they are the whole chat, shown with `tools`.
        `behind`: the id before them, which ends a turn and does not begin the frame once more."""
        texts = [message.content for message in messages]
        head, frames = "", [""] * (len(texts) + 1)
        if self._is_chat:
            head, frames, forms = self._frame(messages, is_first=is_first, whole=whole, tools=tools)
            escaped = (json.dumps(text, ensure_ascii=False)[1:-1] for text in texts)
            texts = [e if form else t for t, e, form in zip(texts, escaped, forms, strict=True)]
        elif tools:
            raise UserError("the model has no chat template that would show tools")
        inside = [self._encode(text, special=False) for text in texts]
        around = [self._encode(frames[0], special=True, behind=head)]
        around += [self._encode(frame, special=True) for frame in frames[1:]]
        if around[0][:1] == [behind]:  # Gemma ends turns with another token than texts.
            del around[0][0]
        room = most - sum(map(len, around))
        if room < 0 or most == 0:
            return None
        roles: list[Role] = [*(one.role for one in messages), "assistant"]
        parts: list[tuple[Source, Speaker, list[int]]] = [("template", roles[0], around[0])]
        cut = 0
        for content, role, frame, then in zip(inside, roles, around[1:], roles[1:], strict=False):
            kept = content[:room]
            room, cut = room - len(kept), cut + len(content) - len(kept)
            parts.append(("tool" if role == "tool" else "environment", role, kept))
            parts.append(("template", then, frame))
        ids = np.array([i for _, _, part in parts for i in part], np.int32)
        return RenderedMessages(ids, cut, [(*who, len(part)) for *who, part in parts if part])  # type: ignore[misc]

    def _encode(self, text: str, *, special: bool, behind: str = "\n") -> list[int]:
        """Return ids of a text behind another, where sentencepiece puts no blank before it."""

        def ids(text: str) -> list[int]:
            split = not special
            found = self._tokenizer(text, add_special_tokens=False, split_special_tokens=split)
            return list(found["input_ids"])

        first, both = ids(behind), ids(behind + text)
        return both[len(first) :] if both[: len(first)] == first else ids(text)

    def _frame(
        self,
        messages: Sequence[InsertedMessage],
        *,
        is_first: bool,
        whole: bool = False,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> tuple[str, list[str], list[str]]:
        """Return the template's texts: all before, those around the messages, marks of JSON."""
        said = [
            {"role": message.role, "content": f'f3a9d{number}e1"'}
            | ({"name": "tool"} if message.role == "tool" else {})
            for number, message in enumerate(messages)
        ]
        opening = _OPENING[:1] if is_first else _OPENING
        if whole:
            opening, before = [], ""
        else:
            before = chat_text(self._tokenizer, opening, begins_answer=False)
        text = chat_text(self._tokenizer, [*opening, *said], begins_answer=True, tools=tools)
        is_first |= whole
        ends = [len(before)] * 2 if is_first else [self._behind(before), self._behind(text)]
        changes = before[: ends[0]] != text[: ends[1]] and not (self._appends and not is_first)
        parts = _MARK.split(text[ends[1] :])
        if changes or parts[1::3] != [str(number) for number in range(len(messages))]:
            raise UserError(
                "the model's chat template changes earlier messages when others follow them, or "
                f"drops some ({', '.join(sorted({m.role for m in messages}))}): an environment's "
                'messages cannot be appended; set environment.template = "append" where only '
                "reasoning is dropped, or take another template"
            )
        return text[: ends[1]], parts[::3], parts[2::3]

    def _behind(self, text: str) -> int:
        """Return the end of the answer in a chat, with its end token; 0 without an answer."""
        if _ANSWER not in text:
            return 0
        end = text.rindex(_ANSWER) + len(_ANSWER)
        closing = self._tokenizer.eos_token or ""
        at = text.find(closing, end) if closing else -1
        return end if at < 0 else at + len(closing)
