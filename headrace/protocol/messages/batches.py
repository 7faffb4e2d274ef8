"""Parts of a batch: sequences, and the segments of them that a loss reads.

The coordinator compiles a batch and the learner executes it: everything that decides what a token
counts for is a stream here, and nothing here knows an algorithm. Positions count tokens from the
end of a sequence's opening, as everywhere; the token at position p is `token_ids[opening + p]`.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from headrace.protocol.token_spans import (
    Coefficient,
    Float32,
    Int32,
    Mark,
    MediaRun,
    Reward,
    Span,
    TurnRun,
)


class BatchSequence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One sequence from its first token, the opening included, to the last one that a segment of
    the same part reads. `opening` is how many tokens stand before position 0. `sampled` are the
    position runs [start, end) that the policy sampled, in order; every other token is context.
    `aside` are tokens that the value model reads between the opening and position 0, and the policy
    does not. `media`: the images of the opening."""

    trajectory_id: int
    group_id: int
    token_ids: Int32
    opening: int
    sampled: list[tuple[int, int]]
    aside: Int32 | None = None
    media: list[MediaRun] = []


class PolicyWindow(msgspec.Struct, frozen=True, kw_only=True):
    """Positions [start, end) of `sequences[sequence]` for the policy. Dense streams have one value
    for each of these positions. `length` is how many tokens of the trajectory were sampled up to
    `end`. `finished`: the trajectory ends here; then `correct` is whether it counts as right."""

    window_id: int
    trajectory_id: int
    sequence: int
    start: int
    end: int
    length: int
    logprobs: Float32
    """Of the distribution each token was really sampled from; 0 where there is none (inserted
    tokens) or it was not finite (then the weight is 0)."""
    loss_weights: Float32
    """Weight of each token in the policy's loss; 0 takes it out."""
    spans: list[Span]
    """Weight versions that sampled the tokens, clipped to the window."""
    rewards: list[Reward] = []
    """Rewards by position in the window, before any shaping."""
    coefficients: list[Coefficient] = []
    marks: list[Mark] = []
    finished: bool = False
    correct: bool = False
    turns: list[TurnRun] = []
    """Turns up to the window's end, if credit ends with a turn; the first may begin before it."""
    confidence: list[float] = []
    """[5] the sampler's logprobs before the window (`headrace.trajectory.logprob_statistics`);
    empty where no value model reads them."""
    outcome: float | None = None
    """Reward behind `end` of a cut window whose answer of `answer_length` sampled tokens has ended
    and is scored, where advantages read it."""
    answer_length: int = 0
    row: str = ""
    """Columns of a finished one's prompt as JSON, where the ranker learns from them."""


class ValueTrajectory(msgspec.Struct, frozen=True, kw_only=True):
    """The whole of `sequences[sequence]`, whose trajectory has ended, for the value model. `length`
    counts its sampled tokens. `logprobs` has one value for each position from 0; it is empty where
    the algorithm does not need it."""

    trajectory_id: int
    sequence: int
    length: int
    rewards: list[Reward]
    logprobs: Float32
    coefficients: list[Coefficient] = []
    turns: list[TurnRun] = []
    """All turns, where credit ends with a turn."""
    marks: list[Mark] = []


class GroupScores(msgspec.Struct, frozen=True, kw_only=True):
    """Scores and sampled lengths of a group's scored trajectories, in `trajectory_ids`' order."""

    group_id: int
    trajectory_ids: list[int]
    scores: Float32
    lengths: Int32


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of what one learner rank computes: segments with the sequences they stand in, and the
    groups that the windows' advantages compare with (empty for algorithms with a critic)."""

    sequences: list[BatchSequence]
    windows: list[PolicyWindow]
    values: list[ValueTrajectory]
    groups: list[GroupScores] = []


# -- sizes -----------------------------------------------------------------------------------------

