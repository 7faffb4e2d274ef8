"""ZeroMQ sockets that carry messages; beside `curve.py` the only importer of zmq.

`Router` (coordinator) and `Dealer` (every role) are asyncio objects; `BlockingRouter` and
`BlockingDealer` are for the learner, which has no event loop. A peer's identity begins with its
process name (`endpoints.py`). What cannot be decoded is dropped and reported to `on_reject`; it
never raises out of `receive`. From the Hello that a router takes (`begin_delivery`) until
`end_delivery`, messages both ways arrive once and in order, also where connections break
(`delivery.py`). Sockets use CURVE keys where they are given a folder of them (all sockets of a run
are); without keys a router binds to loopback only.
"""

import asyncio
import contextlib
import ipaddress
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import zmq
import zmq.asyncio

from headrace.errors import RunFailedError, UserError
from headrace.protocol.messages.control import Heartbeat, Message
from headrace.protocol.transport.curve import CurveAuthenticator, enter
from headrace.protocol.transport.delivery import Frames
from headrace.protocol.transport.endpoints import PULSE_SUFFIX, RoleEndpoint, RouterEndpoint

LINGER_MS = 2000

MAX_QUEUED_MESSAGES = 10_000
"""Messages of one connection that wait in a router's memory; what follows waits at the sender."""

MAX_UNREAD_MESSAGES = 10_000
"""Messages that a router keeps for one connection that does not read; more are not sent."""

BURST = 16
"""Messages that are received without a pause; then other tasks run."""


@dataclass(frozen=True)
class Link:
    """Connection settings: address, size limit, key folder."""

    address: str
    max_bytes: int = 64 << 20
    curve_keys: str | None = None

    @property
    def host(self) -> str:
        """Host of the address, tcp://HOST:PORT."""
        return self.address.removeprefix("tcp://").rpartition(":")[0]


