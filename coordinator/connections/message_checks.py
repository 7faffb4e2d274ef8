"""Checks of decoded messages against the run's state and configuration.

In: decoded chunks and scores, each field already within its own bounds
(`headrace.protocol.fields`). Out: the reason why a chunk cannot be taken, or a score made fit for
the journal. Promises: whatever passes can be applied to the state, replayed, projected to SQL and
trained: the pieces of a stretch leave no gap, its version spans cover exactly the tokens that the
policy sampled, and every run and point lies inside it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from coordinator.connections.versions import Versions
from coordinator.dispatch.leases import GrantedLease
from headrace.protocol.messages.control import Score, TrajectoryChunk
from headrace.protocol.messages.diagnostics import COLUMN_NAMES, TokenDiagnostics
from headrace.protocol.records.record_types import ChunkArrived, TrajectoryEnded, TrajectoryStatus
from headrace.protocol.token_spans import PLAIN, Span, Streams, joined_runs
from headrace.trajectory.trajectories import Trajectory
from headrace.trajectory.windows import Window

LONGEST_TEXT = 4000
"""Maximum number of characters of an error text in the journal."""
LARGEST_REWARD = 1e9
"""Rewards beyond it are mistakes: their variance would not fit the learner's floats."""
LOGPROB_ROUNDING = 0.125
"""Tolerance of a logprob above 0: the spacing of bfloat16 between 16 and 32.

An engine that subtracts logits in bfloat16 may round by it."""
_MOST_PARTS = 64
_LONGEST_PART = 128


@dataclass(frozen=True)
class TokenLimits:
    """Maximum response length of a run, and its vocabulary size."""

    max_length: int
    vocabulary: int


def holds_lease(chunk: TrajectoryChunk, lease: GrantedLease | None, sender: str) -> bool:
    """Return whether the sender holds the lease in force, and the chunk is of it."""
    return lease is not None and lease.lease_id == chunk.lease_id and lease.generator == sender


def chunk_problem(
    chunk: TrajectoryChunk,
    trajectory: Trajectory,
    lease: GrantedLease | None,
    sender: str,
    limits: TokenLimits,
    versions: Versions,
) -> str | None:
    """Return the reason why a chunk cannot be taken, or None.

    Logprobs that are not finite pass: their tokens are kept and not trained. A logprob above 0 by
    more than rounding does not pass."""
    size, start = chunk.token_ids.size, chunk.start
    if lease is None or lease.lease_id != chunk.lease_id:
        return f"lease {chunk.lease_id} is not in force"
    if lease.generator != sender:
        return f"lease {chunk.lease_id} is {lease.generator}'s"
    if chunk.chunk_index != trajectory.next_chunk or start != trajectory.length:
        return f"chunk {chunk.chunk_index} at {start} does not follow {trajectory.length}"
    if chunk.logprobs.size != size or (size == 0 and chunk.finish is None):
        return "logprobs and tokens differ in number"
    if not trajectory.sampled and not chunk.spans and chunk.finish in ("stop", "length"):
        return "a finished response has at least one token"
    if trajectory.sampled + size > limits.max_length:
        return "longer than max_response_length"
    # Read as unsigned, a negative token is a large one.
    if size and int(chunk.token_ids.view(np.uint32).max()) >= limits.vocabulary:
        return f"a token is not in the vocabulary of {limits.vocabulary}"
    if size and not chunk.logprobs.max() <= LOGPROB_ROUNDING and _above_rounding(chunk):
        return "a logprob is above 0"
    for span in chunk.spans:
        if not versions.knows(span.version):
            return f"weight version {span.version} was never published"
    return stretch_problem(start, size, chunk.spans, chunk.streams)


def arrival(sender: str, chunk: TrajectoryChunk) -> ChunkArrived:
    """Return the record of a chunk that is taken."""
    return ChunkArrived(
        trajectory_id=chunk.trajectory_id,
        lease_id=chunk.lease_id,
        chunk_index=chunk.chunk_index,
        generator=sender,
        start=chunk.start,
        token_ids=chunk.token_ids,
        logprobs=chunk.logprobs,
        spans=chunk.spans,
        finish=chunk.finish,
        streams=chunk.streams,
    )


