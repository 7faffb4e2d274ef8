"""The link between the examiner and the candidate of a cell.

Each side asks the other to do an operation and gets a value or an exception; while it waits it
serves what the other asks in between, so that a check may hand a function to the program. What is
not plain data stays with its owner, and the other side holds a `Remote`. A side does only the
operations that it was given, so that the program cannot look into what the checks hand it.
"""

import builtins
import json
import socket
import struct
from collections.abc import Callable, Mapping
from typing import Any

from sandbox.plain_data import Json, decode, encode

LENGTH = struct.Struct(">I")
MAX_FRAME_BYTES = 64 << 20
_MUTABLE = (list, dict, set, bytearray)


class ProgramEndedError(Exception):
    """The other process is gone, or says what makes no sense."""


class ProgramError(Exception):
    """The other side raised an exception that this one does not have."""


def send_frame(link: socket.socket, message: Json) -> None:
    """Write one message."""
    body = json.dumps(message).encode()
    link.sendall(LENGTH.pack(len(body)) + body)


def read_frame(link: socket.socket) -> Json | None:
    """The next message; None at the end."""
    head = _read(link, LENGTH.size)
    if head is None:
        return None
    (length,) = LENGTH.unpack(head)
    if length > MAX_FRAME_BYTES:
        raise ProgramEndedError(f"a message of {length} bytes is too long")
    body = _read(link, length)
    return None if body is None else json.loads(body)


def _read(link: socket.socket, count: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < count:
        part = link.recv(min(count - len(parts), 1 << 20))
        if not part:
            return None
        parts += part
    return bytes(parts)


class Peer:
    """One end of the link. `operations` are what the other side may ask for; with
    `only_functions` nothing but callables is handed over by reference."""

    def __init__(
        self,
        link: socket.socket,
        operations: Mapping[str, Callable[..., Any]],
        *,
        only_functions: bool = False,
        before_reply: Callable[[], None] = lambda: None,
    ) -> None:
        self._link, self._operations, self._only_functions = link, operations, only_functions
        self._before_reply = before_reply
        self._mine: list[object] = []
        self._numbers: dict[int, int] = {}
        self._yours: dict[int, Remote] = {}

    def ask(self, operation: str, *operands: Any, **keywords: Any) -> Any:
        """Have the other side do an operation; raises what it raised."""
        self._say(
            {
                "do": operation,
                "with": [encode(each, self._export) for each in operands],
                "named": {name: encode(each, self._export) for name, each in keywords.items()},
            }
        )
        while True:
            message = self._hear()
            if "do" in message:
                self._serve(message)
                continue
            for position, changed in message.get("changed", {}).items():
                _refill(operands[int(position)], decode(changed, self._find))
            if "raised" in message:
                raise _exception(*message["raised"])
            return decode(message.get("value"), self._find)

    def serve(self) -> None:
        """Do what the other side asks until it closes the link."""
        while True:
            try:
                message = self._hear()
            except ProgramEndedError:
                return
            self._serve(message)

    def _serve(self, message: Json) -> None:
        reply: dict[str, Json] = {}
        try:
            operation = self._operations[message["do"]]
            operands = [decode(each, self._find) for each in message["with"]]
            named = {name: decode(each, self._find) for name, each in message["named"].items()}
            reply["value"] = encode(operation(*operands, **named), self._export)
            changed = {
                str(position): after
                for position, (operand, before) in enumerate(
                    zip(operands, message["with"], strict=True)
                )
                if isinstance(operand, _MUTABLE)
                and (after := encode(operand, self._export)) != before
            }
            if changed:
                reply["changed"] = changed
        except BaseException as error:  # the program's: it belongs to whoever asked
            reply = {"raised": [type(error).__name__, str(error)[:1000]]}
        self._before_reply()
        self._say(reply)

    def _say(self, message: Json) -> None:
        try:
            send_frame(self._link, message)
        except OSError as error:
            raise ProgramEndedError("the program ended") from error

    def _hear(self) -> dict[str, Any]:
        try:
            message = read_frame(self._link)
        except (OSError, ValueError, RecursionError) as error:
            raise ProgramEndedError(f"the program broke the link: {error}") from error
        if not isinstance(message, dict):
            raise ProgramEndedError("the program ended")
        return message

    def _export(self, value: object) -> Json:
        if isinstance(value, Remote):
            return ["yours", value._number]
        if self._only_functions and not callable(value):
            raise TypeError(f"a check cannot hand a {type(value).__name__} to the program")
        number = self._numbers.setdefault(id(value), len(self._mine))
        if number == len(self._mine):
            self._mine.append(value)
        return ["mine", number]

    def _find(self, name: Json) -> Any:
        owner, number = name
        if owner == "yours":
            return self._mine[number]
        return self._yours.setdefault(number, Remote(self, number))


class Remote:
    """An object of the other side. It does what data can tell (calls, attributes, items, length,
    truth, conversions); it compares equal to nothing but objects of the same side, and has neither
    order nor arithmetic, because those answers would be the program's own verdict."""

    __slots__ = ("_number", "_peer")

    def __init__(self, peer: Peer, number: int) -> None:
        object.__setattr__(self, "_peer", peer)
        object.__setattr__(self, "_number", number)

    _peer: Peer
    _number: int

    def __call__(self, *operands: Any, **keywords: Any) -> Any:
        return self._peer.ask("call", self, *operands, **keywords)

    def __getattr__(self, name: str) -> Any:
        return self._peer.ask("get", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._peer.ask("set", self, name, value)

    def __getitem__(self, key: Any) -> Any:
        return self._peer.ask("item", self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._peer.ask("put", self, key, value)

    def __iter__(self) -> Any:
        iterator = self._peer.ask("iter", self)
        while True:
            try:
                value = self._peer.ask("next", iterator)
            except StopIteration:
                return
            yield value

    def __next__(self) -> Any:
        return self._peer.ask("next", self)

    def __len__(self) -> int:
        return int(self._peer.ask("len", self))

    def __bool__(self) -> bool:
        return bool(self._peer.ask("bool", self))

    def __str__(self) -> str:
        return str(self._peer.ask("str", self))

    def __float__(self) -> float:
        return float(self._peer.ask("float", self))

    def __int__(self) -> int:
        return int(self._peer.ask("int", self))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Remote):
            return self is other or bool(self._peer.ask("equal", self, other))
        return False

    def __hash__(self) -> int:
        return self._number


def _refill(old: Any, new: Any) -> None:
    """Give a container the contents it has on the other side after a call."""
    if isinstance(old, list | bytearray):
        old[:] = new
    elif isinstance(old, dict | set):
        old.clear()
        old.update(new)


def _exception(name: str, text: str) -> Exception:
    kind = getattr(builtins, str(name), None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            return kind(text)
        except TypeError:
            pass  # it takes more than a text
    return ProgramError(f"{name}: {text}")
