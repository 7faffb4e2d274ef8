"""Packed attention: many sequences in one row of tokens, none seeing another.

In: queries, keys and values of a pack and its `Layout`. Out: the same as if each sequence had been
run alone. Promise: never a dense T x T mask. On a GPU in half precision the whole pack is one call
of FlashAttention with the lengths of its sequences (`torch.nn.attention.varlen`), and nothing is
padded. Elsewhere sequences of similar length are padded together into [n, L] blocks with gather
indices built once per pack, and each block is one causal call of SDPA. Padding follows the real
tokens, so that a causal mask alone keeps it out.

The first tokens of a sequence may be elsewhere. If their keys and values are known already
(`PastKeyValues`) its queries see these as well, and its own keys are passed back to be kept. If
other sequences of the pack begin alike, these tokens are a sequence of their own, which is computed
once and whose keys all of them see.

`register` registers the function with transformers under the name `ATTENTION`; a model loaded with
that implementation passes the keyword `layout` on to it and builds no mask.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface

from headrace.config.estimates.activations import EXPLICIT_LENGTH
from learner.batching.layout import Layout, PaddedBlock

ATTENTION = "headrace_packed"
# What transformers hands through beside what is asked for; positions are in queries and keys
# already, and a pack has boundaries of its own.
_WITHOUT_EFFECT = {
    "position_ids", "cache_position", "is_causal", "use_cache", "output_attentions",
    "output_hidden_states",
}  # fmt: skip
WIDEST_HEAD = 256
"""FlashAttention's maximum width of a head, which is one for queries, keys and values."""


