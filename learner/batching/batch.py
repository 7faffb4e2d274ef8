"""A rank's share of a batch as flat arrays of the tokens that have a loss.

In: a rank's `Shard`. Out: a `PolicyBatch` and a `ValueBatch`, and the counts of the whole batch,
which the ranks agree on. Promises: both hold sampled tokens only; rewards mean the same in both and
in groups.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headrace.protocol.messages.batches import BatchSequence, PolicyWindow, Shard, ValueTrajectory
from headrace.protocol.token_spans import KL, Coefficient, Float32, Mark, MarkName, Reward
from learner.batching.group_statistics import Groups
from learner.batching.packing import ranges
from learner.batching.segments import Segments, segment_ids, segment_sums, segments_of
from learner.batching.token_reads import (
    TokenReads,
    critic_sequences,
    is_right,
    reads_of,
    sampled_answers,
    sampled_windows,
)
from learner.batching.trainable_tokens import Int64, TrainableTokens, count_before
from learner.device import RankContext

Shape = Callable[[Tensor, Tensor], Tensor]
"""(rewards [N] at the ends of answers, their sampled tokens [N]) -> shaped [N]."""


@dataclass(frozen=True, eq=False)
class PolicyBatch:
    """This rank's windows: their T sampled tokens end to end, in S segments.

    A segment is a window, or a turn in it where credit ends with a turn.

    Attributes:
        sequences: the windows' sequences. windows: as received. sampled: positions of the T tokens.
        reads: the T tokens. segments: each with its lambda; finished where an answer, or its turn,
        ends. windows_of: [S] int64, the window of each segment. mask: [T] bool, tokens in the loss:
        those with a loss weight above 0. weights: [T] float32, factor of each token's loss; None
        where all are 1. The counts that losses are divided by count tokens, whatever their weight.
        behaviour: [T] float32 logprobs of the sampler. rewards: [T] float32 of each token; shaped
        at the end of an answer. right: [S] bool, the answer ends here and counts as right.
        versions: [T] int64, the weight version that sampled each token. kl_coef: the divergence's
        coefficient, or [T] float32 where samples have their own. hot: [T] bool, tokens marked as
        drawn by FIRE's high temperature. groups: the scores of whole groups, for critic-free
        advantages. same_version: [T] bool, whole prefix sampled by the learner's version.
    """

    sequences: list[BatchSequence]
    windows: list[PolicyWindow]
    sampled: TrainableTokens
    reads: TokenReads
    segments: Segments
    windows_of: Tensor
    acts: Tensor
    mask: Tensor
    weights: Tensor | None
    behaviour: Tensor
    rewards: Tensor
    right: Tensor
    versions: Tensor
    kl_coef: float | Tensor
    hot: Tensor
    groups: Groups
    same_version: Tensor

    def window_lams(self) -> list[float]:
        """Return the lambda of each window: that of its last turn."""
        of_segments = zip(self.windows_of.tolist(), self.segments.lam.tolist(), strict=True)
        return [lam for _, lam in sorted(dict(of_segments).items())]


@dataclass(frozen=True, eq=False)
class ValueBatch:
    """This rank's ended trajectories: their T sampled tokens in S answers or turns.

    `answers` [A + 1] is where each answer begins in the T tokens, `groups` [A] are their groups.
    `reads` are the critic's, `policy_reads` a policy's, without the critic's private prompt;
    `rewards` [T] are shaped; `behaviour` [T] are the sampler's logprobs (NaN where not sent) and
    `hot` [T] is as in windows; `numbers` [T] are the tokens' numbers in their answer, inserted ones
    not counted."""

    reads: TokenReads
    policy_reads: TokenReads
    segments: Segments
    answers: list[int]
    groups: list[int]
    rewards: Tensor
    behaviour: Tensor
    hot: Tensor
    kl_coef: float | Tensor
    numbers: Tensor


class LossCounts(NamedTuple):
    """Counts over all ranks by which losses are normalised.

    Tokens and samples in the loss of policy and value model, and sampled tokens of right answers,
    those of earlier windows included. Each token counts once, whatever its weight."""

    policy_tokens: int
    policy_samples: int
    positive_tokens: int
    value_tokens: int
    value_samples: int


def loss_counts(windows: PolicyBatch, finished: ValueBatch, place: RankContext) -> LossCounts:
    """Sum the counts by which losses are normalised over all ranks."""
    trained = segment_sums(windows.mask, segment_ids(windows.segments), windows.windows_of.numel())
    answers = finished.segments.length_so_far
    own = [
        int(trained.sum()),
        int((trained > 0).sum()),
        int(windows.segments.length_so_far[windows.right].sum()),
        int(answers.sum()),
        int((answers > 0).sum()),
    ]
    return LossCounts(*place.total(torch.tensor(own, device=place.device)).tolist())


def policy_batch(
    shard: Shard,
    *,
    version: int,
    lambdas: Callable[[Tensor, Tensor], Tensor],
    shape: Shape,
    kl_coef: float,
    device: torch.device,
) -> PolicyBatch:
    """Lay out the windows of a shard.

    `version` is the learner's at the update's start, `lambdas` gives each window's lambda from its
    length so far and whether it finished, `kl_coef` holds for tokens without a coefficient."""
    windows, sequences = shard.windows, shard.sequences
    sampled = sampled_windows(sequences, windows)
    parts = _parts(sampled, windows, sequences, [w.finished for w in windows])
    segments = segments_of(
        [part.tokens for part in parts],
        finished=[part.ended for part in parts],
        length_so_far=[part.length for part in parts],
        bootstrap_value=_outcomes([windows[part.window] for part in parts], shape, device),
        device=device,
    )
    segments = segments._replace(lam=lambdas(segments.length_so_far, segments.finished))
    weights = sampled.pick([w.loss_weights for w in windows], np.float32)
    mask = weights > 0
    versions, same_version = _versions(windows, sampled, version)
    return PolicyBatch(
        sequences=sequences,
        windows=windows,
        sampled=sampled,
        reads=reads_of(sequences, windows, sampled),
        segments=segments,
        windows_of=torch.tensor([part.window for part in parts], dtype=torch.int64, device=device),
        acts=torch.tensor([part.act for part in parts], dtype=torch.int64, device=device),
        mask=torch.from_numpy(mask).to(device),
        weights=None if (weights[mask] == 1).all() else torch.from_numpy(weights).to(device),
        behaviour=_tensor(sampled.pick([w.logprobs for w in windows], np.float32), device),
        rewards=_earned(sampled, [w.rewards for w in windows], segments, shape),
        right=torch.tensor(
            [is_right(windows[part.window]) for part in parts], dtype=torch.bool, device=device
        ),
        versions=torch.from_numpy(versions).to(device),
        kl_coef=_coefficient(KL, kl_coef, sampled, [w.coefficients for w in windows], device),
        hot=_marked("hot", [w.marks for w in windows], sampled, device),
        groups=groups_of(shard, shape=shape, device=device),
        same_version=torch.from_numpy(same_version).to(device),
    )


def value_batch(shard: Shard, *, shape: Shape, kl_coef: float, device: torch.device) -> ValueBatch:
    """Lay out the ended trajectories of a shard."""
    sequences = critic_sequences(shard.sequences)
    sampled = sampled_answers(sequences, shard.values)
    reads = reads_of(sequences, shard.values, sampled)
    numbers = ranges(np.zeros_like(sampled.lengths), sampled.lengths)
    has_asides = any(sequence.aside is not None for sequence in shard.sequences)
    ended = [True] * len(shard.values)
    lengths = [part.tokens for part in _parts(sampled, shard.values, sequences, ended)]
    segments = segments_of(lengths, finished=[True] * len(lengths), device=device)
    behaviour = [_logprobs(v.logprobs, sequences[v.sequence]) for v in shard.values]
    return ValueBatch(
        reads=reads,
        policy_reads=reads_of(shard.sequences, shard.values, sampled) if has_asides else reads,
        segments=segments,
        answers=[0, *np.cumsum(sampled.lengths).tolist()],
        groups=[sequences[v.sequence].group_id for v in shard.values],
        rewards=_earned(sampled, [v.rewards for v in shard.values], segments, shape),
        behaviour=_tensor(sampled.pick(behaviour, np.float32), device),
        hot=_marked("hot", [v.marks for v in shard.values], sampled, device),
        kl_coef=_coefficient(KL, kl_coef, sampled, [v.coefficients for v in shard.values], device),
        numbers=torch.from_numpy(numbers).to(device),
    )


class _SegmentPart(NamedTuple):
    """A segment: tokens of a window, and of its answer or turn so far."""

    window: int
    tokens: int
    length: int
    ended: bool
    act: int = 0


def _parts(
    sampled: TrainableTokens,
    items: Sequence[PolicyWindow | ValueTrajectory],
    sequences: Sequence[BatchSequence],
    ended: Sequence[bool],
) -> list[_SegmentPart]:
    """Return each item's turns as segments, or the whole item without turns."""
    found = []
    for i, item in enumerate(items):
        if not item.turns:
            found.append(_SegmentPart(i, int(sampled.lengths[i]), item.length, ended[i]))
        for turn in item.turns:
            runs = sequences[item.sequence].sampled
            inside = sampled.between(i, turn.start, turn.end)
            length = count_before(runs, turn.end) - count_before(runs, turn.start)
            tokens = inside.stop - inside.start
            found.append(_SegmentPart(i, tokens, length, turn.ended, turn.act))
    return found


