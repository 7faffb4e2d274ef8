"""Trajectories, their windows and their groups, as the coordinator holds them in memory.

Comes in: journaled chunks. Goes out: arrays for batches, text for rewards. Promises: tokens are
appended in order and exactly once; a window covers response positions [index * W, end) and changes
state only through `state.State`.
"""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from headrace.protocol.messages import Float32, Int32, Purpose, Span
from headrace.protocol.records import ChunkArrived, TrajectoryStatus

WindowState = Literal["waiting", "ready", "taken", "trained", "dropped"]


def window_id(trajectory_id: int, index: int) -> int:
    """The id of a trajectory's window."""
    return (trajectory_id << 16) | index


@dataclass(slots=True)
class Window:
    """A complete window. waiting: its reward or its group is not there yet."""

    trajectory_id: int
    index: int
    start: int
    end: int
    min_version: int
    max_version: int
    state: WindowState = "waiting"
    order: int = 0
    update: int = -1

    @property
    def window_id(self) -> int:
        """Unique in the run."""
        return window_id(self.trajectory_id, self.index)

    @property
    def tokens(self) -> int:
        """Response tokens in the window."""
        return self.end - self.start


@dataclass(slots=True)
class Trajectory:
    """One response from its first token to its last, finished or not."""

    trajectory_id: int
    group_id: int
    purpose: Purpose
    prompt_ids: Int32
    seed: int
    window_size: int
    status: TrajectoryStatus = "running"
    reward: float | None = None
    correct: bool | None = None
    """Whether the verifier calls it right; None where no score has said so."""
    reward_status: str | None = None
    value_update: int | None = None
    """Update that trained the value model on it; -1 while taken; None before."""
    lease_id: int | None = None
    generator: str | None = None
    next_chunk: int = 0
    failures: int = 0
    window_open: bool = False
    """It counts in the staleness bound as a window being generated."""
    holding: bool = False
    windows: list[Window] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    length: int = 0
    _tokens: list[Int32] = field(default_factory=list)
    _logprobs: list[Float32] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        """No more tokens will come."""
        return self.status != "running"

    @property
    def complete(self) -> bool:
        """Finished or cut at the length limit: EGAE and the critic see an end."""
        return self.status in ("finished", "truncated")

    @property
    def open_start(self) -> int:
        """First position of the window being filled."""
        return self.windows[-1].end if self.windows else 0

    @property
    def tokens(self) -> Int32:
        """All response tokens so far."""
        if len(self._tokens) != 1:
            self._tokens = [np.concatenate([np.zeros(0, np.int32), *self._tokens])]
        return self._tokens[0]

    @property
    def logprobs(self) -> Float32:
        """Behaviour logprobs of all response tokens so far."""
        if len(self._logprobs) != 1:
            self._logprobs = [np.concatenate([np.zeros(0, np.float32), *self._logprobs])]
        return self._logprobs[0]

    def append(self, chunk: ChunkArrived) -> None:
        """Add the next chunk's tokens (the caller has checked that it is the next)."""
        assert chunk.start == self.length
        assert chunk.chunk_index == self.next_chunk
        self._tokens.append(np.array(chunk.token_ids, np.int32))
        self._logprobs.append(np.array(chunk.logprobs, np.float32))
        for span in chunk.spans:
            last = self.spans[-1] if self.spans else None
            if last and last.version == span.version and last.end == span.start:
                self.spans[-1] = Span(last.version, last.start, span.end)
            else:
                self.spans.append(span)
        self.length += chunk.token_ids.size
        self.next_chunk += 1

    def spans_between(self, start: int, end: int) -> list[Span]:
        """Version spans clipped to [start, end)."""
        return [
            Span(s.version, max(s.start, start), min(s.end, end))
            for s in self.spans
            if s.start < end and s.end > start
        ]

    def close_window(self, end: int) -> Window:
        """The tokens since the last window up to `end` are a window now."""
        start = self.open_start
        versions = [span.version for span in self.spans_between(start, end)]
        window = Window(
            self.trajectory_id, len(self.windows), start, end, min(versions), max(versions)
        )
        self.windows.append(window)
        return window


@dataclass(slots=True)
class Group:
    """The trajectories of one prompt."""

    group_id: int
    prompt_id: str
    purpose: Purpose
    prompt: str
    answer: str
    info: str
    trajectory_ids: list[int]