class _PadRows(torch.autograd.Function):
    """Gather of rows by `padded_from`, also backward: padding has no gradient."""

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
    layout: Layout | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    unpadded: Callable[..., Tensor] | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Causal attention of a pack inside each of its sequences.

    Args:
        module: the attention layer; only its number is read, and only where keys are carried.
        query: [1, heads, T, d]. key, value: [1, key heads, T, d]; heads is a multiple of key heads.
        attention_mask: must be None; transformers builds none for ours. layout: of the sequences.
        scaling: factor of the scores. dropout: must be 0: the learner's forward has to be
        repeatable. sliding_window: maximum number of keys that a query sees, itself included.
        softcap: scores are softcap * tanh(score / softcap) (Gemma 2, arXiv 2408.00118, section 2).
        s_aux: [heads] attention sinks, the score of a further key without value (gpt-oss). With
        either, a block's scores exist at once. unpadded: computes the pack as `_flash` does; None:
        FlashAttention where there is one, else SDPA in padded blocks.

    Returns:
        [1, T, heads, d] and None (no attention weights).

    Raises:
        ValueError: for a mask, dropout, or another unknown setting, or if the family's layers did
        not pass the layout on.
    """
    if layout is None:
        raise ValueError("its layers hand no layout of a pack to attention")
    if attention_mask is not None or dropout:
        raise ValueError("packed attention takes neither a mask nor dropout")
    if unknown := [name for name in others if name not in _WITHOUT_EFFECT and others[name]]:
        raise ValueError(f"packed attention knows no {', '.join(sorted(unknown))}")
    changed = softcap is not None or s_aux is not None
    if layout.frozen is not None:
        frozen = layout.frozen.view(1, 1, -1, 1)
        key, value = (torch.where(frozen, x.detach(), x) for x in (key, value))
    dtype = query.dtype
    if torch.is_autocast_enabled(query.device.type) and dtype == torch.float32:
        dtype = torch.get_autocast_dtype(query.device.type)  # a cast before padding is cheap
    explicit = query.device.type == "cpu" and dtype == torch.bfloat16
    # [T, heads, d] each.
    packed = [x.to(dtype).squeeze(0).transpose(0, 1) for x in (query, key, value)]
    half, width = dtype in (torch.bfloat16, torch.float16), query.shape[-1]
    if unpadded is None and query.is_cuda and half and width == value.shape[-1] <= WIDEST_HEAD:
        unpadded = _flash
    if unpadded is not None and not changed:
        key, value = _keys(module, layout, *packed[1:], chosen=layout.keys_from, own=True)
        out = unpadded(packed[0], key, value, layout, scaling=scaling, window=sliding_window)
        return out.unsqueeze(0), None
    standing = _keys(module, layout, *packed[1:], chosen=layout.past_from, own=layout.shares)
    q, k, v = (_PadRows.apply(x, layout.padded_from, layout.packed_from) for x in packed)
    outputs = []
    offset = before = 0
    for number, block in enumerate(layout.blocks):
        rows, length, past = block.rows, block.length, block.past
        stop, until = offset + rows * length, before + rows * past
        bq, bk, bv = (_block(x[offset:stop], rows, length) for x in (q, k, v))
        if past:
            earlier = (_block(x[before:until], rows, past) for x in standing)
            bk, bv = (torch.cat(pair, dim=2) for pair in zip(earlier, (bk, bv), strict=True))
        short = length * (past + length) <= EXPLICIT_LENGTH**2
        mask: Tensor | None = None
        if past:
            masks = {} if layout.masks is None else layout.masks
            mask = masks.get((number, sliding_window))
            if mask is None:
                mask = masks[number, sliding_window] = _added(block, sliding_window, bq)
        if changed:
            out = _explicit(
                bq, bk, bv, mask, scaling=scaling, window=sliding_window, softcap=softcap,
                sinks=s_aux,
            )  # fmt: skip
        elif mask is None and sliding_window is not None and length > sliding_window:
            out = _sliding(bq, bk, bv, window=sliding_window, scaling=scaling)
        elif explicit and short:
            out = _explicit(bq, bk, bv, mask, scaling=scaling)
        else:
            out = _fused(bq, bk, bv, mask, scaling=scaling)
        outputs.append(out.transpose(1, 2).reshape(rows * length, *out.shape[1::2]))
        offset, before = stop, until
    padded = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return padded.index_select(0, layout.packed_from).unsqueeze(0), None


def _keys(
    module: torch.nn.Module,
    layout: Layout,
    key: Tensor,
    value: Tensor,
    *,
    chosen: Tensor | None,
    own: bool,
) -> list[Tensor]:
    """Return the `chosen` keys and values (None: all) that the pack's queries see.

    Those of the tokens before the pack's and, if `own` or there are none, of the pack's own [T, key
    heads, d]. Gradients flow into the pack's own, which `layout.past` receives."""
    rows = [key, value]
    if layout.past is not None:
        layer: int = module.layer_idx  # type: ignore[assignment]
        layout.past.add_layer(layer, key.detach(), value.detach())
        if layout.past_length:
            known = [x.to(key) for x in layout.past.read(layer)]
            rows = [torch.cat(pair) for pair in zip(known, rows, strict=True)] if own else known
    return rows if chosen is None else [x.index_select(0, chosen) for x in rows]


def _flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: Layout,
    *,
    scaling: float | None,
    window: int | None,
) -> Tensor:
    """Causal attention of sequences end to end by FlashAttention, aligned at the last key of each.

    [T, heads, d] of query [T, heads, d] and key, value [K, key heads, d]. `layout` has the
    lengths; a query sees at most `window` keys, with itself (None: all)."""
    out = varlen_attn(
        query,
        key,
        value,
        layout.cu_lengths,
        layout.cu_keys,
        layout.max_length,
        layout.max_keys,
        scale=scaling,
        window_size=(-1 if window is None else window - 1, 0),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    assert isinstance(out, Tensor)  # nothing beside it was asked for
    return out


def _fused(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, scaling: float | None
) -> Tensor:
    """Attention by torch's fused kernel, causal where there is no `mask`."""
    if query.is_cuda and query.dtype == torch.float32:  # a GPU's fused kernel shares no keys there
        key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    shares = query.shape[1] != key.shape[1]
    return scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=shares
    )


