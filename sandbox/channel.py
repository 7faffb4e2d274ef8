"""The link between the checker and the program process of a cell.

Each side asks the other to do an operation and gets a value or an exception; while it waits it
serves what the other asks in between, so that a check may pass a function to the program. What is
not plain data stays with its owner, and the other side holds a `RemoteObject`. A side does only the
operations that it was given, so that the program cannot look into what the checks pass to it.

An object cannot talk its way through a check by answering differently each time: what it converts
to (or that it does not) is the same until it is called into, or passed again. Its parts
(attributes, items) share its fate, and so do objects that meet in one call or come from one.
Attributes and items, and all that the program defines by name, stay until anything of it is called.
"""

import builtins
import json
import socket
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from sandbox.plain_data import Json, decode, encode

T = TypeVar("T")
LENGTH = struct.Struct(">I")
MAX_FRAME_BYTES = 64 << 20
MAX_ITEMS = 20_000
"""Maximum number of items of one pass over an iterator of the other side."""
_MUTABLE = (list, dict, set, bytearray)
_INTO = ("call", "set", "put")
"""Operations that call into the objects that they are given."""
_STOPS = ("StopIteration", "StopAsyncIteration", "GeneratorExit")
_NAMES = ("__name__", "__qualname__", "__dict__")
"""Names with two underscores that are data.

Others are hooks of Python or of libraries, which take the answer on trust (numpy reads memory at
the given address)."""


class ProgramEndedError(Exception):
    """The other process is gone, or says what makes no sense."""


class ProgramError(Exception):
    """The other side raised an exception that this one does not have."""


def frame(message: Json) -> bytes:
    """Return one message as bytes: its length and its JSON."""
    body = json.dumps(message).encode()
    return LENGTH.pack(len(body)) + body


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


class ChangeGroup:
    """Objects of the other side that may change together."""

    __slots__ = ("answers", "into")

    def __init__(self) -> None:
        self.into: ChangeGroup | None = None
        """The group that it has joined."""
        self.answers: dict[object, Any] = {}
        """Their answers since they were last called into; an exception: they raised it."""

    def whole(self) -> "ChangeGroup":
        """Return the group that this one is now part of."""
        found = self
        while found.into is not None:
            found = found.into
        return found

    def once(self, key: object, ask: Callable[[], Any]) -> Any:
        """Return or raise their answer to this; ask for it the first time."""
        answers = self.whole().answers
        if key not in answers:
            try:
                answers[key] = ask()
            except Exception as error:  # the program's: it stays its answer
                answers[key] = error
        if isinstance(answers[key], Exception):
            raise answers[key]
        return answers[key]


@dataclass
class _IteratedItems:
    """Items that an object gave in a pass over it."""

    source: Any
    given: list[Any] = field(default_factory=list)
    ended: bool = False


