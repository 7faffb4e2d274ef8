"""Which tokens go through a model together: micro-batches, and the optimizer steps they make up.

In: the reads of one half. Out: `Steps` and `MicroBatch`es. Promises: every rank deals trajectories
to optimizer steps alike, whatever its share; all ranks get the same number of micro-batches for
each step (ranks with fewer get empty ones). Ranks agree on it by collectives, so no rank needs
another's share.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from learner.attention import layout_of
from learner.carried import Carried, Source
from learner.forward import Pack
from learner.packing import balanced_parts, pack_sequences, ranges
from learner.place import Place
from learner.reads import Reads
from learner.sampled import Int64


class MicroBatch(NamedTuple):
    """A pack, and the index of each of its reads in the flat order of its half [N]."""

    pack: Pack
    tokens: Tensor


class _Stretch(NamedTuple):
    """Tokens [begin, end) of a sequence, which go through the model, and what is read of them:
    `tokens` are indices of reads, the first of which stands in the state of token `first`."""

    sequence: int
    begin: int
    first: int
    end: int
    tokens: Int64

    @property
    def size(self) -> int:
        return self.end - self.begin


def micro_batches(
    reads: Reads, sequences: Sequence[int], place: Place, carried: Carried | None = None
) -> list[MicroBatch]:
    """Packs of some of the sequences, each with all its reads. Tokens behind a sequence's last
    read are left out, and those before its first one as far as `carried` has them."""
    order = np.argsort(reads.sequence_of, kind="stable")
    bounds = np.searchsorted(reads.sequence_of[order], np.arange(len(reads.token_ids) + 1))
    tokens_of = [order[bounds[s] : bounds[s + 1]] for s in range(len(reads.token_ids))]
    wanted = [_stretch(reads, s, tokens_of[s], carried) for s in sequences if tokens_of[s].size]
    # Neighbours of one length have as much before them, too: blocks of attention stay tight.
    wanted.sort(key=lambda stretch: -stretch.begin)
    return [
        _micro_batch(reads, [wanted[i] for i in pack], place, carried)
        for pack in pack_sequences([stretch.size for stretch in wanted], budget=place.budget)
    ]


def _stretch(reads: Reads, sequence: int, tokens: Int64, carried: Carried | None) -> _Stretch:
    positions = reads.position_of[tokens]
    first, end, begin = int(positions.min()) - 1, int(positions.max()), 0
    if carried is not None:
        begin = carried.usable(
            reads.trajectories[sequence],
            reads.token_ids[sequence],
            first,
            opening=reads.openings[sequence],
        )
    return _Stretch(sequence, begin, first, end, tokens)


def _micro_batch(
    reads: Reads, stretches: Sequence[_Stretch], place: Place, carried: Carried | None
) -> MicroBatch:
    begins, firsts, sizes = (
        np.array(column, np.int64)
        for column in zip(*((s.begin, s.first, s.size) for s in stretches), strict=True)
    )
    starts = np.cumsum(sizes) - sizes
    ids = np.concatenate([reads.token_ids[s.sequence][s.begin : s.end] for s in stretches])
    tokens = np.concatenate([s.tokens for s in stretches])
    position = reads.position_of[tokens]
    owner = np.repeat(np.arange(len(stretches)), [s.tokens.size for s in stretches])
    device, places = place.device, ranges(begins, sizes)
    layout = layout_of(sizes.tolist(), before=begins.tolist(), device=device)
    if place.frozen_context:
        frozen = torch.from_numpy(places < np.repeat(firsts, sizes)).to(device)
        layout = layout._replace(frozen=frozen)
    if carried is not None:
        sources = [
            Source(reads.trajectories[s.sequence], reads.token_ids[s.sequence], s.begin, s.end)
            for s in stretches
        ]
        layout = layout._replace(past=carried.past(sources, device))
    pack = Pack(
        token_ids=torch.from_numpy(ids.astype(np.int64)).to(device),
        position_ids=torch.from_numpy(places).to(device),
        layout=layout,
        reads=torch.from_numpy((starts - begins)[owner] + position - 1).to(device),
        targets=torch.from_numpy(reads.targets[tokens]).to(device),
    )
    return MicroBatch(pack, torch.from_numpy(tokens).to(device))


def empty_micro_batch(device: torch.device) -> MicroBatch:
    """One token that nobody reads: a rank without work takes part with a gradient of zero."""
    nothing = torch.zeros(0, dtype=torch.int64, device=device)
    one = torch.zeros(1, dtype=torch.int64, device=device)
    return MicroBatch(Pack(one, one, layout_of([1], device=device), nothing, nothing), nothing)


def weights_of(reads: Reads, place: Place) -> dict[int, int]:
    """Reads of each trajectory over all ranks. A collective: every rank calls it."""
    counts = np.bincount(reads.sequence_of, minlength=len(reads.trajectories))
    own = np.stack([np.array(reads.trajectories, np.int64), counts], axis=1)
    weights: dict[int, int] = {}
    for trajectory, count in place.gathered(torch.from_numpy(own).to(place.device)).tolist():
        weights[trajectory] = weights.get(trajectory, 0) + count
    return weights


def deal(weights: dict[int, int], *, parts: int, seed: Sequence[int]) -> dict[int, int]:
    """The optimizer step (0 to parts - 1) of each trajectory, balanced by tokens.

    It depends on trajectories and seed alone, so that any number of ranks takes the same steps.
    """
    names = sorted(weights)
    order = np.random.default_rng(seed).permutation(len(names)).tolist()
    chosen = balanced_parts([weights[n] for n in names], parts=parts, order=order)
    return dict(zip(names, chosen, strict=True))


class Steps:
    """The optimizer steps of one half: which trajectories take part in which, anew each epoch."""

    def __init__(
        self, reads: Reads, place: Place, *, parts: int, carried: Carried | None = None
    ) -> None:
        """`parts`: most optimizer steps in one pass over the trajectories. A collective."""
        self._reads, self._place, self._parts = reads, place, parts
        self._carried = carried
        self._weights = weights_of(reads, place) if parts > 1 else {}

    def deal(self, *, seed: Sequence[int]) -> dict[int, int]:
        """The optimizer step of each trajectory. Where there is only one step, this rank's
        trajectories alone are named."""
        if self._parts == 1:
            return dict.fromkeys(self._reads.trajectories, 0)
        return deal(self._weights, parts=self._parts, seed=seed)

    def cut(self, dealt: dict[int, int]) -> list[list[MicroBatch]]:
        """This rank's micro-batches of each optimizer step, as many as the rank with the most has.
        Steps for which no rank has anything are left out. A collective."""
        reads, place, carried = self._reads, self._place, self._carried
        chosen: list[list[int]] = [[] for _ in range(self._parts)]
        for sequence, trajectory in enumerate(reads.trajectories):
            chosen[dealt[trajectory]].append(sequence)
        steps = [micro_batches(reads, sequences, place, carried) for sequences in chosen]
        counts = torch.tensor([len(micros) for micros in steps], device=place.device)
        for micros, most in zip(steps, place.largest(counts).tolist(), strict=True):
            micros += [empty_micro_batch(place.device)] * (most - len(micros))
        return [micros for micros in steps if micros]
