"""Packed attention: many sequences in one row of tokens, none seeing another.

In: queries, keys and values of a pack and its `Layout`. Out: the same as if each sequence had been
run alone. Promise: never a dense T x T mask; sequences of similar length are padded together into
[n, L] blocks with gather indices made once a pack, and each block is one causal call of SDPA.
Padding follows the real tokens, so that a causal mask alone keeps it out.

`register` makes the function known to transformers under the name `ATTENTION`; a model loaded with
that implementation hands the keyword `layout` through to it and builds no mask.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface

ATTENTION = "headrace_packed"
# A block holds sequences at least this long, relative to its longest: fewer blocks mean fewer
# calls, tighter blocks less padding (`benchmarks/packing.py` measures both).
BLOCK_RATIO = 0.75
# On a CPU in bfloat16 the backward pass of torch's fused kernel is slow for short sequences: a
# fifth of the speed of two plain batched products at 45 tokens, the same at about 1000.
EXPLICIT_LENGTH = 512


class Block(NamedTuple):
    """Sequences padded together: `rows` of `length` tokens."""

    rows: int
    length: int


class Layout(NamedTuple):
    """Where the sequences of a pack are, packed and padded.

    Attributes:
        cu_lengths: [S+1] int32, cumulative lengths of the sequences.
        max_length: length of the longest.
        blocks: the padded blocks, end to end.
        padded_from: [P] int64, the packed token of each padded place (padding repeats one).
        packed_from: [T] int64, the padded place of each packed token.
        frozen: [T] bool, tokens whose keys and values pass no gradient on; None: no such tokens.
    """

    cu_lengths: Tensor
    max_length: int
    blocks: tuple[Block, ...]
    padded_from: Tensor
    packed_from: Tensor
    frozen: Tensor | None = None


def layout_of(
    lengths: Sequence[int],
    *,
    ratio: float = BLOCK_RATIO,
    device: torch.device | str = "cpu",
) -> Layout:
    """The layout of sequences laid end to end in this order (best in descending length)."""
    if not lengths:
        raise ValueError("a pack needs at least one sequence")
    sizes = torch.tensor(list(lengths), dtype=torch.int64)
    starts = torch.zeros(len(lengths) + 1, dtype=torch.int64)
    starts[1:] = sizes.cumsum(0)
    blocks: list[Block] = []
    padded_from: list[Tensor] = []
    places: list[Tensor] = []
    offset = 0
    for first, last in _runs(lengths, ratio):
        length = max(lengths[first:last])
        steps = torch.arange(length)
        inside = steps < sizes[first:last, None]
        place = starts[first:last, None] + torch.minimum(steps, sizes[first:last, None] - 1)
        padded_from.append(place.flatten())
        places.append(offset + torch.nonzero(inside.flatten()).squeeze(1))
        blocks.append(Block(last - first, length))
        offset += (last - first) * length
    return Layout(
        cu_lengths=starts.to(device=device, dtype=torch.int32),
        max_length=max(lengths),
        blocks=tuple(blocks),
        padded_from=torch.cat(padded_from).to(device),
        packed_from=torch.cat(places).to(device),
    )


def _runs(lengths: Sequence[int], ratio: float) -> list[tuple[int, int]]:
    """Neighbours whose shortest is at least `ratio` of their longest, as [first, last)."""
    runs, first = [], 0
    shortest = longest = lengths[0]
    for i, length in enumerate(lengths):
        low, high = min(shortest, length), max(longest, length)
        if i > first and low < ratio * high:
            runs.append((first, i))
            first, low, high = i, length, length
        shortest, longest = low, high
    runs.append((first, len(lengths)))
    return runs


class _Pad(torch.autograd.Function):
    """Gathers rows by `padded_from`. Padding gets no gradient, so the backward pass is a gather as
    well."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, padded_from: Tensor, packed_from: Tensor) -> Tensor:
        ctx.save_for_backward(packed_from)
        return rows.index_select(0, padded_from)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (packed_from,) = ctx.saved_tensors
        return gradients[0].index_select(0, packed_from), None, None


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    layout: Layout,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **_others: Any,
) -> tuple[Tensor, None]:
    """Causal attention of a pack inside each of its sequences.

    Args:
        module: the attention layer (not read).
        query: [1, heads, T, d].
        key, value: [1, key heads, T, d]; heads is a multiple of key heads.
        attention_mask: must be None, as our mask function gives.
        layout: where the sequences are.
        scaling: factor of the scores.
        dropout: must be 0: the learner's forward has to be repeatable.
        sliding_window: most keys a query sees, itself included.

    Returns:
        [1, T, heads, d] and None (no attention weights).

    Raises:
        ValueError: a mask or dropout was asked for.
    """
    if attention_mask is not None or dropout:
        raise ValueError("packed attention takes neither a mask nor dropout")
    if layout.frozen is not None:
        frozen = layout.frozen.view(1, 1, -1, 1)
        key, value = (torch.where(frozen, x.detach(), x) for x in (key, value))
    dtype = _product_dtype(query)
    explicit = query.device.type == "cpu" and dtype == torch.bfloat16
    q, k, v = (
        _Pad.apply(_rows(x.to(dtype)), layout.padded_from, layout.packed_from)
        for x in (query, key, value)
    )
    outputs = []
    offset = 0
    for rows, length in layout.blocks:
        stop = offset + rows * length
        bq, bk, bv = (_block(x[offset:stop], rows, length) for x in (q, k, v))
        band = _band(length, sliding_window, query.device)
        if band is None and explicit and length <= EXPLICIT_LENGTH:
            out = _explicit(bq, bk, bv, scaling=scaling)
        else:
            out = scaled_dot_product_attention(
                bq,
                bk,
                bv,
                attn_mask=band,
                is_causal=band is None,
                scale=scaling,
                enable_gqa=query.shape[1] != key.shape[1],
            )
        outputs.append(out.transpose(1, 2).reshape(rows * length, *out.shape[1::2]))
        offset = stop
    padded = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return padded.index_select(0, layout.packed_from).unsqueeze(0), None


