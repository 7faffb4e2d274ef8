"""Messages between two processes, delivered once and in order over broken connections.

In: messages to send, and those that arrive, each with its place. Out: frames to send, and whether
what arrived is handed on. ZeroMQ loses what lies in a socket's buffer when a connection is reset.
So each end numbers what it sends, keeps it until the other end has had it, and says with every
message how much of the other's it has had. A receiver that learns of a number that it lacks asks
for what is missing (`Missing`), and all of it is sent again.

Promises: as long as both processes live and the coordinator knows the other one, every numbered
message is handed on exactly once, after those before it. A `Heartbeat` has no number: it carries
the number of the last message before it, and is delivered only if nothing before it is missing. No
sockets here, and no threads.
"""

import math
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from headrace.errors import ProtocolError
from headrace.protocol.messages.control import Heartbeat, Message, Missing
from headrace.protocol.transport.codec import Codec

Frames = list[bytes]
_PLACE = struct.Struct("<QQQ")
ASK_AGAIN_S, MAX_ASK_AGAIN_S = 0.5, 30.0
"""Time until missing messages are requested again; it doubles each time until one has come."""
RESEND_EVERY_S = 0.4
"""Minimum time between two resends."""


class DeliveryHeader(NamedTuple):
    """Third frame of a message: its place among those of a delivery."""

    delivery: int
    """Key of the delivery; 0 where the sender does not know it yet."""
    number: int
    """Numbered messages that the sender has sent, up to this one."""
    seen: int
    """Numbered messages of the receiver's that the sender has received."""

    @classmethod
    def of(cls, frame: bytes) -> "DeliveryHeader":
        """The place in a frame; ProtocolError where there is none."""
        if len(frame) != _PLACE.size:
            raise ProtocolError(f"a place has {_PLACE.size} bytes, got {len(frame)}")
        return cls(*_PLACE.unpack(frame))


class Delivery:
    """One end. The coordinator's has a key of its own and begins with a Hello that it accepts; the
    other process follows each new key, because a coordinator that restarts, or forgot it, knows
    nothing of what was before."""

    def __init__(
        self,
        codec: Codec[Message],
        *,
        key: int = 0,
        seen: int = 0,
        most: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`key`: the coordinator's; 0 at the other end. `seen`: the number of the Hello. `most`:
        maximum number of kept messages; a peer that does not read them is sent no more."""
        self._codec, self._joins, self._key = codec, not key, key
        self._seen, self._most, self._clock = seen, most, clock
        self._sent = 0
        self._kept: deque[tuple[int, Frames]] = deque()
        """Sent messages that the other end has not confirmed, with their numbers."""
        self._ask_at = self._resend_at = -math.inf
        self._patience_s = ASK_AGAIN_S

    def send(self, message: Message) -> Frames | None:
        """Return a message's frames; None where too much is kept. ProtocolError: it is too long."""
        frames = self._codec.encode(message)
        if not isinstance(message, Heartbeat | Missing):
            if len(self._kept) >= self._most:
                return None
            self._sent += 1
            self._kept.append((self._sent, frames))
        return self._placed(frames, self._sent)

    def accept(self, place: DeliveryHeader, message: Message | None) -> tuple[bool, list[Frames]]:
        """Return whether a message is handed on, and the frames that answer it. None: it is
        unreadable, also if it came again."""
        self._update_from(place)
        if not isinstance(message, Heartbeat | Missing):
            if place.number == self._seen + 1:
                self._seen, self._patience_s = place.number, ASK_AGAIN_S
                return True, []
            return False, self._request_missing(place.number)
        if isinstance(message, Missing):
            return False, self._resend()
        answers = self._request_missing(place.number)
        if self._joins:
            answers.append(self._placed(self._codec.encode(Heartbeat()), self._sent))
        return place.number <= self._seen, answers

    def _placed(self, frames: Frames, number: int) -> Frames:
        return [*frames, _PLACE.pack(self._key, number, self._seen)]

    def _update_from(self, place: DeliveryHeader) -> None:
        """Follow another delivery's key; let go of what the other end has had."""
        if self._joins and place.delivery != self._key:
            self._key, self._seen = place.delivery, 0
        if place.delivery == self._key:
            while self._kept and self._kept[0][0] <= place.seen:
                self._kept.popleft()

    def _request_missing(self, number: int) -> list[Frames]:
        """Request missing messages up to a number, if there are any, and none was just
        requested."""
        now = self._clock()
        if number <= self._seen or now < self._ask_at:
            return []
        self._ask_at = now + self._patience_s
        self._patience_s = min(2 * self._patience_s, MAX_ASK_AGAIN_S)
        return [self._placed(self._codec.encode(Missing()), self._sent)]

    def _resend(self) -> list[Frames]:
        """All that the other end has not had."""
        now = self._clock()
        if now < self._resend_at:
            return []
        self._resend_at = now + RESEND_EVERY_S
        return [self._placed(frames, number) for number, frames in self._kept]
