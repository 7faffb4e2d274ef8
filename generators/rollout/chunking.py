"""Chunks from tokens: the deltas of one lease in, TrajectoryChunk pieces out.

Pieces are cut after `chunk_tokens`, at every window border, at the end and on hold. What lies
behind a border waits until the window before it is acknowledged: a hold comes earlier, and throws
away the ends of answers there like all else, so that they are no more frequent than elsewhere. The
pieces' concatenation is the stream (less the tokens thrown away by a hold), no piece crosses a
border, the spans of a piece cover exactly its tokens, its marks are of its own tokens, and exactly
the last piece has `finish`. Between cuts a token costs two list appends: numpy comes in at the cut.
"""

import numpy as np

from generators.engine import DeltaFinish, TokenDelta
from headrace.protocol.messages.control import Finish, Lease, TrajectoryChunk
from headrace.protocol.token_spans import Mark, Span, Streams


class ChunkCutter:
    """Cutter of the stream of one lease into chunks."""

    def __init__(self, lease: Lease, chunk_tokens: int) -> None:
        self._lease, self._chunk_tokens = lease, chunk_tokens
        self._start = len(lease.prefix_ids)
        self._next_index = lease.next_chunk
        self._token_ids: list[int] = []
        self._logprobs: list[float] = []
        self._versions: list[tuple[int, int]] = []
        """Versions, each with the buffer index of its first token."""
        self._hot = -1
        """Position of the hot token; -1: none is."""
        self._finish: DeltaFinish | None = None
        self.awaited: tuple[int, int] | None = None
        """Trajectory and index of the chunk whose acknowledgement `go_on` follows."""
        self._room = self._next_cut()
        self.ended = False

    @property
    def position(self) -> int:
        """Response position of the next token, prefix included."""
        return self._start + len(self._token_ids)

    @property
    def pending(self) -> int:
        """Number of tokens that are in no chunk yet."""
        return len(self._token_ids)

    def add(self, delta: TokenDelta) -> list[TrajectoryChunk]:
        """Take a delta, and return the chunks that may be sent now."""
        if delta.token_ids:
            if not self._versions or self._versions[-1][0] != delta.version:
                self._versions.append((delta.version, len(self._token_ids)))
            if delta.hot:
                self._hot = self.position
            self._token_ids += delta.token_ids
            self._logprobs += delta.logprobs
        self._finish = delta.finish
        return self._due()

    def go_on(self) -> list[TrajectoryChunk]:
        """Return the chunks that waited for the acknowledgement of `awaited`."""
        self.awaited = None
        return self._due()

    def hold(self, at: int) -> tuple[list[TrajectoryChunk], int]:
        """End the lease; return its last chunks, up to `at` (-1: all), and the tokens lost."""
        chunks = self._due(at_once=True) if at < 0 else []
        exist = len(self._token_ids)
        keep = exist if at < 0 else min(exist, max(0, at - self._start))
        if not self.ended:
            chunks.append(self._cut(keep, "held"))
        return chunks, exist - keep

    def fail(self, error: str) -> list[TrajectoryChunk]:
        """End the lease now because it cannot be served."""
        return [*self._due(at_once=True), self._cut(len(self._token_ids), "failed", error)]

    def _due(self, *, at_once: bool = False) -> list[TrajectoryChunk]:
        """Cut what is complete; `at_once`: behind an unacknowledged border, too."""
        chunks, finish = list[TrajectoryChunk](), self._finish
        while (at_once or self.awaited is None) and not self.ended:
            if len(self._token_ids) >= self._room + (finish is not None):
                chunks.append(self._cut(self._room, None))
            elif finish is not None:
                chunks.append(self._cut(len(self._token_ids), self._finish_of(finish)))
            else:
                break
        return chunks

    def _finish_of(self, finish: DeltaFinish) -> Finish:
        if finish == "stop":
            return "stop"
        if finish == "aborted":
            return "held"
        window_end = self._lease.stop_at
        return "window" if self.position == window_end < self._lease.max_total else "length"

    def _next_cut(self) -> int:
        window = self._lease.window
        return min(self._chunk_tokens, window - (self._start - self._lease.next_border) % window)

    def _cut(self, count: int, finish: Finish | None, error: str | None = None) -> TrajectoryChunk:
        start, lease = self._start, self._lease
        borders = [first for _, first in self._versions] + [len(self._token_ids)]
        runs = [(*run, end) for run, end in zip(self._versions, borders[1:], strict=True)]
        spans = [
            Span(version, start + first, start + min(end, count))
            for version, first, end in runs
            if first < count
        ]
        is_hot = start <= self._hot < start + count
        chunk = TrajectoryChunk(
            lease_id=lease.lease_id,
            trajectory_id=lease.trajectory_id,
            chunk_index=self._next_index,
            start=start,
            token_ids=np.array(self._token_ids[:count], dtype=np.int32),
            logprobs=np.array(self._logprobs[:count], dtype=np.float32),
            spans=spans,
            finish=finish,
            error=error,
            streams=Streams(marks=[Mark("hot", self._hot, self._hot + 1)]) if is_hot else None,
        )
        self._start += count
        self._next_index += 1
        self._room = self._next_cut()
        at_border = (self._start - lease.next_border) % lease.window == 0
        self.awaited = (chunk.trajectory_id, chunk.chunk_index) if at_border else None
        self.ended = finish is not None
        del self._token_ids[:count], self._logprobs[:count]
        self._versions = [
            (version, max(0, first - count)) for version, first, end in runs if end > count
        ]
        return chunk
