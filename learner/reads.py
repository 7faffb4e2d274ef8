"""Reads: which tokens of which sequences a pass over a model is asked about.

In: windows or finished trajectories as they came. Out: `Reads` in flat order. Promises: windows of
one trajectory share one sequence; the order is that of the messages, so that every rank can work
out every other rank's.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from headrace.protocol.messages import PolicyWindow, ValueTrajectory
from learner.packing import ranges

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Reads:
    """Tokens of interest, in flat order, and the sequences they stand in.

    Attributes:
        trajectories: the trajectory of each sequence, without repeats.
        token_ids: prompt and response of each sequence, as far as it is known.
        sequence_of: [N] the sequence of each token.
        position_of: [N] its place in that sequence. One past the end asks for the state after
            the last token.
        targets: [N] the tokens themselves (0 where only a value is asked for).
    """

    trajectories: list[int]
    token_ids: list[npt.NDArray[np.int32]]
    sequence_of: Int64
    position_of: Int64
    targets: Int64


def policy_reads(windows: Sequence[PolicyWindow]) -> Reads:
    """The tokens of windows; those of one trajectory share the sequence of the longest."""
    sequence: dict[int, int] = {}
    token_ids: list[npt.NDArray[np.int32]] = []
    owner = np.empty(len(windows), np.int64)
    for i, window in enumerate(windows):
        known = sequence.setdefault(window.trajectory_id, len(token_ids))
        if known == len(token_ids):
            token_ids.append(window.token_ids)
        elif window.token_ids.size > token_ids[known].size:
            token_ids[known] = window.token_ids
        owner[i] = known
    starts = np.array([w.prompt_length + w.start for w in windows], np.int64)
    counts = np.array([w.end - w.start for w in windows], np.int64)
    trained = [w.token_ids[w.prompt_length + w.start : w.prompt_length + w.end] for w in windows]
    return Reads(
        list(sequence),
        token_ids,
        np.repeat(owner, counts),
        ranges(starts, counts),
        np.concatenate([np.zeros(0, np.int64), *trained], dtype=np.int64),
    )


def is_right(window: PolicyWindow) -> bool:
    """The response ends here and the verifier calls it right."""
    return window.finished and window.correct


def with_earlier_tokens(reads: Reads, windows: Sequence[PolicyWindow]) -> Reads:
    """`policy_reads` of the windows, and behind them the earlier windows' tokens of right answers
    that end in them: context for the surrogate, but not for the likelihood of right answers."""
    ends = [w for w in windows if is_right(w) and w.start]
    if not ends:
        return reads
    place = {t: s for s, t in enumerate(reads.trajectories)}
    starts = np.array([w.prompt_length for w in ends], np.int64)
    counts = np.array([w.start for w in ends], np.int64)
    owner = np.array([place[w.trajectory_id] for w in ends], np.int64)
    tokens = [w.token_ids[w.prompt_length : w.prompt_length + w.start] for w in ends]
    return replace(
        reads,
        sequence_of=np.concatenate([reads.sequence_of, np.repeat(owner, counts)]),
        position_of=np.concatenate([reads.position_of, ranges(starts, counts)]),
        targets=np.concatenate([reads.targets, *tokens], dtype=np.int64),
    )


def value_reads(values: Sequence[ValueTrajectory]) -> Reads:
    """All response tokens of finished trajectories."""
    starts = np.array([v.prompt_length for v in values], np.int64)
    counts = np.array([v.token_ids.size for v in values], np.int64) - starts
    answers = [v.token_ids[v.prompt_length :] for v in values]
    return Reads(
        [v.trajectory_id for v in values],
        [v.token_ids for v in values],
        np.repeat(np.arange(len(values), dtype=np.int64), counts),
        ranges(starts, counts),
        np.concatenate([np.zeros(0, np.int64), *answers], dtype=np.int64),
    )