def _earned(
    sampled: TrainableTokens, points: Sequence[Sequence[Reward]], segments: Segments, shape: Shape
) -> Tensor:
    """[T] rewards: a token's own, and those after it up to the next sampled token.

    The last token of an answer also gets the shaping by the answer's length. Rewards before a
    segment's first token belong to an earlier segment and are not counted here."""
    earned = np.zeros(sampled.positions.size, np.float32)
    for segment, rewards in enumerate(points):
        for reward in rewards:
            token = sampled.earner(segment, reward.position)
            if token is not None:
                earned[token] += reward.value
    flat = torch.from_numpy(earned).to(segments.finished.device)
    ended = segments.finished & (segments.cu_lengths.diff() > 0)
    last = segments.cu_lengths[1:][ended] - 1
    flat[last] = shape(flat[last], segments.length_so_far[ended])
    return flat


def _outcomes(windows: Sequence[PolicyWindow], shape: Shape, device: torch.device) -> Tensor | None:
    """[S] shaped reward of what followed each cut window, NaN where it is not known.

    None where no window knows it: then nothing stands in for V(s_l) but what the boundary says."""
    if all(w.outcome is None for w in windows):
        return None
    came = [math.nan if w.outcome is None else w.outcome for w in windows]
    return shape(
        torch.tensor(came, dtype=torch.float32, device=device),
        torch.tensor([w.answer_length for w in windows], dtype=torch.int32, device=device),
    )


