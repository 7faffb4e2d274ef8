"""What an environment says, as token ids behind a turn of the policy.

In: messages. Out: ids. Promises: what the policy wrote is never encoded again; a message cannot
forge a special token, so it cannot end its own turn or begin another.

A chat's frame around messages is the difference of two renderings of the model's template: a
conversation that ends with an answer, and the same with the messages behind it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace.errors import UserError
from headrace.protocol.messages.environments import InsertedMessage
from headrace.protocol.token_spans import Int32

_ANSWER = "c8b07e"
_MARK = "f3a9d{}e1"
_OPENING = [{"role": "user", "content": "a4d1c2"}, {"role": "assistant", "content": _ANSWER}]


class Rendering:
    """Messages to ids by a tokenizer and, for chats, its template."""

    def __init__(self, tokenizer: Any, *, is_chat: bool) -> None:
        """UserError where the template of a chat drops or changes what stands before a message."""
        self._tokenizer, self._is_chat = tokenizer, is_chat
        if is_chat:
            self._frame([InsertedMessage("user", "")])

    def ids(self, messages: Sequence[InsertedMessage], *, most: int) -> tuple[Int32, int] | None:
        """At most `most` ids, and how many were cut off the ends of the messages' texts; None where
        there is no room for any, or for a chat's frame."""
        texts = [message.content for message in messages]
        frames = self._frame(messages) if self._is_chat else [""] * (len(texts) + 1)
        inside = [self._encode(text, special=False) for text in texts]
        around = [self._encode(frame, special=True) for frame in frames]
        room = most - sum(map(len, around))
        if room < 0 or most == 0:
            return None
        found, cut = list(around[0]), 0
        for content, frame in zip(inside, around[1:], strict=True):
            kept = content[:room]
            room, cut = room - len(kept), cut + len(content) - len(kept)
            found += [*kept, *frame]
        return np.array(found, np.int32), cut

    def _encode(self, text: str, *, special: bool) -> list[int]:
        if not text:
            return []
        ids = self._tokenizer(text, add_special_tokens=False, split_special_tokens=not special)
        return list(ids["input_ids"])

    def _frame(self, messages: Sequence[InsertedMessage]) -> list[str]:
        """What stands before, between and behind the texts of the messages."""
        marks = [_MARK.format(number) for number in range(len(messages))]
        said = [
            {"role": message.role, "content": mark, "name": "tool"}
            for message, mark in zip(messages, marks, strict=True)
        ]
        before = self._render(_OPENING, answers=False)
        whole = self._render([*_OPENING, *said], answers=True)
        end = before.rindex(_ANSWER) + len(_ANSWER)
        closing = self._tokenizer.eos_token or ""
        if closing in before[end:]:
            end = before.index(closing, end) + len(closing)
        if whole[:end] != before[:end] or any(whole.count(mark) != 1 for mark in marks):
            raise UserError(
                "the model's chat template changes earlier messages when others follow them, so "
                "that an environment's messages cannot be appended; take another template"
            )
        frames, rest = [], whole[end:]
        for mark in marks:
            frame, rest = rest.split(mark, 1)
            frames.append(frame)
        return [*frames, rest]

    def _render(self, messages: Sequence[dict[str, str]], *, answers: bool) -> str:
        return str(
            self._tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=answers
            )
        )
