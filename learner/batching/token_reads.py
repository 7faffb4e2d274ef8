"""Token reads: the tokens whose logprobs or values a forward pass computes.

In: windows or ended trajectories, and the sequences they stand in. Out: `TokenReads` in flat order.
Promises: only sampled tokens are read; windows of one trajectory share one sequence.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
from msgspec import structs

from headrace.protocol.messages.batches import BatchSequence, PolicyWindow, ValueTrajectory
from headrace.protocol.token_spans import MediaRun
from learner.batching.trainable_tokens import Int64, TokenRange, TrainableTokens


@dataclass(frozen=True, eq=False)
class TokenReads:
    """Tokens of interest, in flat order, and the sequences they stand in.

    Attributes:
        trajectories: the trajectory of each sequence, without repeats. token_ids: each sequence
        from its first token on. sequence_of: [N] the sequence of each token. position_of: [N] its
        place in that sequence, the opening included; one past the end: the state after the last
        token. targets: [N] the tokens themselves (0 where only a value is read). openings: number
        of tokens of each sequence before position 0. media: the images in each opening; empty where
        no sequence has any.
    """

    trajectories: list[int]
    token_ids: list[npt.NDArray[np.int32]]
    sequence_of: Int64
    position_of: Int64
    targets: Int64
    openings: list[int]
    media: list[tuple[MediaRun, ...]] = field(default_factory=list)

    def media_of(self, sequence: int) -> tuple[MediaRun, ...]:
        """The images of one sequence."""
        return self.media[sequence] if self.media else ()

    def within(self, sequences: Sequence[int]) -> npt.NDArray[np.bool_]:
        """[N] whether each token stands in one of these sequences."""
        return np.isin(self.sequence_of, np.array(sequences, np.int64))


def sampled_windows(
    sequences: Sequence[BatchSequence], windows: Sequence[PolicyWindow]
) -> TrainableTokens:
    """The sampled tokens of windows."""
    return TrainableTokens(sequences, [TokenRange(w.sequence, w.start, w.end) for w in windows])


def sampled_answers(
    sequences: Sequence[BatchSequence], values: Sequence[ValueTrajectory]
) -> TrainableTokens:
    """The sampled tokens of whole trajectories."""
    ends = [s.token_ids.size - s.opening for s in sequences]
    return TrainableTokens(sequences, [TokenRange(v.sequence, 0, ends[v.sequence]) for v in values])


def critic_sequences(sequences: Sequence[BatchSequence]) -> list[BatchSequence]:
    """Append the value model's private prompts to the openings; positions stay."""
    return [s if s.aside is None else _with_critic_prompt(s, s.aside) for s in sequences]


def _with_critic_prompt(sequence: BatchSequence, aside: npt.NDArray[np.int32]) -> BatchSequence:
    opening, answer = np.split(sequence.token_ids, [sequence.opening])
    ids = np.concatenate([opening, aside, answer])
    return structs.replace(sequence, token_ids=ids, opening=opening.size + aside.size, aside=None)


def reads_of(
    sequences: Sequence[BatchSequence],
    segments: Sequence[PolicyWindow] | Sequence[ValueTrajectory],
    sampled: TrainableTokens,
) -> TokenReads:
    """All sampled tokens of windows or of whole trajectories."""
    used = dict.fromkeys(segment.sequence for segment in segments)
    compact = {sequence: i for i, sequence in enumerate(used)}
    chosen = [sequences[s] for s in used]
    owner = np.array([compact[segment.sequence] for segment in segments], np.int64)
    none = np.zeros(0, np.int64)
    nothing = TokenReads(
        trajectories=[s.trajectory_id for s in chosen],
        token_ids=[s.token_ids for s in chosen],
        sequence_of=none,
        position_of=none,
        targets=none,
        openings=[s.opening for s in chosen],
        media=[tuple(s.media) for s in chosen] if any(s.media for s in chosen) else [],
    )
    return _with(nothing, owner[sampled.segments], sampled.positions)


def _with(reads: TokenReads, owner: Int64, positions: Int64) -> TokenReads:
    """Append the reads at `positions` of sequences `owner`, both [M]."""
    sizes = np.array([ids.size for ids in reads.token_ids], np.int64)
    places = positions + np.array(reads.openings, np.int64)[owner]
    ids = np.concatenate([np.zeros(0, np.int32), *reads.token_ids])
    targets = ids[(np.cumsum(sizes) - sizes)[owner] + places]
    return replace(
        reads,
        sequence_of=np.concatenate([reads.sequence_of, owner]),
        position_of=np.concatenate([reads.position_of, places]),
        targets=np.concatenate([reads.targets, targets], dtype=np.int64),
    )


def is_right(window: PolicyWindow) -> bool:
    """The answer ends with this window and counts as right."""
    return window.finished and window.correct


def with_earlier_tokens(
    reads: TokenReads, sequences: Sequence[BatchSequence], windows: Sequence[PolicyWindow]
) -> TokenReads:
    """Append the earlier windows' tokens of right answers that end in these windows.

    `reads` are `reads_of` the windows. Those tokens are context for the surrogate, but not for the
    likelihood of right answers."""
    ends = [w for w in windows if is_right(w) and w.start]
    if not ends:
        return reads
    earlier = TrainableTokens(sequences, [TokenRange(w.sequence, 0, w.start) for w in ends])
    place = {t: s for s, t in enumerate(reads.trajectories)}
    owner = np.array([place[w.trajectory_id] for w in ends], np.int64)
    return _with(reads, owner[earlier.segments], earlier.positions)


def with_cuts(
    reads: TokenReads, sequences: Sequence[BatchSequence], windows: Sequence[PolicyWindow]
) -> TokenReads:
    """Append the state after each window's last position to `reads_of` the windows."""
    place = {t: s for s, t in enumerate(reads.trajectories)}
    owner = np.array([place[w.trajectory_id] for w in windows], np.int64)
    ends = np.array([sequences[w.sequence].opening + w.end for w in windows], np.int64)
    return replace(
        reads,
        sequence_of=np.concatenate([reads.sequence_of, owner]),
        position_of=np.concatenate([reads.position_of, ends]),
        targets=np.concatenate([reads.targets, np.zeros(len(windows), np.int64)]),
    )