def _coefficient(
    name: str,
    usual: float,
    sampled: TrainableTokens,
    streams: Sequence[Sequence[Coefficient]],
    device: torch.device,
) -> float | Tensor:
    """`usual`, or [T] float32 where any token has its own coefficient of that name."""
    own = [(i, c) for i, stream in enumerate(streams) for c in stream if c.name == name]
    if not own:
        return usual
    found = np.full(sampled.positions.size, usual, np.float32)
    for segment, coefficient in own:
        found[sampled.between(segment, coefficient.start, coefficient.end)] = coefficient.value
    return torch.from_numpy(found).to(device)


def _marked(
    name: MarkName, marks: Sequence[Sequence[Mark]], sampled: TrainableTokens, device: torch.device
) -> Tensor:
    """[T] bool: tokens under a mark of that name."""
    found = np.zeros(sampled.positions.size, np.bool_)
    for segment, own in enumerate(marks):
        for mark in own:
            if mark.name == name:
                found[sampled.between(segment, mark.start, mark.end)] = True
    return torch.from_numpy(found).to(device)


def groups_of(shard: Shard, *, shape: Shape, device: torch.device) -> Groups:
    """Return the shard's groups with shaped scores, and each window's own member."""
    members = [(group.group_id, t) for group in shard.groups for t in group.trajectory_ids]
    place = {member: i for i, member in enumerate(members)}
    own = [
        place.get((shard.sequences[w.sequence].group_id, w.trajectory_id), -1)
        for w in shard.windows
    ]
    scores = np.concatenate([np.zeros(0, np.float32), *(g.scores for g in shard.groups)])
    lengths = np.concatenate([np.zeros(0, np.int32), *(g.lengths for g in shard.groups)])
    return Groups(
        shape(_tensor(scores, device), _tensor(lengths, device)),
        torch.tensor([group for group, _ in members], dtype=torch.int64, device=device),
        torch.tensor(own, dtype=torch.int64, device=device),
    )


def _versions(
    windows: Sequence[PolicyWindow], sampled: TrainableTokens, version: int
) -> tuple[Int64, npt.NDArray[np.bool_]]:
    """[T] versions of the tokens, [T] whether `version` sampled the whole prefix.

    That is False in a window that begins later: its earlier tokens' versions are not known."""
    spans = [span for w in windows for span in w.spans]
    counts = np.array([s.end - s.start for s in spans], np.int64)
    versions = np.repeat(np.array([s.version for s in spans], np.int64), counts)
    fresh = np.array([_fresh_end(w, version) for w in windows], np.int64)
    return versions, sampled.positions < fresh[sampled.segments]


def _fresh_end(window: PolicyWindow, version: int) -> int:
    """The position before which `version` has sampled every token of the answer."""
    if window.start:
        return 0
    other = (span.start for span in window.spans if span.version != version)
    return next(other, window.end)


def _logprobs(logprobs: Float32, sequence: BatchSequence) -> Float32:
    if logprobs.size:
        return logprobs
    return np.full(sequence.token_ids.size - sequence.opening, np.nan, np.float32)


def _tensor(x: npt.NDArray[Any], device: torch.device) -> Tensor:
    return torch.from_numpy(x).to(device)
