"""A batch as flat arrays: the tokens that have a loss, and the sequences they stand in.

In: the shards of a `Batch` message. Out: a `PolicyHalf` and a `ValueHalf` of this rank, the counts
of the whole batch, and micro-batches. Promises: windows of one trajectory share one sequence;
every rank deals trajectories to optimizer steps alike, whatever the shards; all ranks get the
same number of micro-batches a step (what is missing is filled with empty ones).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headrace.protocol.messages import Batch, PolicyWindow, Shard
from learner.attention import layout_of
from learner.forward import Pack
from learner.groups import Groups
from learner.packing import balanced_parts, pack_sequences, ranges
from learner.place import Place
from learner.reads import Int64, Reads, is_right, policy_reads, value_reads
from learner.segments import Segments, segments_of

Shape = Callable[[Tensor, Tensor], Tensor]
"""(scores [N], response lengths [N]) -> rewards [N]."""


class MicroBatch(NamedTuple):
    """A pack, and the index of each of its reads in the flat order of its half [N]."""

    pack: Pack
    tokens: Tensor


@dataclass(frozen=True, eq=False)
class PolicyHalf:
    """This rank's windows, laid end to end: T tokens, S windows.

    Attributes:
        windows: as they came.
        reads: the T tokens.
        segments: the windows, each with its lambda.
        mask: [T] bool, tokens in the loss.
        behaviour: [T] float32 logprobs of the sampler.
        rewards: [T] float32, 0 but at the end of a finished response; shaped.
        right: [S] bool, windows with which a right answer ends.
        versions: [T] int64, the weight version that sampled each token.
        groups: the scores of whole groups, for critic-free advantages.
        same_version: [T] bool, whole prefix sampled by the learner's version.
    """

    windows: list[PolicyWindow]
    reads: Reads
    segments: Segments
    mask: Tensor
    behaviour: Tensor
    rewards: Tensor
    right: Tensor
    versions: Tensor
    groups: Groups
    same_version: Tensor


@dataclass(frozen=True, eq=False)
class ValueHalf:
    """This rank's finished trajectories: all their response tokens, [T], in S responses.
    `rewards` [T] are shaped; `behaviour` [T] are the sampler's logprobs (NaN where not sent)."""

    reads: Reads
    segments: Segments
    rewards: Tensor
    behaviour: Tensor


class Totals(NamedTuple):
    """Counts over all shards: tokens and samples in the loss of each half, and response tokens of
    right answers, those of earlier windows included."""

    policy_tokens: int
    policy_samples: int
    positive_tokens: int
    value_tokens: int
    value_samples: int


def totals_of(batch: Batch) -> Totals:
    """The counts by which losses are normalised."""
    windows = [w for shard in batch.shards for w in shard.windows]
    values = [v for shard in batch.shards for v in shard.values]
    counts = [int(w.loss_mask.sum()) for w in windows]
    return Totals(
        policy_tokens=sum(counts),
        policy_samples=sum(c > 0 for c in counts),
        positive_tokens=sum(w.end for w in windows if is_right(w)),
        value_tokens=sum(v.token_ids.size - v.prompt_length for v in values),
        value_samples=sum(v.token_ids.size > v.prompt_length for v in values),
    )


def policy_half(
    shard: Shard,
    *,
    version: int,
    lambdas: Callable[[Tensor, Tensor], Tensor],
    shape: Shape,
    device: torch.device,
) -> PolicyHalf:
    """The windows of a shard; `version` is the learner's at the update's start, `lambdas` gives
    each window's lambda from its length so far and whether it finished."""
    windows = shard.windows
    reads = policy_reads(windows)
    lengths = [w.end - w.start for w in windows]
    finished = [w.finished for w in windows]
    segments = segments_of(
        lengths, finished=finished, length_so_far=[w.end for w in windows], device=device
    )
    segments = segments._replace(lam=lambdas(segments.length_so_far, segments.finished))
    scores = np.array([w.reward if w.finished else 0.0 for w in windows], np.float32)
    shaped = shape(torch.from_numpy(scores).to(device), segments.length_so_far)
    rewards = torch.zeros(sum(lengths), dtype=torch.float32, device=device)
    rewards[segments.cu_lengths[1:][segments.finished] - 1] = shaped[segments.finished]
    fresh = [_fresh_tokens(w, version) for w in windows]
    offsets = ranges(np.zeros(len(windows), np.int64), np.array(lengths, np.int64))
    return PolicyHalf(
        windows=windows,
        reads=reads,
        segments=segments,
        mask=_joined([w.loss_mask for w in windows], np.uint8, device).bool(),
        behaviour=_joined([w.logprobs for w in windows], np.float32, device),
        rewards=rewards,
        right=torch.tensor([is_right(w) for w in windows], dtype=torch.bool, device=device),
        versions=_versions(windows, device),
        groups=groups_of(windows, shape=shape, device=device),
        same_version=torch.from_numpy(offsets < np.repeat(np.array(fresh), lengths)).to(device),
    )


