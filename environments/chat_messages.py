"""Messages of OpenAI's chat completions on the wire.

In: the `messages` of a request, a completion as a mapping. Out: `ChatMessage`s, the bytes of an
event stream. Promise: what is no chat of texts and calls is refused in one line.
"""

import json
from typing import Any

import msgspec

from environments.tools import ToolCall

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant",
         "tool": "tool"}  # fmt: skip


class RefusedError(Exception):
    """A request gets no turn; one line, and the HTTP status."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


class ChatMessage(msgspec.Struct, frozen=True):
    """Message of a chat, with the fields in which two messages can differ."""

    role: str
    content: str
    calls: list[ToolCall] = []


def read_chat(messages: Any) -> list[ChatMessage]:
    """Read the messages of a request; RefusedError where one is none."""
    if not isinstance(messages, list) or not messages:
        raise RefusedError("messages: a list of at least one message")
    found = []
    for index, message in enumerate(messages):
        try:
            content = message.get("content") or ""
            if not isinstance(content, str):
                kinds = [part["type"] for part in content if part["type"] != "text"]
                if kinds:
                    raise RefusedError(f"messages[{index}]: a part is {kinds[0]}, and not text")
                content = "".join(part["text"] for part in content)
            calls = [
                ToolCall(call["function"]["name"], _arguments(call["function"]["arguments"]))
                for call in message.get("tool_calls") or ()
            ]
            found.append(ChatMessage(ROLES[message["role"]], content, calls))
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            text = f"messages[{index}] is no message: {type(error).__name__}: {error}"
            raise RefusedError(text) from error
    return found


def _arguments(text: str) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("arguments are a JSON object")
    return found


def event_of(answer: dict[str, Any]) -> bytes:
    """A completion as the one event of a stream: the policy's turn comes whole."""
    told = dict(answer["choices"][0])
    delta = dict(told.pop("message"))
    if "tool_calls" in delta:
        delta["tool_calls"] = [{"index": i, **c} for i, c in enumerate(delta["tool_calls"])]
    choices = [told | {"delta": delta}]
    chunk = answer | {"object": "chat.completion.chunk", "choices": choices}
    return b"data: " + msgspec.json.encode(chunk) + b"\n\ndata: [DONE]\n\n"