def _sliding(
    query: Tensor, key: Tensor, value: Tensor, *, window: int, scaling: float | None
) -> Tensor:
    """Attention of [rows, heads, L, d]; a query sees `window` < L keys, with itself.

    Tiles of `window` queries see their own tile and the one before, so that memory grows with L and
    not with its square. The last tile is filled up behind the real tokens, where none looks."""
    rows, _, length, _ = query.shape
    tiles = -(-length // window)
    opening = slice(window)
    first = _fused(
        query[:, :, opening], key[:, :, opening], value[:, :, opening], None, scaling=scaling
    )
    q, k, v = (pad(x, (0, 0, 0, tiles * window - length)) for x in (query, key, value))
    queries = q[:, :, window:].unflatten(2, (tiles - 1, window)).transpose(1, 2).flatten(0, 1)
    k, v = (x.unfold(2, 2 * window, window).permute(0, 2, 1, 4, 3).flatten(0, 1) for x in (k, v))
    out = _fused(queries, k, v, _band(window, query.device), scaling=scaling)
    rest = out.unflatten(0, (rows, tiles - 1)).transpose(1, 2).flatten(2, 3)
    return torch.cat([first, rest[:, :, : length - window]], dim=2)


def _explicit(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    scaling: float | None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention by two batched products, causal (and in a `window`) where no `mask`
    [rows, 1, L, keys] is added to the scores. Heads that share keys are laid end to end as more
    queries of these keys, so that nothing is repeated."""
    rows, heads, length, width = query.shape
    shared, keys = heads // key.shape[1], key.shape[2]
    batch = rows * key.shape[1]
    if mask is None:
        everywhere = query.new_full((length, length), -torch.inf)
        future = everywhere.triu(1)
        if window is not None and window < length:
            future = future + everywhere.tril(-window)
    else:
        future = mask.expand(rows, key.shape[1], length, keys).reshape(batch, length, keys)
    added = future.repeat(*[1] * (future.dim() - 2), shared, 1).expand(batch, -1, -1)
    scores = torch.baddbmm(
        added if softcap is None else torch.zeros_like(added),
        query.reshape(batch, shared * length, width),
        key.reshape(batch, keys, width).transpose(1, 2),
        alpha=width**-0.5 if scaling is None else scaling,
    )
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh() + added
    if sinks is not None:
        sink = sinks.to(scores).repeat_interleave(length).view(1, key.shape[1], shared * length, 1)
        sink = sink.expand(rows, -1, -1, -1).reshape(batch, shared * length, 1)
        scores = torch.cat([scores, sink], dim=-1)
    shares = scores.softmax(-1)[..., :keys]
    out = torch.bmm(shares, value.reshape(batch, keys, value.shape[-1]))
    return out.view(rows, heads, length, value.shape[-1])


def _block(x: Tensor, rows: int, length: int) -> Tensor:
    """[rows * L, heads, d] as [rows, heads, L, d]."""
    return x.view(rows, length, *x.shape[1:]).transpose(1, 2)


def _band(window: int, device: torch.device) -> Tensor:
    """[W, 2W] bool: the keys of its own tile and the one before that a query sees."""
    places = torch.arange(2 * window, device=device)
    behind = places[window:, None] - places
    return (behind >= 0) & (behind < window)


def _added(block: PaddedBlock, window: int | None, query: Tensor) -> Tensor:
    """[rows, 1, L, past + L] mask added to scores of a block with tokens before it.

    0 where a query sees the key, else -inf. In the dtype of the queries."""
    assert block.before is not None
    steps = torch.arange(block.length, device=query.device)
    back, before = torch.arange(block.past, device=query.device), block.before[:, None, None, None]
    mask = query.new_zeros(block.rows, 1, block.length, block.past + block.length)
    earlier, own = mask.split([block.past, block.length], dim=3)
    # A place behind the last earlier token shows any token.
    earlier.masked_fill_(back >= before, -torch.inf)
    own.masked_fill_(steps[:, None] < steps, -torch.inf)
    if window is not None:
        earlier.masked_fill_(before + steps[:, None] - back >= window, -torch.inf)
        own.masked_fill_(steps[:, None] - steps >= window, -torch.inf)
    return mask


def register() -> None:
    """Register `ATTENTION` with transformers; calling it again changes nothing."""
    AttentionInterface.register(ATTENTION, packed_attention)
