"""Prompts as datasets write them, in one form.

In: a text, chat messages (`role` and `content`, or ShareGPT's `from` and `value`) whose content may
be a list of parts, and the row's images. Out: a text, or messages; content is text, or, where there
is more than text in it, its parts in order; an image is `{"type": "image", "image": ...}`. A
`<image>` in a text, and an image part without its image, take the next of the row's images; where
messages have neither, the images come before the first words of the user, as TRL puts them.
"""

from collections.abc import Iterator
from typing import Any

from headrace.data.media import SOURCES
from headrace.errors import UserError
from tasks.rows import Message, MessagePart, chat_of, images_in

ROLES = {"human": "user", "gpt": "assistant"}
"""ShareGPT's names of the roles."""
PLACEHOLDER = "<image>"
IMAGE_TYPES = ("image", "image_url")


def read_prompt(prompt: Any, images: Any, where: str) -> str | list[Message]:
    """The prompt in one form. UserError at `where`: it is none, or its images are not the row's."""
    waiting = iter(images if isinstance(images, list) else [])
    has_images = isinstance(images, list) and bool(images)
    if isinstance(prompt, str) and not has_images:
        return prompt
    turns = chat_of(prompt)
    if not isinstance(turns, list) or not turns:
        raise UserError(f"{where}: the prompt is neither text nor a list of messages")
    messages = [_message(turn, waiting, where, placed=has_images) for turn in turns]
    if isinstance(prompt, list) and has_images and not images_in(messages):
        first = next((message for message in messages if message["role"] == "user"), messages[0])
        said = first["content"]
        words = [{"type": "text", "text": said}] if isinstance(said, str) else said
        first["content"] = [*({"type": "image", "image": image} for image in waiting), *words]
    if next(waiting, None) is not None:
        raise UserError(f"{where}: the row has more images than its prompt has {PLACEHOLDER}")
    return messages


def _message(turn: Any, waiting: Iterator[Any], where: str, *, placed: bool) -> Message:
    if not isinstance(turn, dict):
        raise UserError(f"{where}: the prompt is neither text nor a list of messages")
    role = turn.get("role", turn.get("from"))
    content = turn.get("content", turn.get("value"))
    if turn.get("tool_calls") or not isinstance(role, str) or not isinstance(content, str | list):
        raise UserError(f"{where}: a message of the prompt has no role or content, or tool_calls")
    role = ROLES.get(role, role)
    if isinstance(content, str):
        if not placed or PLACEHOLDER not in content:
            return {"role": role, "content": content}
        content = _around([{"type": "image"}], content.split(PLACEHOLDER))
    parts = [_part(part, waiting, where) for part in content]
    if all(part["type"] == "text" for part in parts):
        return {"role": role, "content": "".join(part["text"] for part in parts)}
    return {"role": role, "content": parts}


def _part(part: Any, waiting: Iterator[Any], where: str) -> MessagePart:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise UserError(f"{where}: a part of a message has no type")
    # Parquet gives every part the fields of all.
    found = {key: value for key, value in part.items() if value is not None}
    if found["type"] == "text" and not isinstance(found.get("text"), str):
        raise UserError(f"{where}: a part of type text has no text")
    if found["type"] not in IMAGE_TYPES:
        return found
    own = next((found[key] for key in SOURCES if key in found), None)
    image = next(waiting, None) if own is None else own
    if image is None:
        raise UserError(f"{where}: the prompt has more images than the row")
    # OpenAI puts the URL into an object.
    is_url = isinstance(image, dict) and set(image) <= {"url", "detail"}
    return {"type": "image", "image": image.get("url") if is_url else image}


def wrap_last_user(messages: list[Message], template: str) -> list[Message]:
    """The messages with the user's last text in a template; its other parts stay."""
    wrapped = [dict(message) for message in messages]
    for message in reversed(wrapped):
        if message["role"] == "user":
            content = message["content"]
            if isinstance(content, str):
                message["content"] = template.format(prompt=content)
            else:
                message["content"] = _around(content, template.format(prompt="\0").split("\0"))
            break
    return wrapped


def _around(content: list[MessagePart], texts: list[str]) -> list[MessagePart]:
    """Texts as parts, with this content between each two; empty ones are left out."""
    parts: list[MessagePart] = []
    for index, text in enumerate(texts):
        parts += content if index else []
        parts += [{"type": "text", "text": text}] if text else []
    return parts