# Most bytes in msgpack: a number with its tag; a name or a list before its content; an array's
# reference, which also covers a number, with the padding of its content.
_NUMBER, _NAME, _REFERENCE = 9, 5, 28
PART_BYTES = 256
"""More than a part takes on the wire besides what is in it."""


def part_bytes(item: BatchSequence | PolicyWindow | ValueTrajectory | GroupScores) -> int:
    """At most how many bytes an item adds to a part on the wire.

    A part fits where the sum over its items and PART_BYTES is no more than the largest message.
    """
    fields = item.__struct_fields__
    size = _NAME + sum(len(name) + _NAME + _REFERENCE for name in fields)
    for name in fields:
        value: Any = getattr(item, name)
        if isinstance(value, np.ndarray):
            size += value.nbytes
        elif isinstance(value, list):
            size += sum(map(_entry_bytes, value))
        elif isinstance(value, str):
            size += len(value.encode())
    return size


def _entry_bytes(entry: float | tuple[int, int] | msgspec.Struct) -> int:
    """A number, a run, or a span, reward, coefficient, mark or image, which travel as lists."""
    if isinstance(entry, int | float):
        return _NUMBER
    if isinstance(entry, tuple):
        return _NAME + _NUMBER * len(entry)
    size = _NAME + (_NAME + _NUMBER) * len(entry.__struct_fields__)
    size += _NUMBER * len(getattr(entry, "grid", ()))
    return size + len((getattr(entry, "name", "") or getattr(entry, "digest", "")).encode())


def longest_part_bytes(
    *, opening: int, length: int, window: int, members: int, aside: int = 0, turns: int = 0,
    images: int = 0,
) -> int:  # fmt: skip
    """Bytes of the part that no cutting makes smaller: one answer with all that can be known of
    each token, in a window or for the value model, and the scores of its group.

    Args:
        opening: tokens before position 0. length: positions of the answer. window: positions of a
        window. members: trajectories of a group. aside: tokens that the value model alone reads.
        turns: of the policy, where credit ends with them. images: of the opening.
    """
    # One object stands for all of a list's entries: their sizes are the same.
    rewards = [Reward(0.0, 0)] * length
    # One more than tokens: that of the prompt's source holds for all of them.
    coefficients = [Coefficient("k" * 16, 0.0, 0, 0)] * (length + 1)
    sequence = BatchSequence(
        trajectory_id=0,
        group_id=0,
        token_ids=np.zeros(opening + length, np.int32),
        opening=opening,
        sampled=[(0, 0)] * (length // 2 + 1),
        aside=np.zeros(aside, np.int32),
        media=[MediaRun("0" * 64, 0, 0)] * images,
    )
    policy = PolicyWindow(
        window_id=0,
        trajectory_id=0,
        sequence=0,
        start=0,
        end=window,
        length=length,
        logprobs=np.zeros(window, np.float32),
        loss_weights=np.zeros(window, np.float32),
        spans=[Span(0, 0, 0)] * window,
        rewards=rewards[:window],
        coefficients=coefficients[: window + 1],
        marks=[Mark("hot", 0, 0)] * window,
        confidence=[0.0] * 5,
        turns=[TurnRun(0, 0, True)] * turns,
    )
    value = ValueTrajectory(
        trajectory_id=0,
        sequence=0,
        length=length,
        rewards=rewards,
        logprobs=np.zeros(length, np.float32),
        coefficients=coefficients,
        turns=[TurnRun(0, 0, True)] * turns,
        marks=[Mark("hot", 0, 0)] * length,
    )
    group = GroupScores(
        group_id=0,
        trajectory_ids=[0] * members,
        scores=np.zeros(members, np.float32),
        lengths=np.zeros(members, np.int32),
    )
    segments: Sequence[PolicyWindow | ValueTrajectory] = (policy, value)
    return PART_BYTES + part_bytes(sequence) + part_bytes(group) + max(map(part_bytes, segments))
