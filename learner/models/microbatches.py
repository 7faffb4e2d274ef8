"""Micro-batches: packs that go through a model together, by optimizer step.

In: the reads of a policy or value batch. Out: `OptimizerSteps` and `MicroBatch`es. Promises: every
rank deals trajectories to optimizer steps alike, whatever its share; all ranks get the same number
of micro-batches for each step (ranks with fewer get empty ones). Ranks agree on it by collectives,
so no rank needs another's share.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from learner.batching.layout import layout_of
from learner.batching.packing import balanced_parts, pack_sequences, ranges
from learner.batching.token_reads import TokenReads
from learner.batching.trainable_tokens import Int64
from learner.device import RankContext
from learner.models.forward import Pack
from learner.models.images import ImageRow, PackImages, images_of
from learner.models.prefix_cache import CacheSource, PrefixCache


class MicroBatch(NamedTuple):
    """A pack, and the index of each of its reads in the flat order of its batch [N]."""

    pack: Pack
    tokens: Tensor


class _Range(NamedTuple):
    """Tokens [begin, end) of a sequence that go through the model, and their reads.

    `tokens` are indices of reads, the first of which is in the state of token `first`. The first
    `opening` tokens of the sequence are its prompt."""

    sequence: int
    begin: int
    first: int
    end: int
    opening: int
    tokens: Int64

    @property
    def size(self) -> int:
        return self.end - self.begin


class _PackRow(NamedTuple):
    """Tokens [begin, end) of a range, laid into a pack without a gap.

    `before`: the row of the tokens before `begin`, None where they are not in the pack."""

    stretch: _Range
    begin: int
    end: int
    before: int | None = None


class _RangeRows(NamedTuple):
    """A range's rows in a pack: `own` (None: no more than `opening`), `opening`."""

    stretch: _Range
    own: int | None
    opening: int | None


def micro_batches(
    reads: TokenReads,
    sequences: Sequence[int],
    place: RankContext,
    carried: PrefixCache | None = None,
) -> list[MicroBatch]:
    """Pack some of the sequences, each with all its reads.

    Tokens behind a sequence's last read are left out, and those before its first one as far as
    `carried` has them. An opening that several sequences share is there once, if `place` allows."""
    order = np.argsort(reads.sequence_of, kind="stable")
    bounds = np.searchsorted(reads.sequence_of[order], np.arange(len(reads.token_ids) + 1))
    tokens_of = [order[bounds[s] : bounds[s + 1]] for s in range(len(reads.token_ids))]
    wanted = [_stretch(reads, s, tokens_of[s], carried) for s in sequences if tokens_of[s].size]
    # Neighbours of one length have as much before them, too: blocks of attention stay tight.
    wanted.sort(key=lambda stretch: -stretch.begin)
    units = _alike(reads, wanted, place) if place.shares_openings else [[one] for one in wanted]
    sizes = [sum(one.size for one in unit) - (len(unit) - 1) * unit[0].opening for unit in units]
    if place.images is not None:
        seen = [place.images.cost(reads.media_of(unit[0].sequence)) for unit in units]
        sizes = [size + cost for size, cost in zip(sizes, seen, strict=True)]
    return [
        _micro_batch(reads, [units[i] for i in pack], place, carried)
        for pack in pack_sequences(sizes, budget=place.budget)
    ]


def _stretch(
    reads: TokenReads, sequence: int, tokens: Int64, carried: PrefixCache | None
) -> _Range:
    positions = reads.position_of[tokens]
    first, end, begin = int(positions.min()) - 1, int(positions.max()), 0
    opening = reads.openings[sequence]
    if carried is not None:
        begin = carried.usable(
            reads.trajectories[sequence],
            reads.token_ids[sequence],
            first,
            opening=opening,
            media=reads.media_of(sequence),
        )
    return _Range(sequence, begin, first, end, opening, tokens)


