"""One row of a task: what every prompt source yields and everything downstream reads.

In: nothing. Out: `Row` and `Message`. A row is immutable, and its id names the row itself, not one
visit to it: the second epoch yields the same id again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

Message = dict[str, str]
"""One chat message: at least the keys `role` and `content`."""


@dataclass(frozen=True, slots=True)
class Row:
    """A prompt and its reference answer.

    `prompt` is a plain string, or chat messages for models with a chat template; `answer` is what
    the verifier compares against; `info` keeps the remaining columns for reward functions.
    """

    id: str
    prompt: str | list[Message]
    answer: str
    info: dict[str, Any] = field(default_factory=dict)


def prompt_text(prompt: str | list[Message]) -> str:
    """The prompt as one string; the identity under which duplicates and splits are decided."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(f"{message['role']}: {message['content']}" for message in prompt)


def prompt_hash(prompt: str | list[Message]) -> int:
    """A 64-bit hash of the prompt's text, equal on every machine and in every process."""
    digest = blake2b(prompt_text(prompt).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")
