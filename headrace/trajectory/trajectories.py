"""Trajectories and groups as records built them, in memory.

In: journaled chunks. Out: arrays and streams of any stretch of positions. Promises:
tokens are appended in order and exactly once; a stretch of the streams says about each token what
its chunk said.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from headrace.protocol.messages.control import Purpose
from headrace.protocol.records.record_types import (
    ChunkArrived,
    GroupIssued,
    LineScore,
    TrajectoryStatus,
)
from headrace.protocol.token_spans import (
    PLAIN,
    Coefficient,
    EnvironmentStep,
    Float32,
    Int32,
    Mark,
    Piece,
    Reward,
    Span,
    Streams,
    TurnRun,
    Weight,
    joined_runs,
)
from headrace.trajectory.transitions import ValueState
from headrace.trajectory.windows import Window


@dataclass(slots=True)
class Trajectory:
    """One answer from its first token to its last, finished or not: everything after the opening.

    Attributes:
        opening: the tokens before position 0; the group shares them. prefix: how many of them, at
        its end, begin the answer (probes). length: tokens so far, policy and environment. sampled:
        how many of these the policy sampled. in_windows: how many sampled tokens its windows hold.
        closed: how many of its windows are in state `closed`. windows: those that are complete, in
        order. spans: which weights sampled what. pieces: who wrote what; empty as long as the
        policy sampled everything. rewards: what was earned where; known
        once it is scored, or as the environment said. lines: what a source has said of its lines.
        lines_through: a source has answered for the lines that end before this position. paid:
        those of the rewards that lines got before its outcome was known. correct: whether the score
        says that it is right; None where that is not known. audit_status: of the second source's
        score; None where there is none. value: where it is for the value model; None before it has
        a good reward. value_update: the update that has it or trained on it; -1 before. next_chunk:
        index of the next chunk. failures: requests for it that failed. paused: it waits for its
        environment's word, at first the reset's. steps: what the environment has said, the reset
        first.
    """

    trajectory_id: int
    group_id: int
    purpose: Purpose
    opening: Int32
    seed: int
    prefix: int = 0
    status: TrajectoryStatus = "running"
    reward: float | None = None
    reward_status: str | None = None
    reward_model: str | None = None
    correct: bool | None = None
    audit_status: str | None = None
    value: ValueState | None = None
    value_update: int = -1
    next_chunk: int = 0
    failures: int = 0
    paused: bool = False
    length: int = 0
    sampled: int = 0
    in_windows: int = 0
    closed: int = 0
    windows: list[Window] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    weights: list[Weight] = field(default_factory=list)
    rewards: list[Reward] = field(default_factory=list)
    coefficients: list[Coefficient] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    lines: list[LineScore] = field(default_factory=list)
    lines_through: int = 0
    paid: list[Reward] = field(default_factory=list)
    steps: list[EnvironmentStep] = field(default_factory=list)
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
    def settled(self) -> bool:
        """Scored, or failed for good."""
        return self.reward_status is not None or self.status == "failed"

    @property
    def open_start(self) -> int:
        """First position of the window being filled."""
        return self.windows[-1].end if self.windows else 0

    @property
    def open_tokens(self) -> int:
        """Sampled tokens in the window being filled."""
        return self.sampled - self.in_windows

    @property
    def last_sampled(self) -> int:
        """Position of the last sampled token; 0 where there is none."""
        return self.spans[-1].end - 1 if self.spans else 0

    @property
    def turn_tokens(self) -> int:
        """Number of sampled tokens of the present or last turn."""
        return self.turn(self.pieces[-1].turn if self.pieces else 0).size

    def turn(self, number: int) -> Int32:
        """[n] what the policy sampled in a turn; -1: in its last one."""
        return self.tokens[self.turn_positions(number)]

    def turn_positions(self, number: int) -> npt.NDArray[np.int64]:
        """Return [n] positions of a turn's tokens; -1: of the last one."""
        own = [p for p in self.pieces if p.source == "policy"]
        if not self.pieces:
            return np.arange(self.length)
        number = own[-1].turn if own and number < 0 else number
        runs = [np.arange(p.start, p.end) for p in own if p.turn == number]
        return np.concatenate([np.arange(0), *runs])

    @property
    def tokens(self) -> Int32:
        """[length] all tokens so far."""
        if len(self._tokens) != 1:
            self._tokens = [np.concatenate([np.zeros(0, np.int32), *self._tokens])]
        return self._tokens[0]

    @property
    def logprobs(self) -> Float32:
        """[length] behaviour logprobs; 0 where a token was inserted."""
        if len(self._logprobs) != 1:
            self._logprobs = [np.concatenate([np.zeros(0, np.float32), *self._logprobs])]
        return self._logprobs[0]

    def append(self, chunk: ChunkArrived) -> int:
        """Add the next chunk (checked by the caller); return its number of sampled tokens."""
        assert chunk.start == self.length
        assert chunk.chunk_index == self.next_chunk
        size, sampled = chunk.token_ids.size, 0
        self.refill(chunk)
        for span in chunk.spans:
            sampled += span.end - span.start
            last = self.spans[-1] if self.spans else None
            if last and last.version == span.version and last.end == span.start:
                self.spans[-1] = Span(last.version, last.start, span.end)
            else:
                self.spans.append(span)
        if chunk.streams is not None or self.pieces:
            self._mark(chunk, chunk.streams or PLAIN)
        self.length += size
        self.sampled += sampled
        self.next_chunk += 1
        return sampled

    def drop_tokens(self) -> None:
        """Let go of the tokens and logprobs, and of nothing else: `refill` brings them back."""
        self._tokens, self._logprobs = [], []

    @property
    def is_full(self) -> bool:
        """Return whether it has the tokens and logprobs of all its chunks."""
        sizes = {sum(map(len, arrays)) for arrays in (self._tokens, self._logprobs)}
        return sizes == {self.length}

    def refill(self, chunk: ChunkArrived) -> None:
        """Take the tokens and logprobs of its next chunk again; all else is known."""
        self._tokens.append(np.array(chunk.token_ids, np.int32))
        self._logprobs.append(np.array(chunk.logprobs, np.float32))

    def _mark(self, chunk: ChunkArrived, streams: Streams) -> None:
        """Add a chunk's streams."""
        if streams.pieces or self.pieces:
            add_pieces(self.pieces, streams.pieces, chunk.start, chunk.start + chunk.token_ids.size)
        self.weights += streams.weights
        self.rewards += streams.rewards
        self.coefficients += streams.coefficients
        self.marks += streams.marks
        if streams.step is not None:
            self.steps.append(replace(streams.step, tools=[]))  # Long, and in the journal.
            self.paused = False

    def spans_between(self, start: int, end: int) -> list[Span]:
        """Version spans clipped to [start, end)."""
        return [
            Span(s.version, max(s.start, start), min(s.end, end))
            for s in self.spans
            if max(s.start, start) < min(s.end, end)
        ]

    def sampled_between(self, start: int, end: int) -> list[tuple[int, int]]:
        """Runs of sampled positions in [start, end), joined where they touch."""
        return joined_runs((s.start, s.end) for s in self.spans_between(start, end)) or []

    def sampled_tokens(self) -> Int32:
        """[sampled] the tokens that the policy wrote."""
        if not self.pieces:
            return self.tokens
        runs = self.sampled_between(0, self.length)
        return np.concatenate([self.tokens[:0], *(self.tokens[a:b] for a, b in runs)])

    def answer_tokens(self) -> Int32:
        """[prefix + sampled] the answer's tokens, those of a probe's prefix included."""
        if not self.prefix:
            return self.sampled_tokens()
        begun = self.opening[self.opening.size - self.prefix :]
        return np.concatenate([begun, self.sampled_tokens()])

    def prompt_tokens(self) -> Int32:
        """Return the opening without a probe's prefix."""
        return self.opening[: self.opening.size - self.prefix]

    def turns_between(self, start: int, end: int) -> list[TurnRun]:
        """Return the policy's turns with tokens in [start, end), up to `end`; the environment's
        answer, or the end of all, says where one has ended."""
        own = [p for p in self.pieces if p.source == "policy"]
        runs: dict[int, tuple[int, int]] = {} if own else {0: (0, self.length)}
        for piece in own:
            first, _ = runs.get(piece.turn, (piece.start, 0))
            runs[piece.turn] = first, piece.end
        return [
            TurnRun(
                first,
                min(last, end),
                last <= end and (self.ended or turn < len(self.steps) - 1),
                self.steps[turn].act if turn < len(self.steps) else 0,
            )
            for turn, (first, last) in runs.items()
            if first < end and last > start
        ]

    def position_after(self, start: int, tokens: int) -> int:
        """The position right after the next `tokens` sampled ones from `start` on."""
        if not self.pieces:
            return start + tokens
        for first, last in self.sampled_between(start, self.length):
            if last - first >= tokens:
                return first + tokens
            tokens -= last - first
        raise ValueError(f"trajectory {self.trajectory_id} has too few tokens from {start} on")


def issued_again(group: GroupIssued, **its_own: Any) -> GroupIssued:
    """Return the record of another group of this prompt; `its_own`: ids, opening, seeds."""
    fresh = {"at": time.time(), "domain_position": 0, "prefix": 0}
    return replace(group, **(fresh | its_own))


def add_pieces(known: list[Piece], new: Sequence[Piece], start: int, end: int) -> None:
    """Append the pieces of positions [start, end) to those before, joined where they are alike.

    Without new ones the policy goes on in its turn; without earlier ones it wrote all before."""
    if start and not known:
        known.append(Piece("policy", "assistant", 0, 0, start))
    if not new and start < end:
        new = [Piece("policy", "assistant", known[-1].turn if known else 0, start, end)]
    for piece in new:
        joined = replace(piece, start=known[-1].start) if known else piece
        if known and joined == replace(known[-1], end=piece.end):
            known[-1] = joined
        else:
            known.append(piece)
