"""ZeroMQ sockets that carry messages: the only file that imports zmq.

`Router` (coordinator) and `Dealer` (every role) are asyncio objects; `BlockingDealer` is for the
learner, which has no event loop. A peer's identity is its process name. What cannot be decoded is
counted by `rejected` and reported to `on_reject`; it never raises out of `receive`. `Pulse` sends
heartbeats from a thread and a socket of its own (identity `name#pulse`), so that a long step is
not taken for a death. Off loopback every socket uses CURVE keys.
"""

import asyncio
import contextlib
import ipaddress
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import zmq
import zmq.asyncio
import zmq.auth

from headrace.config.process import TransportConfig
from headrace.errors import ProtocolError, UserError
from headrace.protocol.codec import message_codec
from headrace.protocol.messages import Heartbeat, Message

PULSE_SUFFIX = "#pulse"
SERVER_KEY, CLIENT_KEY = "server", "client"


@dataclass(frozen=True)
class Link:
    """Where and how to connect: address, size limit, key folder."""

    address: str
    max_bytes: int = 64 << 20
    curve_keys: str | None = None

    @classmethod
    def from_config(cls, transport: TransportConfig, address: str) -> "Link":
        """The link of a run's transport section at `address`."""
        return cls(address, int(transport.max_message_mib * 2**20), transport.curve_keys)


def is_loopback(host: str) -> bool:
    """Whether an address never leaves this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def make_keys(folder: Path) -> None:
    """Write CURVE key pairs `server` and `client` into `folder` (readable by the owner only)."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name in (SERVER_KEY, CLIENT_KEY):
        if (folder / f"{name}.key_secret").exists():
            raise UserError(f"{folder} already holds keys; remove them or name another folder")
        zmq.auth.create_certificates(folder, name)
        (folder / f"{name}.key_secret").chmod(0o600)


def _load_key(folder: str, name: str, *, secret: bool) -> tuple[bytes, bytes | None]:
    path = Path(folder) / f"{name}.key{'_secret' if secret else ''}"
    if not path.exists():
        raise UserError(f"no CURVE key at {path}; make keys with: headrace keys {folder}")
    return zmq.auth.load_certificate(path)


def _server_curve(socket: zmq.Socket[bytes], folder: str) -> None:
    public, secret = _load_key(folder, SERVER_KEY, secret=True)
    socket.curve_secretkey = secret
    socket.curve_publickey = public
    socket.curve_server = True


def _client_curve(socket: zmq.Socket[bytes], folder: str) -> None:
    public, secret = _load_key(folder, CLIENT_KEY, secret=True)
    socket.curve_secretkey = secret
    socket.curve_publickey = public
    socket.curve_serverkey, _ = _load_key(folder, SERVER_KEY, secret=False)


def _prepare_dealer(socket: zmq.Socket[bytes], link: Link, identity: str) -> None:
    socket.setsockopt(zmq.IDENTITY, identity.encode())
    socket.setsockopt(zmq.LINGER, 2000)
    socket.setsockopt(zmq.RECONNECT_IVL, 100)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, link.max_bytes)
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    if link.curve_keys:
        _client_curve(socket, link.curve_keys)
    socket.connect(link.address)