def is_loopback(host: str) -> bool:
    """Return whether an address never leaves this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _BoundSocket:
    """ROUTER, context and key check of both kinds of routers. UserError: wrong address or keys."""

    _kind: ClassVar[type[zmq.Context[Any]]] = zmq.Context

    def __init__(
        self,
        host: str,
        port: int,
        *,
        max_bytes: int,
        curve_keys: str | None = None,
        on_reject: Callable[[str, str], None] = lambda _name, _reason: None,
    ) -> None:
        if not is_loopback(host) and not curve_keys:
            raise UserError(
                f"refusing to bind {host} without keys: make them with `headrace keys DIR` and set "
                "transport.curve_keys=DIR"
            )
        self._end = RouterEndpoint(max_bytes, MAX_UNREAD_MESSAGES, on_reject)
        self._context = context = self._kind()
        self._gate: CurveAuthenticator | None = None
        # Of asyncio or not, as the context is.
        self._socket: Any = context.socket(zmq.ROUTER)
        self._plain = zmq.Socket[bytes].shadow(self._socket)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._socket.setsockopt(zmq.LINGER, LINGER_MS)
        self._socket.setsockopt(zmq.SNDHWM, MAX_UNREAD_MESSAGES)
        self._socket.setsockopt(zmq.RCVHWM, MAX_QUEUED_MESSAGES)
        self._socket.setsockopt(zmq.MAXMSGSIZE, max_bytes)
        try:
            if curve_keys:
                self._gate = CurveAuthenticator(self._socket, curve_keys)
            self._socket.bind(f"tcp://{host}:{port or '*'}")
        except zmq.ZMQError as error:
            self.close()
            raise UserError(
                f"cannot bind {host}:{port} ({error}); choose another with transport.port=PORT "
                "(0 takes a free one), or for transport.host an IPv4 address of this machine"
            ) from error
        except UserError:
            self.close()
            raise
        self.address: str = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.port = int(self.address.rsplit(":", 1)[1])

    @property
    def denied(self) -> int:
        """Number of connections that had no key, or another one."""
        return self._gate.denied if self._gate is not None else 0

    def close(self) -> None:
        """Close after what was sent is out (two seconds at most)."""
        if self._gate is not None:
            self._gate.close()
        self._socket.close()
        if self._gate is not None:
            self._gate.stop()
        self._context.term()


class Router(_BoundSocket):
    """The coordinator's socket: bind, receive from all, send to one."""

    _kind = zmq.asyncio.Context
    _in_a_row = 0

    def begin_delivery(self, identity: str) -> None:
        """Accept the last Hello: from it on messages both ways arrive once and in order."""
        self._end.begin_delivery(identity)

    def end_delivery(self, identity: str) -> None:
        """End the delivery of a process that is gone, or has to send Hello again."""
        self._end.end_delivery(identity)

    async def receive(self) -> tuple[str, Message]:
        """The next good message and its sender."""
        while True:
            frames = await self._arrived() or await self._socket.recv_multipart()
            name, message, answers = self._end.decode(frames)
            for frames in answers:
                if not await self._put(name, frames):
                    break  # A receiver that lacks it requests it again.
            if message is not None:
                return name, message

    def has_more(self) -> bool:
        """Return whether `receive` has a message at once; now and then False all the same."""
        events = int(self._plain.getsockopt(zmq.EVENTS))
        return bool(self._in_a_row and events & zmq.POLLIN)

    async def _arrived(self) -> list[bytes] | None:
        """Return what is there, without the future that pyzmq makes of a message, which costs as
        much as the message; None: nothing is."""
        self._in_a_row = (self._in_a_row + 1) % BURST
        if not self._in_a_row:
            await asyncio.sleep(0)
        try:
            return self._plain.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None

    async def send(self, name: str, message: Message) -> bool:
        """Send; False: not connected, or too much unread. ProtocolError: it is too long. In a
        delivery, what could not be sent now is sent when its receiver is connected again."""
        frames = self._end.encode(name, message)
        return frames is not None and await self._put(name, frames)

    async def _put(self, name: str, frames: Frames) -> bool:
        try:
            await self._socket.send_multipart([name.encode(), *frames], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            return _not_sent(error)
        return True


class BlockingRouter(_BoundSocket):
    """Router without event loop and deliveries, for repeated requests. One thread at a time."""

    def receive(self, timeout_s: float | None = None) -> tuple[str, Message] | None:
        """The next good message and its sender; None when the time is over."""
        while _arrives(self._socket, timeout_s):
            name, message, _ = self._end.decode(self._socket.recv_multipart())
            if message is not None:
                return name, message
        return None

    def send(self, name: str, message: Message) -> bool:
        """Send; False: not connected, or too much unread. ProtocolError: it is too long."""
        frames = self._end.encode(name, message)
        assert frames is not None, "no delivery has begun"
        try:
            self._socket.send_multipart([name.encode(), *frames], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            return _not_sent(error)
        return True


def _turned_away(address: str) -> RunFailedError:
    """A queue without a bound takes every message, unless its connection has ended for good."""
    return RunFailedError(
        f"{address} turned this process away: it needs the keys of the run (--curve-keys, or "
        "--connect with the run's folder)"
    )


def _not_sent(error: zmq.ZMQError) -> bool:
    """False for the errors of a peer that is gone, or reads nothing; others are raised."""
    if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
        raise error
    return False


def _arrives(socket: zmq.Socket[bytes], timeout_s: float | None) -> bool:
    return bool(socket.poll(-1 if timeout_s is None else max(0, round(timeout_s * 1000))))


class _ConnectedSocket:
    """DEALER and context of both kinds of dealers. UserError: the address or the keys are wrong."""

    def __init__(
        self, context: zmq.Context[Any], link: Link, name: str, *, shared: bool = False
    ) -> None:
        """A `shared` context is ended by others."""
        self._context, self._shared = context, shared
        # Of asyncio or not, as the context is.
        self._socket: Any = context.socket(zmq.DEALER)
        self._end = RoleEndpoint(link.max_bytes)
        self._address = link.address
        try:
            self._socket.setsockopt(zmq.IDENTITY, name.encode())
            self._socket.setsockopt(zmq.LINGER, LINGER_MS)
            self._socket.setsockopt(zmq.RECONNECT_IVL, 100)
            self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
            self._socket.setsockopt(zmq.SNDHWM, 0)
            self._socket.setsockopt(zmq.RCVHWM, 0)
            self._socket.setsockopt(zmq.MAXMSGSIZE, link.max_bytes)
            self._socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
            if link.curve_keys:
                enter(self._socket, link.curve_keys)
            self._socket.connect(link.address)
        except (UserError, zmq.ZMQError) as error:
            self.close()
            if isinstance(error, UserError):
                raise
            raise UserError(
                f"cannot connect to {link.address!r} ({error}); an address looks like "
                "tcp://HOST:PORT"
            ) from error

    def close(self) -> None:
        """Close after what was sent is out (two seconds at most)."""
        self._socket.close()
        if not self._shared:
            self._context.term()


class Dealer(_ConnectedSocket):
    """A role's socket, for asyncio. `context`: a shared one, which the caller ends."""

    def __init__(
        self, link: Link, name: str, *, context: zmq.asyncio.Context | None = None
    ) -> None:
        shared = context is not None
        super().__init__(context or zmq.asyncio.Context(), link, name, shared=shared)
        self._arriving: asyncio.Future[list[bytes]] | None = None

    async def send(self, message: Message) -> None:
        """Queue a message; it waits in memory while there is no connection. RunFailedError where
        the other side has turned this process away for good."""
        await self._put(self._end.encode(message))

    async def _put(self, frames: Frames) -> None:
        """This never waits, so that a `receive` is cancelled before or after it."""
        try:
            await self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again as error:
            raise _turned_away(self._address) from error

    async def receive(self) -> Message:
        """The next good message."""
        message = await self.receive_within(None)
        assert message is not None
        return message

    async def receive_within(self, timeout_s: float | None) -> Message | None:
        """The next good message; None when the time is over. No message is lost then, nor when the
        caller is cancelled: the next caller receives it."""
        while True:
            if self._arriving is None:
                self._arriving = self._socket.recv_multipart()
            arriving = self._arriving
            if not arriving.done():
                await asyncio.wait((arriving,), timeout=timeout_s)
            if not arriving.done():
                return None
            self._arriving = None
            message, answers = self._end.decode(arriving.result())
            for frames in answers:
                await self._put(frames)
            if message is not None:
                return message


class BlockingDealer(_ConnectedSocket):
    """A role's socket, without an event loop. One thread only."""

    def __init__(self, link: Link, name: str) -> None:
        super().__init__(zmq.Context(), link, name)

    def send(self, message: Message) -> None:
        """Queue a message; it waits in memory while there is no connection. RunFailedError where
        the other side has turned this process away for good."""
        self._put(self._end.encode(message))

    def _put(self, frames: Frames) -> None:
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again as error:
            raise _turned_away(self._address) from error

    def receive(self, timeout_s: float | None = None) -> Message | None:
        """The next good message; None when the time is over."""
        while _arrives(self._socket, timeout_s):
            message, answers = self._end.decode(self._socket.recv_multipart())
            for frames in answers:
                self._put(frames)
            if message is not None:
                return message
        return None


@contextlib.contextmanager
def sending_heartbeats(
    link: Link, name: str, *, interval_s: float, says: Callable[[], Message | None] = Heartbeat
) -> Iterator[None]:
    """Send heartbeats from a thread and a socket of their own (`IDENTITY#pulse`), or what `says`
    gives instead (None: nothing), so that a process in a long step is not taken for dead."""
    over = threading.Event()

    def beat() -> None:
        with (
            contextlib.closing(BlockingDealer(link, name + PULSE_SUFFIX)) as dealer,
            contextlib.suppress(RunFailedError),  # The other socket says so.
        ):
            while not over.is_set():
                if (message := says()) is not None:
                    dealer.send(message)
                over.wait(interval_s)

    thread = threading.Thread(target=beat, name="pulse", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=3.0)
