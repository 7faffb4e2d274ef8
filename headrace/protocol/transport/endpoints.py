"""Ends of a connection: messages to frames and back, with deliveries, without sockets.

In: messages to send, and frames that arrived. Out: frames, messages, and what is answered at once.
What is no message is dropped, and by a router reported to `on_reject`; nothing here raises for what
arrives. A process's sockets have the identity NAME~SECRET, with a new random secret for each
process: nobody else can guess it, so that it distinguishes a process from another one that uses the
same name.
"""

import re
import secrets
from collections.abc import Callable, Sequence
from functools import partial

from headrace.errors import ProtocolError, UserError
from headrace.protocol.fields import NAME
from headrace.protocol.messages.control import Hello, Message
from headrace.protocol.transport.codec import Codec, message_codec
from headrace.protocol.transport.delivery import Delivery, DeliveryHeader, Frames

_MARK = "~"
PULSE_SUFFIX = "#pulse"
"""Of the identity of the socket from which a process sends heartbeats."""


def identity_of(name: str) -> str:
    """Return an identity for a process's sockets. UserError: the name is not allowed."""
    if not re.match(NAME, name):
        raise UserError(
            f"{name!r} cannot be the name of a process: letters, digits, '.', '_' and '-' can, "
            "64 at most"
        )
    return f"{name}{_MARK}{secrets.token_hex(8)}"


def name_of(identity: str) -> str | None:
    """The name in an identity, or None where the identity has no secret."""
    name, _, secret = identity.partition(_MARK)
    return name if secret else None


def _read(
    codec: Codec[Message], frames: Sequence[bytes], problem: Callable[[str], None]
) -> tuple[DeliveryHeader | None, Message | None]:
    """A message's place in a delivery, if it has one, and the message, if it can be read."""
    place = None
    try:
        if len(frames) == 3:
            place, frames = DeliveryHeader.of(frames[2]), frames[:2]
        return place, codec.decode(frames)
    except ProtocolError as error:
        problem(str(error))
        return place, None


class RoleEndpoint:
    """A role's end of its connection. A delivery begins with its first Hello."""

    def __init__(self, max_bytes: int) -> None:
        self._codec = message_codec(max_bytes=max_bytes)
        self._delivery: Delivery | None = None

    def encode(self, message: Message) -> Frames:
        """The frames of a message. ProtocolError when it is too long."""
        if isinstance(message, Hello) and self._delivery is None:
            self._delivery = Delivery(self._codec)
        if self._delivery is None:
            return self._codec.encode(message)
        frames = self._delivery.send(message)
        assert frames is not None, "a role keeps whatever it says"
        return frames

    def decode(self, frames: Sequence[bytes]) -> tuple[Message | None, list[Frames]]:
        """The message that is handed on, if one is, and what is answered at once."""
        place, message = _read(self._codec, frames, lambda _reason: None)
        if place is None or self._delivery is None:
            return message, []
        handed_on, answers = self._delivery.accept(place, message)
        return message if handed_on else None, answers


class RouterEndpoint:
    """A router's end of its connections to all processes."""

    def __init__(self, max_bytes: int, most: int, on_reject: Callable[[str, str], None]) -> None:
        """`most`: maximum number of unacknowledged messages that are kept for one process."""
        self._codec, self._most = message_codec(max_bytes=max_bytes), most
        self._on_reject = on_reject
        self._deliveries: dict[str, Delivery] = {}
        """By identity."""
        self._last = ("", 0)
        """Identity and number of the last received message."""

    def begin_delivery(self, identity: str) -> None:
        """Accept the last received Hello: the delivery begins with it, unless one has begun."""
        if identity not in self._deliveries:
            name, number = self._last
            self._deliveries[identity] = Delivery(
                self._codec,
                key=secrets.randbits(63) + 1,
                seen=number if name == identity else 0,
                most=self._most,
            )

    def end_delivery(self, identity: str) -> None:
        """End the delivery of a process that is gone, or has to send Hello again."""
        self._deliveries.pop(identity, None)

    def encode(self, identity: str, message: Message) -> Frames | None:
        """Return a message's frames; None: too much is unread. ProtocolError: it is too long."""
        delivery = self._deliveries.get(identity)
        return self._codec.encode(message) if delivery is None else delivery.send(message)

    def decode(self, frames: Sequence[bytes]) -> tuple[str, Message | None, list[Frames]]:
        """The sender, its message if that is handed on, and what is answered at once."""
        identity = frames[0].decode(errors="replace")
        place, message = _read(self._codec, frames[1:], partial(self._on_reject, identity))
        answers: list[Frames] = []
        if place is not None and (delivery := self._deliveries.get(identity)) is not None:
            handed_on, answers = delivery.accept(place, message)
            message = message if handed_on else None
        self._last = identity, place.number if place else 0
        return identity.removesuffix(PULSE_SUFFIX), message, answers
