"""What a batch is made of: sequences, and the segments of them that a loss reads.

The coordinator compiles a batch and the learner executes it: everything that decides what a token
counts for is a stream here, and nothing here knows an algorithm. Positions count tokens from the
end of a sequence's opening, as everywhere; the token at position p is `token_ids[opening + p]`.
"""

import msgspec

from headrace.protocol.streams import Coefficient, Float32, Int32, Mark, Reward, Span


class BatchSequence(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence from its first token, the opening included, to the last one that a segment of
    the same part reads. `opening` is how many tokens stand before position 0. `sampled` are the
    position runs [start, end) that the policy sampled, in order; every other token is context."""

    trajectory_id: int
    group_id: int
    token_ids: Int32
    opening: int
    sampled: list[tuple[int, int]]


class PolicyWindow(msgspec.Struct, frozen=True, kw_only=True):
    """Positions [start, end) of `sequences[sequence]` for the policy. Dense streams have one value
    for each of these positions. `length` is how many tokens of the trajectory were sampled up to
    `end`. `finished`: the trajectory ends here; then `score` is what its reward source gave it and
    `correct` whether that counts as right."""

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
    """How much each token counts in the policy's loss; 0 takes it out."""
    spans: list[Span]
    """Which weights sampled what, clipped to the window."""
    rewards: list[Reward] = []
    """What was earned where, before any shaping; positions in the window."""
    coefficients: list[Coefficient] = []
    marks: list[Mark] = []
    finished: bool = False
    score: float = 0.0
    correct: bool = False


class ValueTrajectory(msgspec.Struct, frozen=True, kw_only=True):
    """The whole of `sequences[sequence]`, whose trajectory has ended, for the value model. `length`
    counts its sampled tokens. `logprobs` has one value for each position from 0; it is empty where
    the algorithm does not need it."""

    trajectory_id: int
    sequence: int
    length: int
    rewards: list[Reward]
    score: float
    logprobs: Float32


class GroupScores(msgspec.Struct, frozen=True, kw_only=True):
    """The scores of all scored trajectories of one group, and their lengths in sampled tokens, in
    the order of `trajectory_ids`."""

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