def _alike(
    reads: TokenReads, stretches: Sequence[_Range], place: RankContext
) -> list[list[_Range]]:
    """Group ranges with the same opening, as many as a pack holds, into units.

    Not those for which gradients flow differently into the opening."""
    found: dict[object, list[_Range]] = {}
    for number, one in enumerate(stretches):
        opening = reads.token_ids[one.sequence][: one.opening].tobytes()
        frozen = min(one.first, one.opening) if place.frozen_context else 0
        apart, media = one.begin or not one.opening, reads.media_of(one.sequence)
        found.setdefault(number if apart else (opening, media, frozen), []).append(one)
    units: list[list[_Range]] = []
    for group in found.values():
        unit: list[_Range] = []
        room = 0
        for one in group:
            own = one.size - one.opening
            if own > room or not unit:
                unit, room = [], place.budget - one.opening
                units.append(unit)
            unit.append(one)
            room -= own
    return units


def _lay(units: Sequence[Sequence[_Range]]) -> tuple[list[_PackRow], list[_RangeRows]]:
    """Lay out a pack's rows: ranges, longest first, then the separate openings."""
    pairs = [(one, u) for u, unit in enumerate(units) for one in unit]
    pairs.sort(key=lambda pair: -pair[0].size)
    apart = [u for u, unit in enumerate(units) if len(unit) > 1]
    apart.sort(key=lambda u: -units[u][0].opening)
    begins = [one.opening if u in apart else one.begin for one, u in pairs]
    own = [begin < one.end for begin, (one, _) in zip(begins, pairs, strict=True)]
    opening_row = {u: sum(own) + number for number, u in enumerate(apart)}
    rows: list[_PackRow] = []
    stands: list[_RangeRows] = []
    for begin, has_own, (one, u) in zip(begins, own, pairs, strict=True):
        stands.append(_RangeRows(one, len(rows) if has_own else None, opening_row.get(u)))
        if has_own:
            rows.append(_PackRow(one, begin, one.end, opening_row.get(u)))
    rows += [_PackRow(units[u][0], 0, units[u][0].opening) for u in apart]
    return rows, stands


def _micro_batch(
    reads: TokenReads,
    units: Sequence[Sequence[_Range]],
    place: RankContext,
    carried: PrefixCache | None,
) -> MicroBatch:
    rows, stands = _lay(units)
    begins, sizes, firsts = (
        np.array(column, np.int64)
        for column in zip(
            *((row.begin, row.end - row.begin, row.stretch.first) for row in rows), strict=True
        )
    )
    starts = np.cumsum(sizes) - sizes
    ids = np.concatenate([reads.token_ids[r.stretch.sequence][r.begin : r.end] for r in rows])
    device, places = place.device, ranges(begins, sizes)
    shared = [row.before for row in rows]
    layout = layout_of(sizes.tolist(), before=begins.tolist(), shared=shared, device=device)
    if place.frozen_context:
        layout.frozen = torch.from_numpy(places < np.repeat(firsts, sizes)).to(device)
    if carried is not None:
        sources = [_source(reads, stand, starts) for stand in stands]
        layout.past = carried.past(sources, device)
    tokens = np.concatenate([stand.stretch.tokens for stand in stands])
    states = [_states(stand, starts, reads.position_of[stand.stretch.tokens]) for stand in stands]
    images = None
    if place.images is not None:
        laid = [
            ImageRow(reads.token_ids[s], reads.media_of(s), row.begin, row.end)
            for s, row in ((row.stretch.sequence, row) for row in rows)
        ]
        images = images_of(laid, starts.tolist(), place.images, device)
    pack = Pack(
        token_ids=torch.from_numpy(ids.astype(np.int64)).to(device),
        position_ids=torch.from_numpy(places).to(device),
        layout=layout,
        reads=torch.from_numpy(np.concatenate(states)).to(device),
        targets=torch.from_numpy(reads.targets[tokens]).to(device),
        images=images,
    )
    return MicroBatch(pack, torch.from_numpy(tokens).to(device))


