"""A proxy that resets connections: all of them when it is told to, or one as soon as it reads a
message of a kind, which is then lost together with what lay in the same buffer. It reads only what
is not encrypted."""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Iterable
from socket import SO_LINGER, SOL_SOCKET
from typing import Literal

BLOCK = 1 << 16
_AT_ONCE = struct.pack("ii", 1, 0)
"""Closing sends RST, and nothing that waits."""
Way = Literal["to", "from"]
"""To the coordinator, or from it."""


def mark_of(kind: str) -> bytes:
    """How the header of a message of this kind begins, in msgpack."""
    return b"\xa4type" + bytes([0xA0 + len(kind)]) + kind.encode()


class Breaker:
    """`address`: where to connect. `cut`: what was lost so far, in order."""

    def __init__(self, target: str, kinds: Iterable[tuple[Way, str]] = ()) -> None:
        """`kinds`: each is lost once."""
        host, port = target.removeprefix("tcp://").rsplit(":", 1)
        self._target = host, int(port)
        self.left: dict[Way, set[str]] = {"to": set(), "from": set()}
        for way, kind in kinds:
            self.left[way].add(kind)
        self.cut: list[tuple[Way, str]] = []
        self.address = ""
        self._connections: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()

    def reset(self) -> None:
        """RST to both ends of every connection."""
        for connection in list(self._connections):
            _abort(connection)

    async def serve(self, client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        """One connection."""
        try:
            server, words = await asyncio.open_connection(*self._target)
        except OSError:
            answers.transport.abort()
            return
        connection = words, answers
        self._connections.add(connection)
        try:
            ways = (self._pump("to", client, words), self._pump("from", server, answers))
            tasks = [asyncio.create_task(way) for way in ways]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            _abort(connection)
            self._connections.discard(connection)

    async def _pump(
        self, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Pass on what comes, until a kind comes that is to be lost."""
        before = b""
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(BLOCK):
                for kind in sorted(self.left[way]):
                    if mark_of(kind) in before + data:
                        self.left[way].discard(kind)
                        self.cut.append((way, kind))
                        return
                before = data[-64:]
                writer.write(data)
                await writer.drain()


def _abort(connection: tuple[asyncio.StreamWriter, asyncio.StreamWriter]) -> None:
    for writer in connection:
        if not writer.transport.is_closing():
            socket = writer.get_extra_info("socket")
            socket.setsockopt(SOL_SOCKET, SO_LINGER, _AT_ONCE)
            writer.transport.abort()


@contextlib.asynccontextmanager
async def breaking(target: str, kinds: Iterable[tuple[Way, str]] = ()) -> AsyncIterator[Breaker]:
    """A breaker in front of `target` (tcp://HOST:PORT)."""
    breaker = Breaker(target, kinds)
    server = await asyncio.start_server(breaker.serve, "127.0.0.1", 0)
    breaker.address = f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield breaker
    finally:
        server.close()
        breaker.reset()