def groups_of(windows: Sequence[PolicyWindow], *, shape: Shape, device: torch.device) -> Groups:
    """Every group of the windows once, its scores shaped."""
    first: dict[int, int] = {}
    ids: list[int] = []
    rewards, lengths = [np.zeros(0, np.float32)], [np.zeros(0, np.int32)]
    members = np.full(len(windows), -1, np.int64)
    for i, window in enumerate(windows):
        if not window.group_rewards.size:
            continue
        if window.group_id not in first:
            first[window.group_id] = len(ids)
            rewards.append(window.group_rewards)
            lengths.append(window.group_lengths)
            ids += [window.group_id] * window.group_rewards.size
        members[i] = first[window.group_id] + window.group_index
    scores = torch.from_numpy(np.concatenate(rewards)).to(device)
    shaped = shape(scores, torch.from_numpy(np.concatenate(lengths)).to(device))
    return Groups(
        shaped, torch.tensor(ids, dtype=torch.int64, device=device),
        torch.from_numpy(members).to(device),
    )  # fmt: skip


def _versions(windows: Sequence[PolicyWindow], device: torch.device) -> Tensor:
    spans = [span for w in windows for span in w.spans]
    versions = np.array([s.version for s in spans], np.int64)
    counts = np.array([s.end - s.start for s in spans], np.int64)
    return torch.from_numpy(np.repeat(versions, counts)).to(device)


def _fresh_tokens(window: PolicyWindow, version: int) -> int:
    """How many first tokens of the window have nothing but `version` before them and in them. Of a
    window that begins later the prefix's versions are not known."""
    if window.start:
        return 0
    fresh = 0
    for span in window.spans:
        if span.version != version or span.start > fresh:
            break
        fresh = span.end
    return fresh


def _joined(parts: Sequence[npt.NDArray], dtype: type, device: torch.device) -> Tensor:  # type: ignore[type-arg]
    joined = np.concatenate(parts) if parts else np.zeros(0, dtype)
    return torch.from_numpy(joined.astype(dtype, copy=False)).to(device)


def value_half(shard: Shard, *, shape: Shape, device: torch.device) -> ValueHalf:
    """The finished trajectories of a shard."""
    lengths = [v.token_ids.size - v.prompt_length for v in shard.values]
    segments = segments_of(lengths, finished=[True] * len(lengths), device=device)
    scores = torch.tensor([v.reward for v in shard.values], dtype=torch.float32, device=device)
    shaped, answered = shape(scores, segments.length_so_far), segments.length_so_far > 0
    rewards = torch.zeros(sum(lengths), dtype=torch.float32, device=device)
    rewards[segments.cu_lengths[1:][answered] - 1] = shaped[answered]
    behaviour = [
        v.logprobs if v.logprobs.size else np.full(n, np.nan, np.float32)
        for v, n in zip(shard.values, lengths, strict=True)
    ]
    return ValueHalf(
        reads=value_reads(shard.values),
        segments=segments,
        rewards=rewards,
        behaviour=_joined(behaviour, np.float32, device),
    )


def micro_batches(reads: Reads, sequences: Sequence[int], place: Place) -> list[MicroBatch]:
    """Packs of some of the sequences, each with all its reads. Tokens behind a sequence's last
    read are left out."""
    order = np.argsort(reads.sequence_of, kind="stable")
    bounds = np.searchsorted(reads.sequence_of[order], np.arange(len(reads.token_ids) + 1))
    tokens_of = [order[bounds[s] : bounds[s + 1]] for s in range(len(reads.token_ids))]
    wanted = [s for s in sequences if tokens_of[s].size]
    lengths = [int(reads.position_of[tokens_of[s]].max()) for s in wanted]
    return [
        _micro_batch(reads, [wanted[i] for i in pack], [lengths[i] for i in pack], tokens_of, place)
        for pack in pack_sequences(lengths, budget=place.budget)
    ]