class Router:
    """The coordinator's socket: bind, receive from all, send to one."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        max_bytes: int,
        curve_keys: str | None = None,
        on_reject: Callable[[str, str], None] | None = None,
        authenticate: bool = True,
    ) -> None:
        if not is_loopback(host) and not curve_keys:
            raise UserError(
                f"refusing to bind {host} without keys: make them with `headrace keys DIR` and set "
                "transport.curve_keys=DIR"
            )
        self._context = zmq.asyncio.Context()
        self._auth: zmq.asyncio.Socket | None = None
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._socket.setsockopt(zmq.LINGER, 2000)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.setsockopt(zmq.MAXMSGSIZE, max_bytes)
        if curve_keys:
            self._allow_only(curve_keys)
            _server_curve(self._socket, curve_keys)
        try:
            self._socket.bind(f"tcp://{host}:{port or '*'}")
        except zmq.ZMQError as error:
            self.close()
            raise UserError(
                f"cannot bind {host}:{port} ({error}); choose another with transport.port=PORT "
                "(0 takes a free one)"
            ) from error
        endpoint = self._socket.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(endpoint, bytes)
        self.address = endpoint.rstrip(b"\0").decode()
        self.port = int(self.address.rsplit(":", 1)[1])
        self._codec = message_codec(max_bytes=max_bytes)
        self._on_reject = on_reject
        self.rejected = 0

    def _allow_only(self, curve_keys: str) -> None:
        """ZAP handler: only the client key of the folder may speak."""
        allowed, _ = _load_key(curve_keys, CLIENT_KEY, secret=False)
        self._allowed_key = allowed
        self._auth = self._context.socket(zmq.REP)
        self._auth.bind("inproc://zeromq.zap.01")
        self._auth_task: asyncio.Task[None] | None = None

    async def serve_authentication(self) -> None:
        """Answer key checks for as long as the task lives; a no-op without CURVE."""
        if self._auth is None:
            return
        import zmq.utils.z85 as z85

        while True:
            version, request, *_rest, key = await self._auth.recv_multipart()
            known = z85.encode(key) == self._allowed_key
            status = (b"200", b"OK", b"client") if known else (b"400", b"unknown key", b"")
            await self._auth.send_multipart([version, request, *status, b""])

    async def receive(self) -> tuple[str, Message]:
        """The next good message and its sender."""
        while True:
            identity, *frames = await self._socket.recv_multipart()
            name = identity.decode(errors="replace")
            try:
                return name.removesuffix(PULSE_SUFFIX), self._codec.decode(frames)
            except ProtocolError as error:
                self.rejected += 1
                if self._on_reject:
                    self._on_reject(name, str(error))

    async def send(self, name: str, message: Message) -> bool:
        """Send; False when nobody of that name is connected."""
        try:
            await self._socket.send_multipart([name.encode(), *self._codec.encode(message)])
        except zmq.ZMQError as error:
            if error.errno in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                return False
            raise
        return True

    def close(self) -> None:
        """Close after what was sent is out (two seconds at most)."""
        self._socket.close()
        if self._auth is not None:
            self._auth.close()
        self._context.term() if self._auth is None else self._context.destroy(linger=2000)


class Dealer:
    """A role's socket, for asyncio."""

    def __init__(self, link: Link, name: str) -> None:
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.DEALER)
        _prepare_dealer(self._socket, link, name)
        self._codec = message_codec(max_bytes=link.max_bytes)
        self.rejected = 0

    async def send(self, message: Message) -> None:
        """Queue a message; it waits in memory while there is no connection."""
        await self._socket.send_multipart(self._codec.encode(message))

    async def receive(self) -> Message:
        """The next good message."""
        while True:
            frames = await self._socket.recv_multipart()
            try:
                return self._codec.decode(frames)
            except ProtocolError:
                self.rejected += 1

    def close(self) -> None:
        """Close after what was sent is out (two seconds at most)."""
        self._socket.close()
        self._context.term()


class BlockingDealer:
    """A role's socket, without an event loop. One thread only."""

    def __init__(self, link: Link, name: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        _prepare_dealer(self._socket, link, name)
        self._codec = message_codec(max_bytes=link.max_bytes)
        self.rejected = 0

    def send(self, message: Message) -> None:
        """Queue a message; it waits in memory while there is no connection."""
        self._socket.send_multipart(self._codec.encode(message))

    def receive(self, timeout_s: float | None = None) -> Message | None:
        """The next good message; None when the time is over."""
        while True:
            wait = -1 if timeout_s is None else max(0, int(timeout_s * 1000))
            if not self._socket.poll(wait):
                return None
            try:
                return self._codec.decode(self._socket.recv_multipart())
            except ProtocolError:
                self.rejected += 1

    def close(self) -> None:
        """Close after what was sent is out (two seconds at most)."""
        self._socket.close()
        self._context.term()


class Pulse(contextlib.AbstractContextManager["Pulse"]):
    """Heartbeats from a thread of its own, with the process's gauges."""

    def __init__(
        self,
        link: Link,
        name: str,
        *,
        interval_s: float,
        stats: Callable[[], dict[str, float]] | None = None,
    ) -> None:
        self._link, self._name, self._interval_s = link, name, interval_s
        self._stats = stats or dict
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="pulse", daemon=True)

    def __enter__(self) -> "Pulse":
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join(timeout=3.0)

    def _beat(self) -> None:
        dealer = BlockingDealer(self._link, self._name + PULSE_SUFFIX)
        try:
            while not self._stop.is_set():
                dealer.send(Heartbeat(stats=self._stats()))
                self._stop.wait(self._interval_s)
        finally:
            dealer.close()
