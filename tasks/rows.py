"""One row of a task: what every prompt source yields and everything downstream reads.

In: nothing. Out: `TaskRow` and `Message`, the images of a prompt, and its identity. A row is
immutable, and its id names the row, not a visit to it: the second epoch yields the same id.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any

from headrace.data.media import MediaError, check_image, image_bytes, named_image

MessagePart = dict[str, Any]
"""A piece of a message: its `type`, and a `text`, an `image` (whatever
`headrace.data.media.image_bytes` takes, or a digest) or what else it is."""
Message = dict[str, Any]
"""One chat message: `role`, and `content`: a text or, where it has more, a list of parts."""


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A prompt and its reference answer.

    `prompt` is a plain string, or chat messages for models with a chat template; `answer` is what
    the verifier compares against; `info` keeps the row's columns for reward functions; `domain` is
    that of a mixture, "" elsewhere. Image paths are relative to `folder`, that of the row's file.
    `plain`: the prompt without the task's template, where it has one.
    """

    id: str
    prompt: str | list[Message]
    answer: str
    info: dict[str, Any] = field(default_factory=dict)
    domain: str = ""
    folder: str = field(default="", compare=False)
    plain: str | list[Message] | None = field(default=None, compare=False)


def other_than_text(prompt: str | list[Message], *, images: bool = False) -> str | None:
    """The type of a prompt's first part that is no text (nor, with `images`, an image)."""
    known = ("text", "image") if images else ("text",)
    parts = _parts(prompt)
    return next((str(part["type"]) for part in parts if part["type"] not in known), None)


def images_in(prompt: str | list[Message]) -> list[Any]:
    """The images of the prompt as it names them, in their order."""
    return [part["image"] for part in _parts(prompt) if part["type"] == "image"]


def files_of(
    prompt: str | list[Message],
    folder: Path,
    where: str,
    *,
    urls: bool = False,
    check: bool = False,
) -> list[bytes]:
    """The files of a prompt's images, in order; paths are relative to `folder`. MediaError, which
    names `where` and the image: one is missing or, with `check`, unusable."""
    found: list[bytes] = []
    for number, image in enumerate(images_in(prompt), start=1):
        try:
            data = image_bytes(image, folder, urls=urls)
            if check:
                check_image(data)
        except MediaError as error:
            raise MediaError(f"{where}, image {number}: {error}") from error
        found.append(data)
    return found


def with_images(prompt: str | list[Message], images: Sequence[Any]) -> str | list[Message]:
    """The prompt with other images, such as digests, so that it can be written as JSON. ValueError:
    not as many."""
    wanted = len(images_in(prompt))
    if len(images) != wanted:
        raise ValueError(f"{len(images)} images for a prompt with {wanted}")
    if isinstance(prompt, str):
        return prompt
    left = iter(images)
    return [{**message, "content": _replaced(message["content"], left)} for message in prompt]


def text_of(content: str | list[MessagePart]) -> str:
    """The text of a message; its other parts are left out."""
    return content if isinstance(content, str) else "".join(p.get("text", "") for p in content)


def chat_of(prompt: str | list[Message]) -> list[Message]:
    """The prompt as a chat; a plain text is what the user says."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


def prompt_text(prompt: str | list[Message], folder: str = "") -> str:
    """The prompt as one string: the identity for duplicates and splits. `folder`: see below."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(f"{m['role']}: {_content(m['content'], folder)}" for m in prompt)


def question_of(prompt: str | list[Message], folder: str = "") -> str:
    """The prompt as one string that a chat of one user message shares with its plain text. Images
    that are files have their whole paths where the `folder` that they are relative to is given."""
    return prompt_text(prompt, folder).removeprefix("user: ")


def _parts(prompt: str | list[Message]) -> Iterator[MessagePart]:
    """The parts of all messages whose content is a list."""
    contents = [] if isinstance(prompt, str) else [message["content"] for message in prompt]
    return (part for content in contents if not isinstance(content, str) for part in content)


def _replaced(content: str | list[MessagePart], images: Iterator[Any]) -> str | list[MessagePart]:
    if isinstance(content, str):
        return content
    return [{**p, "image": next(images)} if p["type"] == "image" else p for p in content]


def _content(content: str | list[MessagePart], folder: str) -> str:
    if isinstance(content, str):
        return content
    names = (_name(part["image"], folder) for part in content if part["type"] == "image")
    return json.dumps(_replaced(content, names), default=str)


def _name(image: Any, folder: str) -> str:
    """Digest of bytes or of a data URL's bytes, which are the same image; else the name."""
    image = named_image(image)
    if isinstance(image, str) and image.startswith("data:"):
        with suppress(MediaError):
            image = image_bytes(image, Path())
    elif folder and isinstance(image, str) and ":" not in image[:6]:  # no other URL either
        return os.path.abspath(os.path.join(folder, os.path.expanduser(image)))
    return sha256(image).hexdigest() if isinstance(image, bytes) else str(image)


def prompt_hash(prompt: str | list[Message]) -> int:
    """A 64-bit hash of the prompt's text, equal on every machine and in every process."""
    digest = blake2b(prompt_text(prompt).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")