def end_record(
    trajectory: Trajectory, status: TrajectoryStatus, error: str | None = None
) -> TrajectoryEnded:
    """Return the record of a trajectory's end; `error`: its reason, or the limit."""
    key, length = trajectory.trajectory_id, trajectory.length
    return TrajectoryEnded(trajectory_id=key, status=status, length=length, error=cut(error))


def _above_rounding(chunk: TrajectoryChunk) -> bool:
    logprobs = chunk.logprobs[np.isfinite(chunk.logprobs)]
    return bool((logprobs > LOGPROB_ROUNDING).any())


def sound_score(score: Score) -> Score:
    """Return a score fit for the journal, with short texts and a few parts.

    A reward, also of one of several lines, that is not finite or too large makes it `invalid`, so
    that the trajectory has a score anyway."""
    numbers = [score.reward, *(line for line in score.lines if line is not None)]
    bad = [n for n in numbers if not math.isfinite(n) or abs(n) > LARGEST_REWARD]
    parts = {
        name.replace("\0", "\ufffd")[:_LONGEST_PART]: value
        for name, value in list(score.parts.items())[:_MOST_PARTS]
    }
    error = cut(score.error)
    # A sibling has none of its own.
    siblings = [sound_score(msgspec.structs.replace(s, siblings=[])) for s in score.siblings]
    if score.status == "ok" and bad:
        error = f"the reward {bad[0]:g} is not between {-LARGEST_REWARD:g} and the opposite"
        return msgspec.structs.replace(
            score, status="invalid", reward=0.0, parts=parts, error=error, lines=[], siblings=[]
        )
    return msgspec.structs.replace(score, parts=parts, error=error, siblings=siblings)


def diagnostics_problem(diagnostics: list[TokenDiagnostics], windows: list[Window]) -> str | None:
    """Return the reason why diagnostics do not fit the windows of a batch, or None."""
    by_id = {window.window_id: window for window in windows}
    for row in diagnostics:
        window = by_id.get(row.window_id)
        if window is None or window.trajectory_id != row.trajectory_id:
            return f"window {row.window_id} is not in the batch"
        sizes = {array.size for array in row.columns.values()}
        if row.start != window.start or sizes != {window.end - window.start}:
            return f"the diagnostics of window {row.window_id} do not cover it"
        if set(row.columns) != set(COLUMN_NAMES):
            return f"the diagnostics of window {row.window_id} have other columns"
    return None


def cut(text: str | None) -> str | None:
    """Cut a text to LONGEST_TEXT characters."""
    if text is None or len(text) <= LONGEST_TEXT:
        return text
    return text[:LONGEST_TEXT] + " ..."


_UNCOVERED = "version spans do not cover the sampled tokens"


def stretch_problem(
    start: int, size: int, spans: Sequence[Span], streams: Streams | None
) -> str | None:
    """Return what is wrong with positions [start, start + size), in words, or None."""
    end = start + size
    if streams is None and len(spans) == 1 and size:
        # Nearly all there is: one answer under one version.
        whole = (spans[0].start, spans[0].end) == (start, end)
        return None if whole else _UNCOVERED
    streams = streams or PLAIN
    if streams.step is not None:
        return "a generator speaks for an environment"
    sampled = [(start, end)] if size else []
    if streams.pieces:
        if joined_runs((piece.start, piece.end) for piece in streams.pieces) != [(start, end)]:
            return "pieces do not cover the tokens"
        sampled = [(p.start, p.end) for p in streams.pieces if p.source == "policy"]
    covered = joined_runs((span.start, span.end) for span in spans)
    if covered is None or covered != joined_runs(sampled):
        return _UNCOVERED
    inside = [(run.start, run.end) for run in streams.weights]
    inside += [(run.start, run.end) for run in streams.coefficients]
    inside += [(run.start, run.end) for run in streams.marks]
    if any(not start <= first < last <= end for first, last in inside):
        return "a run of a stream lies outside the tokens"
    if any(not start <= reward.position < end for reward in streams.rewards):
        return "a reward lies outside the tokens"
    if any(not (math.isfinite(w.value) and w.value >= 0) for w in streams.weights):
        return "a loss weight is negative or not finite"
    values = [r.value for r in streams.rewards] + [c.value for c in streams.coefficients]
    if not all(map(math.isfinite, values)):
        return "a reward or coefficient is not finite"
    return None
