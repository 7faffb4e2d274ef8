"""Chunks on their way to the coordinator, kept until they are acknowledged.

In: chunks and acknowledgements. Out: Chunks messages. Chunks gather until the last message is
acknowledged, so that messages grow while the coordinator is busy; one that ends its lease, whose
slot is free, waits a few milliseconds only. `resend` sends all unacknowledged ones again, in order,
so that nothing is lost when the coordinator or the connection goes away. Between `pause` and
`resend` they are kept and not sent: after its Hello a generator sends nothing before the answer, so
that no chunk overtakes those before it. Nothing here blocks; memory is bounded by the tokens that
the live leases may generate.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable

from headrace.protocol.messages.control import ChunkAck, Chunks, TrajectoryChunk
from headrace.protocol.transport.codec import in_parts

Send = Callable[[Chunks], Awaitable[None]]
ACK_S = 0.5
"""Maximum wait for the last message's acknowledgement."""


class Outbox:
    """Outbox of unacknowledged chunks, by (trajectory_id, chunk_index)."""

    def __init__(self, send: Send, *, gather_s: float = 0.005, max_bytes: int = 8 << 20) -> None:
        self._send, self._gather_s, self._max_bytes = send, gather_s, max_bytes
        self._waiting: list[TrajectoryChunk] = []
        self._unacked: dict[tuple[int, int], tuple[TrajectoryChunk, float]] = {}
        """Chunks, each with the time at which it was sent last; the oldest comes first."""
        self._wake = asyncio.Event()
        self._empty, self._goes = asyncio.Event(), asyncio.Event()
        self._empty.set()
        self._goes.set()
        self.paused = False

    def pause(self) -> None:
        """Send nothing until `resend`."""
        self.paused = True

    def leases(self) -> set[int]:
        """Return the leases that have unacknowledged chunks."""
        return {chunk.lease_id for chunk, _ in self._unacked.values()}

    def waits_since(self) -> float:
        """Return when (time.monotonic) the oldest unacknowledged chunk was sent, or inf."""
        sent_at = (at for _, at in self._unacked.values())
        return math.inf if self.paused else next(sent_at, math.inf)

    def put(self, chunk: TrajectoryChunk) -> None:
        """Send a chunk soon, and keep it until it is acknowledged."""
        self._unacked[chunk.trajectory_id, chunk.chunk_index] = chunk, time.monotonic()
        self._waiting.append(chunk)
        self._empty.clear()
        self._wake.set()
        if chunk.finish is not None:
            self._goes.set()

    def acknowledge(self, ack: ChunkAck) -> None:
        """Forget the chunks that the coordinator has recorded."""
        for key in ack.acked:
            self._unacked.pop(key, None)
        if len(self._unacked) <= len(self._waiting):
            self._goes.set()
        if not self._unacked:
            self._empty.set()

    def resend(self) -> None:
        """Send everything unacknowledged again, and all that follows."""
        self.paused = False
        self._waiting, now = [chunk for chunk, _ in self._unacked.values()], time.monotonic()
        self._unacked = {key: (chunk, now) for key, (chunk, _) in self._unacked.items()}
        if self._waiting:
            self._wake.set()
            self._goes.set()

    async def run(self) -> None:
        """Send gathered chunks, for as long as the task lives."""
        while True:
            await self._wake.wait()
            await asyncio.sleep(self._gather_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ACK_S):
                    await self._goes.wait()
            await self.flush()

    async def flush(self) -> None:
        """Send all chunks that wait, in messages of at most about `max_bytes`."""
        self._wake.clear()
        if self.paused:
            return
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._goes.clear()
        for part in in_parts(waiting, self._max_bytes):
            await self._send(Chunks(chunks=part))

    async def drain(self, timeout_s: float) -> bool:
        """Flush and wait for all acknowledgements; False when time is over first."""
        await self.flush()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()
        return self._empty.is_set()
