"""Layout of a pack: places of its sequences and the keys that each of them sees.

Sequences are end to end for kernels that take lengths, padded together in blocks for the others.
In: lengths of sequences, and the tokens before each that are not laid with it. Out: `Layout`, with
gather indices built once per pack. Promise: a block holds sequences of similar length, so that
little of it is padding, and padding follows the real tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from learner.batching.packing import ranges

BLOCK_RATIO = 0.75
"""Minimum length in a block, relative to its longest.

Fewer blocks mean fewer calls, tighter blocks less padding (`headrace bench learner`)."""


class PastKeyValues(Protocol):
    """Keys and values of the tokens before those of a pack, rotated to their places."""

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        """[K, key heads, d] keys and values, without gradient.

        Those of the K tokens before the pack's sequences, in the order of the sequences."""

    def add_layer(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Add the pack's own keys and values, each [T, key heads, d], without gradient."""


class PaddedBlock(NamedTuple):
    """Sequences padded together: `rows` of `length` tokens.

    Before each are as many tokens as its entry in `before` [rows], at most `past`; None: none."""

    rows: int
    length: int
    past: int = 0
    before: Tensor | None = None


@dataclass(eq=False)
class Layout:
    """Places of a pack's sequences, packed and padded.

    No tuple: torch.compile looks into tuples, and would compile a layer again for each pack.

    Attributes:
        cu_lengths: [S+1] int32, cumulative lengths of the sequences. max_length: length of the
        longest. cu_keys, max_keys: the same of the keys that a sequence sees, those before it
        counted. keys_from: [K] int64, the token of each such key, the sequences end to end: one of
        those before the pack's or, counted on behind them, one of the pack's own. None: each
        sequence sees itself alone. blocks: the padded blocks, end to end. padded_from: [P] int64,
        the packed token of each padded place (padding repeats one). packed_from: [T] int64, the
        padded place of each packed token. masks: of the blocks with tokens before them, each built
        once in a forward pass; None outside of it, where each layer builds its own: activation
        checkpointing needs them again in the backward pass, and the packs of an update would hold
        them all until then. frozen: [T] bool, tokens whose keys and values pass no gradient on;
        None: no such tokens. past: reads
        keys and values of the tokens before the pack's, and receives the pack's; None: every
        sequence begins in the pack, and nothing reads its keys. past_from: [Q] int64, the token at
        each padded place before the blocks, counted as in `keys_from`. past_length: number of
        tokens before the pack's. shares: some sequences of the pack stand before others.
    """

    cu_lengths: Tensor
    max_length: int
    cu_keys: Tensor
    max_keys: int
    keys_from: Tensor | None
    blocks: tuple[PaddedBlock, ...]
    padded_from: Tensor
    packed_from: Tensor
    masks: dict[object, Tensor] | None = None
    frozen: Tensor | None = None
    past: PastKeyValues | None = None
    past_from: Tensor | None = None
    past_length: int = 0
    shares: bool = False


def layout_of(
    lengths: Sequence[int],
    *,
    before: Sequence[int] | None = None,
    shared: Sequence[int | None] | None = None,
    ratio: float = BLOCK_RATIO,
    device: torch.device | str = "cpu",
) -> Layout:
    """Lay sequences end to end in this order (best in descending length).

    Args:
        lengths: tokens of each in the pack. before: number of tokens of each before these (None:
        none of any); the caller then passes their keys to the layout, too, or their place in
        `shared`. shared: the sequence of the pack that stands before each, all of it; None: none
        does. ratio: how tight the blocks are. device: of the indices.
    """
    if not lengths:
        raise ValueError("a pack needs at least one sequence")
    earlier = [0] * len(lengths) if before is None else list(before)
    inside_pack = [None] * len(lengths) if shared is None else list(shared)
    sizes = torch.tensor(list(lengths), dtype=torch.int64)
    starts = torch.zeros(len(lengths) + 1, dtype=torch.int64)
    starts[1:] = sizes.cumsum(0)
    blocks: list[PaddedBlock] = []
    padded_from: list[Tensor] = []
    packed_from: list[Tensor] = []
    past_from: list[Tensor] = []
    offset = 0
    counts = torch.tensor(earlier, dtype=torch.int64)
    known = [0 if s is not None else n for n, s in zip(earlier, inside_pack, strict=True)]
    given = torch.tensor(known, dtype=torch.int64)
    offsets = given.cumsum(0) - given
    for i, s in enumerate(inside_pack):
        if s is not None:
            if earlier[i] != lengths[s] or earlier[s]:
                raise ValueError("a shared sequence stands before others whole, and begins itself")
            offsets[i] = sum(known) + starts[s]
    shares = any(s is not None for s in inside_pack)
    most = sum(known) + shares * sum(lengths) - 1
    for first, last in _runs(lengths, earlier, ratio):
        length = max(lengths[first:last])
        steps = torch.arange(length)
        inside = steps < sizes[first:last, None]
        place = starts[first:last, None] + torch.minimum(steps, sizes[first:last, None] - 1)
        padded_from.append(place.flatten())
        packed_from.append(offset + torch.nonzero(inside.flatten()).squeeze(1))
        offset += (last - first) * length
        past, own = max(earlier[first:last]), counts[first:last]
        if past:
            # A place without a token shows any token: what it says is masked.
            back = torch.minimum(torch.arange(past), (own[:, None] - 1).clamp(min=0))
            shown = offsets[first:last, None] + back
            past_from.append(shown.clamp(max=most).flatten())
        blocks.append(PaddedBlock(last - first, length, past, own.to(device) if past else None))
    cu_lengths = cu_keys = starts.to(device=device, dtype=torch.int32)
    keys_from, seen = None, sizes + counts
    if past_from:
        cu_keys = pad(seen.cumsum(0), (1, 0)).to(device=device, dtype=torch.int32)
        # Of each sequence what stands before it, then its own tokens.
        begins = torch.stack([offsets, sum(known) + starts[:-1]], dim=1)
        places = ranges(begins.flatten().numpy(), torch.stack([counts, sizes], 1).flatten().numpy())
        keys_from = torch.from_numpy(places).to(device)
    return Layout(
        cu_lengths=cu_lengths,
        max_length=max(lengths),
        cu_keys=cu_keys,
        max_keys=int(seen.max()),
        keys_from=keys_from,
        blocks=tuple(blocks),
        padded_from=torch.cat(padded_from).to(device),
        packed_from=torch.cat(packed_from).to(device),
        past_from=torch.cat(past_from).to(device) if past_from else None,
        past_length=sum(known),
        shares=shares,
    )


def _runs(lengths: Sequence[int], before: Sequence[int], ratio: float) -> list[tuple[int, int]]:
    """Runs [first, last) whose shortest is at least `ratio` of their longest.

    That holds with and without the tokens before them."""
    sizes = list(zip(lengths, map(sum, zip(lengths, before, strict=True)), strict=True))
    runs, first = [], 0
    low = high = sizes[0]
    for i, size in enumerate(sizes):
        lows = min(low[0], size[0]), min(low[1], size[1])
        highs = max(high[0], size[0]), max(high[1], size[1])
        if i > first and any(a < ratio * b for a, b in zip(lows, highs, strict=True)):
            runs.append((first, i))
            first, lows, highs = i, size, size
        low, high = lows, highs
    runs.append((first, len(lengths)))
    return runs