def _micro_batch(
    reads: Reads,
    sequences: Sequence[int],
    lengths: Sequence[int],
    tokens_of: Sequence[Int64],
    place: Place,
) -> MicroBatch:
    sizes = np.array(lengths, np.int64)
    starts = np.cumsum(sizes) - sizes
    ids = np.concatenate([reads.token_ids[s][:n] for s, n in zip(sequences, lengths, strict=True)])
    tokens = np.concatenate([tokens_of[s] for s in sequences])
    counts = np.array([tokens_of[s].size for s in sequences])
    position = reads.position_of[tokens]
    owner = np.repeat(np.arange(len(sequences)), counts)
    device, places = place.device, ranges(np.zeros_like(sizes), sizes)
    layout = layout_of(lengths, device=device)
    if place.frozen_context:
        first = np.array([int(reads.position_of[tokens_of[s]].min()) - 1 for s in sequences])
        frozen = torch.from_numpy(places < np.repeat(first, sizes)).to(device)
        layout = layout._replace(frozen=frozen)
    pack = Pack(
        token_ids=torch.from_numpy(ids.astype(np.int64)).to(device),
        position_ids=torch.from_numpy(places).to(device),
        layout=layout,
        reads=torch.from_numpy(starts[owner] + position - 1).to(device),
        targets=torch.from_numpy(reads.targets[tokens]).to(device),
    )
    return MicroBatch(pack, torch.from_numpy(tokens).to(device))


def empty_micro_batch(device: torch.device) -> MicroBatch:
    """One token that nobody reads: a rank without work takes part with a gradient of zero."""
    nothing = torch.zeros(0, dtype=torch.int64, device=device)
    one = torch.zeros(1, dtype=torch.int64, device=device)
    return MicroBatch(Pack(one, one, layout_of([1], device=device), nothing, nothing), nothing)


def deal(reads_of_ranks: Sequence[Reads], *, parts: int, seed: Sequence[int]) -> dict[int, int]:
    """The optimizer step (0 to parts - 1) of each trajectory, balanced by tokens.

    It depends on trajectories and seed alone, so that any number of ranks takes the same steps.
    """
    if parts == 1:
        return {t: 0 for reads in reads_of_ranks for t in reads.trajectories}
    weights: dict[int, int] = {}
    for reads in reads_of_ranks:
        counts = np.bincount(reads.sequence_of, minlength=len(reads.trajectories))
        for trajectory, count in zip(reads.trajectories, counts.tolist(), strict=True):
            weights[trajectory] = weights.get(trajectory, 0) + count
    names = sorted(weights)
    order = np.random.default_rng(seed).permutation(len(names)).tolist()
    chosen = balanced_parts([weights[n] for n in names], parts=parts, order=order)
    return dict(zip(names, chosen, strict=True))


def steps_of(
    reads_of_ranks: Sequence[Reads],
    dealt: dict[int, int],
    place: Place,
    *,
    parts: int,
) -> list[list[MicroBatch]]:
    """This rank's micro-batches of each optimizer step, as many as the rank with the most has.
    Steps for which no rank has anything are left out."""
    steps = []
    for part in range(parts):
        chosen = [
            [s for s, t in enumerate(reads.trajectories) if dealt[t] == part]
            for reads in reads_of_ranks
        ]
        own = micro_batches(reads_of_ranks[place.rank], chosen[place.rank], place)
        most = max(
            len(own) if r == place.rank else _num_packs(reads, chosen[r], place.budget)
            for r, reads in enumerate(reads_of_ranks)
        )
        own += [empty_micro_batch(place.device)] * (most - len(own))
        steps.append(own)
    return [micros for micros in steps if micros]


def _num_packs(reads: Reads, sequences: Sequence[int], budget: int) -> int:
    longest = np.zeros(len(reads.token_ids), np.int64)
    np.maximum.at(longest, reads.sequence_of, reads.position_of)
    lengths = [int(longest[s]) for s in sequences if longest[s]]
    return len(pack_sequences(lengths, budget=budget))