def _product_dtype(x: Tensor) -> torch.dtype:
    """The dtype that autocast gives to a matrix product of x. Casting before padding moves fewer
    bytes."""
    if torch.is_autocast_enabled(x.device.type) and x.dtype == torch.float32:
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype


def _rows(x: Tensor) -> Tensor:
    """[1, heads, T, d] as [T, heads, d]."""
    return x.squeeze(0).transpose(0, 1)


def _explicit(query: Tensor, key: Tensor, value: Tensor, *, scaling: float | None) -> Tensor:
    """Causal attention by two batched products. Heads that share keys are laid end to end as more
    queries of these keys, so that nothing is repeated."""
    rows, heads, length, width = query.shape
    shared = heads // key.shape[1]
    batch = rows * key.shape[1]
    future = torch.full((length, length), -torch.inf, dtype=query.dtype).triu(1)
    scores = torch.baddbmm(
        future.repeat(shared, 1).expand(batch, -1, -1),
        query.reshape(batch, shared * length, width),
        key.reshape(batch, length, width).transpose(1, 2),
        alpha=width**-0.5 if scaling is None else scaling,
    )
    out = torch.bmm(scores.softmax(-1), value.reshape(batch, length, value.shape[-1]))
    return out.view(rows, heads, length, value.shape[-1])


def _block(x: Tensor, rows: int, length: int) -> Tensor:
    """[rows * L, heads, d] as [rows, heads, L, d]."""
    return x.view(rows, length, *x.shape[1:]).transpose(1, 2)


def _band(length: int, window: int | None, device: torch.device) -> Tensor | None:
    """[L, L] bool mask of a sliding window; None where it does not reach beyond the causal one."""
    if window is None or length <= window:
        return None
    steps = torch.arange(length, device=device)
    behind = steps[:, None] - steps[None, :]
    return (behind >= 0) & (behind < window)


def _no_mask(**_arguments: Any) -> None:
    return None


def register() -> None:
    """Make `ATTENTION` known to transformers; calling it again changes nothing."""
    AttentionInterface.register(ATTENTION, packed_attention)
    AttentionMaskInterface.register(ATTENTION, _no_mask)
