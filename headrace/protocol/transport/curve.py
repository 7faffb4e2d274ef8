"""CURVE keys: who may connect to a socket of a run, and that nobody reads along.

In: a folder with the key pairs `server` and `client`. Out: sockets that encrypt; the
binding side lets in only holders of the client key, and counts who was turned away. Promises: keys
are never readable by others than their owner, not even for a moment; who is turned away costs no
memory that lasts. Beside `sockets.py` the only file that imports zmq.
"""

import secrets
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import zmq
import zmq.auth
from zmq.auth.thread import ThreadAuthenticator

from headrace.errors import UserError

SERVER_KEY, CLIENT_KEY = "server", "client"
_FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


def has_curve() -> bool:
    """Return whether this build of libzmq can encrypt."""
    return bool(zmq.has("curve"))


def make_keys(folder: Path) -> None:
    """Write CURVE key pairs `server` and `client` into `folder` (readable by the owner only)."""
    if not folder.exists():
        folder.mkdir(parents=True, mode=0o700)
    for name in (SERVER_KEY, CLIENT_KEY):
        if (folder / f"{name}.key_secret").exists():
            raise UserError(f"{folder} already holds keys; remove them or name another folder")
    # Made where nobody else can look, and moved when nobody else can read them.
    with tempfile.TemporaryDirectory(dir=folder) as hidden:
        for name in (CLIENT_KEY, SERVER_KEY):
            for path in map(Path, zmq.auth.create_certificates(hidden, name)):
                path.chmod(0o600)
                path.replace(folder / path.name)


def has_keys(folder: Path) -> bool:
    """Return whether all four key files are there."""
    names = (SERVER_KEY, CLIENT_KEY)
    return all((folder / f"{n}.key{s}").is_file() for n in names for s in ("", "_secret"))


def damaged_keys(folder: Path) -> Iterator[str]:
    """Yield the key pairs of a folder that are not whole, or are no pair."""
    for name in (SERVER_KEY, CLIENT_KEY):
        try:
            public, _ = zmq.auth.load_certificate(folder / f"{name}.key")
            known, secret = zmq.auth.load_certificate(folder / f"{name}.key_secret")
            if secret is None or not public == known == zmq.curve_public(secret):
                yield name
        except (OSError, ValueError, zmq.ZMQError):
            yield name


def load_key(folder: str, name: str, *, secret: bool) -> tuple[bytes, bytes | None]:
    """Return public and, if asked, secret key. UserError: none, or the secret is open to others."""
    path = Path(folder) / f"{name}.key{'_secret' if secret else ''}"
    try:
        mode = path.stat().st_mode
    except PermissionError as error:
        raise UserError(f"the CURVE key {path} is another user's, who alone can read it") from error
    except OSError as error:
        raise UserError(
            f"no CURVE key at {path}; make keys with: headrace keys {folder}"
        ) from error
    if secret and mode & 0o077:
        raise UserError(f"the secret key {path} is open to others: chmod 600 {path}")
    try:
        public, private = zmq.auth.load_certificate(path)
        if secret and zmq.curve_public(private or b"") != public:
            raise ValueError("its halves are no pair")
    except (OSError, ValueError, zmq.ZMQError) as error:
        raise UserError(f"no usable CURVE key in {path}: {error}") from error
    return public, private


def enter(socket: zmq.Socket[Any], folder: str) -> None:
    """Let a socket that is about to be connected use the client key. UserError: no usable keys."""
    public, secret = load_key(folder, CLIENT_KEY, secret=True)
    socket.curve_secretkey = secret
    socket.curve_publickey = public
    socket.curve_serverkey, _ = load_key(folder, SERVER_KEY, secret=False)


class CurveAuthenticator:
    """Key check of a socket that is about to be bound, until it is closed."""

    def __init__(self, socket: zmq.Socket[Any], folder: str) -> None:
        """UserError where there are no usable keys."""
        public, secret = load_key(folder, SERVER_KEY, secret=True)
        allowed, _ = load_key(folder, CLIENT_KEY, secret=False)
        self._socket = socket
        socket.curve_secretkey = secret
        socket.curve_publickey = public
        socket.curve_server = True
        context = zmq.Context(shadow=socket.context.underlying)
        # Without it CURVE would let in any holder of the server's public key.
        self._authenticator = ThreadAuthenticator(context)
        provider = SimpleNamespace(callback=lambda _domain, key: key == allowed)
        self._authenticator.configure_curve_callback("*", provider)
        self._authenticator.start()
        self.denied = 0
        """Connections that were turned away so far."""
        address = f"inproc://denied-{secrets.token_hex(8)}"
        socket.monitor(address, _FAILED | zmq.EVENT_MONITOR_STOPPED)
        self._events: zmq.Socket[bytes] = context.socket(zmq.PAIR)
        self._events.connect(address)
        self._thread = threading.Thread(target=self._count, name="denied", daemon=True)
        self._thread.start()

    def _count(self) -> None:
        while True:
            # The first two bytes of an event are its number.
            number = int.from_bytes(self._events.recv_multipart()[0][:2], "little")
            if number == zmq.EVENT_MONITOR_STOPPED:
                break
            self.denied += 1
        self._events.close(linger=0)

    def close(self) -> None:
        """End the count, before the socket is closed."""
        self._socket.monitor(None, 0)
        self._thread.join()

    def stop(self) -> None:
        """Refuse all, after the socket is closed."""
        self._authenticator.stop()
