"""A coordinator that follows a test's script, over a real socket."""

import asyncio
from collections.abc import Callable

from headrace.protocol.messages.control import (
    ChunkAck,
    Chunks,
    Hello,
    Message,
    TrajectoryChunk,
    Welcome,
)
from headrace.protocol.transport.sockets import Router

NAME = "generator-0"


class ScriptedCoordinator:
    """Receives everything, acknowledges chunks unless told not to; with a configuration it
    answers Hello with Welcome."""

    def __init__(self, config: str | None = None) -> None:
        self.config = config
        self.router = Router("127.0.0.1", 0, max_bytes=1 << 20)
        self.peer = NAME
        self.seen: list[Message] = []
        self.chunks: list[TrajectoryChunk] = []
        self.acknowledge = True
        self._news = asyncio.Event()

    async def serve(self) -> None:
        while True:
            self.peer, message = await self.router.receive()
            self.seen.append(message)
            if isinstance(message, Hello) and self.config is not None:
                await self.send(Welcome(run_id="r", run_dir="d", config=self.config))
            if isinstance(message, Chunks):
                self.chunks += message.chunks
                if self.acknowledge:
                    acked = [(c.trajectory_id, c.chunk_index) for c in message.chunks]
                    await self.send(ChunkAck(acked=acked))
            self._news.set()

    async def send(self, message: Message) -> None:
        assert await self.router.send(self.peer, message)

    async def until(self, condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
        async with asyncio.timeout(timeout_s):
            while not condition():
                self._news.clear()
                await self._news.wait()

    def got(self, kind: type[Message]) -> list[Message]:
        return [message for message in self.seen if isinstance(message, kind)]

    def of(self, lease_id: int) -> list[TrajectoryChunk]:
        return [chunk for chunk in self.chunks if chunk.lease_id == lease_id]

    def ended(self, *lease_ids: int) -> bool:
        return all(any(c.finish for c in self.of(lease_id)) for lease_id in lease_ids)