class ChannelEnd:
    """One end of the link; `operations` are what the other side may ask for.

    With `only_functions` nothing but callables is handed over by reference."""

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
        self._yours: dict[int, RemoteObject] = {}
        self._common = ChangeGroup()
        """The group of all that the program defines by name: any call may change it."""

    def ask(self, operation: str, *operands: Any, **keywords: Any) -> Any:
        """Have the other side do an operation; raises what it raised."""
        anew = operation in ("call", "next")
        whole = ChangeGroup() if anew else self._common
        if not anew and operands and isinstance(operands[0], RemoteObject):
            whole = operands[0]._group
        answer = self._answer(operation, operands, keywords)
        return decode(answer, partial(self._find, whole=whole, anew=anew))

    def look(self, whole: "RemoteObject", operation: str, operand: Any) -> Any:
        """Return a part of an object, the same until something is called."""
        answer = self._common.once(
            (whole._number, operation, repr(operand)),
            lambda: self._answer(operation, (whole, operand), {}),
        )
        return decode(answer, partial(self._find, whole=whole._group))

    def touch(self, operation: str, given: Iterable["RemoteObject"]) -> None:
        """Forget what an operation may change; what it calls into is one group from here on."""
        if operation not in _INTO and operation != "next":
            return
        self._common.answers.clear()
        groups = [each._group.whole() for each in given if operation in _INTO]
        groups = [each for each in groups if each is not self._common]
        for each in groups:
            each.answers.clear()
            each.into = None if each is groups[0] else groups[0]

    def _answer(
        self, operation: str, operands: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> Json:
        given: list[RemoteObject] = []

        def export(value: object) -> Json:
            if isinstance(value, RemoteObject):
                given.append(value)
            return self._export(value)

        message = {
            "do": operation,
            "with": [encode(each, export) for each in operands],
            "named": {name: encode(each, export) for name, each in keywords.items()},
        }
        self.touch(operation, given)
        self._send(message)
        try:
            return self._reply(operation, operands)
        finally:
            self.touch(operation, given)

    def _reply(self, operation: str, operands: tuple[Any, ...]) -> Json:
        while True:
            message = self._receive()
            if "do" in message:
                self._serve(message)
                continue
            for position, changed in message.get("changed", {}).items():
                find = partial(self._find, whole=ChangeGroup())
                _refill(operands[int(position)], decode(changed, find))
            if "raised" in message:
                raise _exception(operation, *message["raised"])
            return message.get("value")

    def serve(self) -> None:
        """Do what the other side asks until it closes the link."""
        while True:
            try:
                message = self._receive()
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
        self._send(reply)

    def _send(self, message: Json) -> None:
        try:
            self._link.sendall(frame(message))
        except OSError as error:
            raise ProgramEndedError("the program ended") from error

    def _receive(self) -> dict[str, Any]:
        try:
            message = read_frame(self._link)
        except (OSError, ValueError, RecursionError) as error:
            raise ProgramEndedError(f"the program broke the link: {error}") from error
        if not isinstance(message, dict):
            raise ProgramEndedError("the program ended")
        return message

    def _export(self, value: object) -> Json:
        if isinstance(value, RemoteObject):
            return ["yours", value._number]
        if self._only_functions and not callable(value):
            raise TypeError(f"a check cannot hand a {type(value).__name__} to the program")
        number = self._numbers.setdefault(id(value), len(self._mine))
        if number == len(self._mine):
            self._mine.append(value)
        return ["mine", number]

    def _find(self, name: Json, whole: ChangeGroup | None = None, anew: bool = False) -> Any:
        """Return the named object; one that is not known yet joins the group `whole`.

        Without a group, or `anew`, a known object is handed over again."""
        owner, number = name
        if owner == "yours":
            return self._mine[number]
        found = self._yours.get(number)
        if found is None:
            found = self._yours[number] = RemoteObject(self, number, whole or ChangeGroup())
        elif anew or whole is None:
            found._group.whole().answers.clear()
        return found


class RemoteObject:
    """An object of the other side.

    It supports operations on data (calls, attributes, items, length, truth, conversions); it
    compares equal to nothing but objects of the same side, and has neither order nor arithmetic,
    because those answers would be the program's own verdict."""

    __slots__ = ("_group", "_number", "_peer")

    def __init__(self, peer: ChannelEnd, number: int, group: ChangeGroup) -> None:
        object.__setattr__(self, "_peer", peer)
        object.__setattr__(self, "_number", number)
        object.__setattr__(self, "_group", group)

    _peer: ChannelEnd
    _number: int
    _group: ChangeGroup

    def __call__(self, *operands: Any, **keywords: Any) -> Any:
        return self._peer.ask("call", self, *operands, **keywords)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in _NAMES:
            raise AttributeError(f"{name} of the other side's object is not looked up")
        return self._peer.look(self, "get", name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._peer.ask("set", self, name, value)

    def __getitem__(self, key: Any) -> Any:
        return self._peer.look(self, "item", key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._peer.ask("put", self, key, value)

    def __iter__(self) -> Iterator[Any]:
        answers, key = self._group.whole().answers, (self._number, "iter")
        items = answers.get(key)
        if items is None or (items.source is self and not items.ended):
            items = answers[key] = _IteratedItems(self._peer.ask("iter", self))
        elif items.source is self:
            # An iterator that ended gives nothing more, or all of it again.
            self._peer.ask("iter", self)
            try:
                self._peer.ask("next", self)
            except StopIteration:
                return
        for position in range(MAX_ITEMS):
            if position == len(items.given):
                if items.ended:
                    return
                try:
                    items.given.append(self._peer.ask("next", items.source))
                except StopIteration:
                    items.ended = True
                    return
            yield items.given[position]
        raise ProgramError(f"an iterator goes on after {MAX_ITEMS} items")

    def __next__(self) -> Any:
        self._peer.touch("call", [self])
        return self._peer.ask("next", self)

    def _convert(self, operation: str, kind: Callable[[Any], T]) -> T:
        """Convert it once; the plain value stays from then on."""
        converted: T = self._group.once(
            (self._number, operation), lambda: kind(self._peer.ask(operation, self))
        )
        return converted

    def __len__(self) -> int:
        return self._convert("len", int)

    def __bool__(self) -> bool:
        return self._convert("bool", bool)

    def __str__(self) -> str:
        return self._convert("str", str)

    def __float__(self) -> float:
        return self._convert("float", float)

    def __int__(self) -> int:
        return self._convert("int", int)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, RemoteObject):
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


def _exception(operation: str, name: str, text: str) -> Exception:
    if name in _STOPS and (operation, name) != ("next", "StopIteration"):
        # As PEP 479 has it: it would quietly end a loop of whoever asked.
        return RuntimeError(f"the other side raised {name}")
    kind = getattr(builtins, str(name), None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            return kind(text)
        except TypeError:
            pass  # it takes more than a text
    return ProgramError(f"{name}: {text}")