def _states(stand: _RangeRows, starts: Int64, positions: Int64) -> Int64:
    """[N] the pack's token just before each of the range's tokens at `positions` [N]."""
    one, before = stand.stretch, positions - 1
    begin = one.begin if stand.opening is None else one.opening
    own = before - begin + (0 if stand.own is None else starts[stand.own])
    if stand.opening is None:
        return own
    return np.where(before < begin, starts[stand.opening] + before, own)


def _source(reads: TokenReads, stand: _RangeRows, starts: Int64) -> CacheSource:
    """Return the pack's places of a range's tokens."""
    one, places = stand.stretch, []
    begin = one.begin if stand.opening is None else one.opening
    if stand.opening is not None:
        places.append(slice(int(starts[stand.opening]), int(starts[stand.opening]) + begin))
    if stand.own is not None:
        places.append(slice(int(starts[stand.own]), int(starts[stand.own]) + one.end - begin))
    return CacheSource(
        reads.trajectories[one.sequence],
        reads.token_ids[one.sequence],
        one.begin,
        one.end,
        tuple(places),
        reads.media_of(one.sequence),
    )


def empty_micro_batch(place: RankContext) -> MicroBatch:
    """One token without a read: a rank without work takes part with a zero gradient."""
    nothing = torch.zeros(0, dtype=torch.int64, device=place.device)
    one = torch.zeros(1, dtype=torch.int64, device=place.device)
    images = None if place.images is None else PackImages((), nothing, nothing, None)
    layout = layout_of([1], device=place.device)
    return MicroBatch(Pack(one, one, layout, nothing, nothing, images), nothing)


def weights_of(reads: TokenReads, place: RankContext) -> dict[int, int]:
    """Count the reads of each trajectory over all ranks. A collective."""
    counts = np.bincount(reads.sequence_of, minlength=len(reads.trajectories))
    own = np.stack([np.array(reads.trajectories, np.int64), counts], axis=1)
    weights: dict[int, int] = {}
    for trajectory, count in place.gathered(torch.from_numpy(own).to(place.device)).tolist():
        weights[trajectory] = weights.get(trajectory, 0) + count
    return weights


class OptimizerSteps:
    """The optimizer steps of a batch: their trajectories, drawn again each epoch."""

    def __init__(
        self,
        reads: TokenReads,
        place: RankContext,
        *,
        parts: int,
        carried: PrefixCache | None = None,
    ) -> None:
        """`parts`: maximum optimizer steps of a pass over the trajectories. A collective."""
        self._reads, self._place, self._parts = reads, place, parts
        self._carried = carried
        self._weights = weights_of(reads, place) if parts > 1 else {}

    def deal(self, *, seed: Sequence[int]) -> dict[int, int]:
        """Return each trajectory's optimizer step, balanced by tokens; with one, of this rank's.

        It depends on trajectories and seed alone, so that any number of ranks takes the same."""
        if self._parts == 1:
            return dict.fromkeys(self._reads.trajectories, 0)
        names = sorted(self._weights)
        order = np.random.default_rng(seed).permutation(len(names)).tolist()
        tokens = [self._weights[name] for name in names]
        chosen = balanced_parts(tokens, parts=self._parts, order=order)
        return dict(zip(names, chosen, strict=True))

    def cut(self, dealt: dict[int, int]) -> list[list[MicroBatch]]:
        """Return this rank's micro-batches of each optimizer step. A collective.

        As many as the rank with the most has; steps without tokens on any rank are left out."""
        reads, place, carried = self._reads, self._place, self._carried
        chosen: list[list[int]] = [[] for _ in range(self._parts)]
        for sequence, trajectory in enumerate(reads.trajectories):
            chosen[dealt[trajectory]].append(sequence)
        steps = [micro_batches(reads, sequences, place, carried) for sequences in chosen]
        counts = torch.tensor([len(micros) for micros in steps], device=place.device)
        for micros, most in zip(steps, place.largest(counts).tolist(), strict=True):
            micros += [empty_micro_batch(place)] * (most - len(micros))
        return [micros for micros in steps if micros]
