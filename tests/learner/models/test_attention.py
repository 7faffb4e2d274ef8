"""Packed attention is attention of each sequence alone, in padded blocks and without padding."""

from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    Gemma2Config,
    Gemma2ForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from learner.batching.layout import BLOCK_RATIO, Layout, layout_of
from learner.models.attention import ATTENTION, packed_attention, register
from learner.models.feature_network import FeatureNetwork
from learner.models.forward import Pack, PolicyNetwork
from learner.models.loading import compile_layers

LENGTHS = [30, 28, 12, 11, 5, 3, 1]
SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 40,
    "initializer_range": 0.2,
}
MODELS: list[tuple[type, type, dict[str, Any]]] = [
    (LlamaConfig, LlamaForCausalLM, {}),
    (Qwen2Config, Qwen2ForCausalLM, {}),
    (Qwen3Config, Qwen3ForCausalLM, {}),
    (MistralConfig, MistralForCausalLM, {"sliding_window": 6}),
    (Gemma2Config, Gemma2ForCausalLM, {"sliding_window": 6, "attn_logit_softcapping": 0.5}),
    (GptOssConfig, GptOssForCausalLM, {"sliding_window": 6, "num_local_experts": 4}),
]
WAYS = [0.01, BLOCK_RATIO, 1.01, None]
"""How tight blocks are; None: no blocks, but a kernel that takes lengths."""
UNPADDED = "headrace_unpadded"


def one_by_one(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: Layout,
    *,
    scaling: float | None,
    window: int | None,
) -> Tensor:
    """What FlashAttention promises for its lengths, sequence by sequence."""
    queries, keys = layout.cu_lengths.tolist(), layout.cu_keys.tolist()
    assert layout.max_length == max(map(int, layout.cu_lengths.diff()))
    assert layout.max_keys == max(map(int, layout.cu_keys.diff()))
    found = []
    for i in range(len(queries) - 1):
        q = query[queries[i] : queries[i + 1]].transpose(0, 1)
        k, v = (x[keys[i] : keys[i + 1]].transpose(0, 1) for x in (key, value))
        back = torch.arange(k.shape[1]) - torch.arange(q.shape[1])[:, None]
        back = back - (k.shape[1] - q.shape[1])
        seen = (back <= 0) & (back > -(window or k.shape[1]))
        out = nn.functional.scaled_dot_product_attention(
            q[None], k[None], v[None], attn_mask=seen, scale=scaling, enable_gqa=True
        )
        found.append(out[0].transpose(0, 1))
    return torch.cat(found)


def models(
    kind: type, model: type, extra: dict[str, Any], *, unpadded: bool = False
) -> tuple[nn.Module, nn.Module]:
    """The same weights with packed and with transformers' own attention."""
    register()
    AttentionInterface.register(UNPADDED, partial(packed_attention, unpadded=one_by_one))
    torch.manual_seed(0)
    found = []
    for attention in (UNPADDED if unpadded else ATTENTION, "eager"):
        config = kind(**SHAPE, **extra)
        config._attn_implementation = attention
        config._experts_implementation = "eager"  # the others take no float64
        found.append(model(config).double())
    found[1].load_state_dict(found[0].state_dict())
    return found[0], found[1]


@pytest.mark.parametrize(("kind", "model", "extra"), MODELS)
@pytest.mark.parametrize("ratio", WAYS)
def test_packed_is_unpacked(
    kind: type, model: type, extra: dict[str, Any], ratio: float | None
) -> None:
    """Logprobs and gradients, however tight the blocks are."""
    packed, alone = models(kind, model, extra, unpadded=ratio is None)
    sequences = [torch.randint(0, 40, (length,)) for length in LENGTHS]
    ids = torch.cat(sequences)
    places = torch.cat([torch.arange(length) for length in LENGTHS])
    pack = Pack(
        ids, places, layout_of(LENGTHS, ratio=ratio or BLOCK_RATIO), torch.arange(ids.numel()), ids
    )
    found = PolicyNetwork(packed)(pack).logprobs
    expected = torch.cat(
        [
            alone(s[None]).logits[0].log_softmax(-1).gather(1, s[:, None]).squeeze(1)
            for s in sequences
        ]
    )
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    weights = torch.linspace(-1, 1, ids.numel(), dtype=torch.float64)
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    for (name, a), b in zip(packed.named_parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5, msg=name)


class OnGpu(Tensor):
    """Says of itself that it is in a GPU's memory."""

    is_cuda = True


def test_flash_attention_gets_no_values_narrower_than_keys() -> None:
    """DeepSeek's are 128 numbers wide, and its keys 192."""
    layout = layout_of([5, 3])
    query, key = (torch.randn(1, 2, 8, 16, dtype=torch.bfloat16) for _ in range(2))
    value = torch.randn(1, 2, 8, 8, dtype=torch.bfloat16)
    expected, _ = packed_attention(nn.Identity(), query, key, value, None, layout=layout)
    query = query.as_subclass(OnGpu)
    with patch("learner.models.attention._flash") as flash:
        found, _ = packed_attention(nn.Identity(), query, key, value, None, layout=layout)
    assert not flash.called
    assert torch.equal(found, expected)


def test_a_gpu_in_float32_gets_keys_for_every_head() -> None:
    """If heads shared keys there, all scores would be in its memory."""
    layout = layout_of([5, 3])
    query, key, value = (torch.randn(1, heads, 8, 16) for heads in (4, 2, 2))
    expected, _ = packed_attention(nn.Identity(), query, key, value, None, layout=layout)
    fused = nn.functional.scaled_dot_product_attention
    query = query.as_subclass(OnGpu)
    with patch("learner.models.attention.scaled_dot_product_attention", wraps=fused) as called:
        found, _ = packed_attention(nn.Identity(), query, key, value, None, layout=layout)
    assert [[x.shape[1] for x in call.args] for call in called.call_args_list] == [[4, 4, 4]] * 2
    torch.testing.assert_close(found.as_subclass(Tensor), expected)


def test_a_sliding_window_keeps_nothing_that_grows_with_the_square_of_the_length() -> None:
    length, window = 200, 10
    queries = [torch.randn(1, 2, length, 4, requires_grad=True) for _ in range(3)]
    sizes: list[int] = []

    def pack(x: Tensor) -> Tensor:
        sizes.append(x.numel())
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        layout = layout_of([length])
        query, key, value = queries
        packed_attention(nn.Module(), query, key, value, None, layout=layout, sliding_window=window)
    assert 0 < max(sizes) < length * 2 * window


class Kept:
    """The keys and values of a whole pack, and those of the tokens that stand before its tails."""

    def __init__(self, before: list[int]) -> None:
        self._before, self._noted = before, dict[int, tuple[Tensor, Tensor]]()
        self.tails = dict[int, tuple[Tensor, Tensor]]()

    def add_layer(self, layer: int, key: Tensor, value: Tensor) -> None:
        (self.tails if layer in self._noted else self._noted)[layer] = key, value

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        key, value = (
            torch.cat([x[:n] for x, n in zip(whole.split(LENGTHS), self._before, strict=True)])
            for whole in self._noted[layer]
        )
        return key, value


@pytest.mark.parametrize("before", [[0, 3, 11, 2, 4, 0, 0], [29, 27, 11, 10, 4, 2, 0], [0] * 7])
@pytest.mark.parametrize(("kind", "model", "extra"), MODELS)
@pytest.mark.parametrize("ratio", WAYS)
def test_tails_on_keys_of_before_are_the_whole(
    kind: type, model: type, extra: dict[str, Any], ratio: float | None, before: list[int]
) -> None:
    """The last tokens of each sequence alone, on the keys and values that the first ones had: same
    logprobs, and the same keys and values of their own. Sliding windows reach over the border."""
    network = PolicyNetwork(models(kind, model, extra, unpadded=ratio is None)[0])
    sequences = [torch.randint(0, 40, (length,)) for length in LENGTHS]
    kept = Kept(before)
    found = []
    with torch.no_grad():
        for starts in ([0] * len(LENGTHS), before):
            pairs = list(zip(sequences, starts, strict=True))
            sizes = [s.numel() - n for s, n in pairs]
            ids = torch.cat([s[n:] for s, n in pairs])
            places = torch.cat([torch.arange(n, s.numel()) for s, n in pairs])
            layout = layout_of(sizes, before=starts, ratio=ratio or BLOCK_RATIO)
            layout.past = kept
            pack = Pack(ids, places, layout, torch.arange(ids.numel()), ids)
            found.append(network(pack).logprobs)
    tail = torch.cat([torch.arange(size) >= n for size, n in zip(LENGTHS, before, strict=True)])
    torch.testing.assert_close(found[1], found[0][tail], rtol=1e-6, atol=1e-6)
    for layer, noted in kept.tails.items():
        for again, whole in zip(noted, kept._noted[layer], strict=True):
            torch.testing.assert_close(again, whole[tail], rtol=1e-6, atol=1e-6)
    assert sorted(kept.tails) == [0, 1]


@pytest.mark.parametrize(("kind", "model", "extra"), MODELS)
@pytest.mark.parametrize("ratio", WAYS)
def test_an_opening_that_stands_once_stands_before_all(
    kind: type, model: type, extra: dict[str, Any], ratio: float | None
) -> None:
    """Logprobs and gradients of two groups of sequences with an opening each, and of one without,
    are those of each sequence alone, though the pack has the openings once."""
    packed, alone = models(kind, model, extra, unpadded=ratio is None)
    openings = [torch.randint(0, 40, (9,)), torch.randint(0, 40, (4,))]
    rests = [torch.randint(0, 40, (size,)) for size in (14, 8, 7, 5, 2)]
    owner = [0, 1, None, 0, 1]
    rows = [*rests, *openings]
    before = [0 if o is None else openings[o].numel() for o in owner] + [0, 0]
    shared = [None if o is None else len(rests) + o for o in owner] + [None, None]
    ids = torch.cat(rows)
    places = torch.cat([torch.arange(n, n + r.numel()) for n, r in zip(before, rows, strict=True)])
    lengths = [row.numel() for row in rows]
    layout = layout_of(lengths, before=before, shared=shared, ratio=ratio or BLOCK_RATIO)
    pack = Pack(ids, places, layout, torch.arange(ids.numel()), ids)
    network = PolicyNetwork(packed)
    found = network(pack).logprobs[: sum(map(len, rests))]
    expected = []
    for rest, o in zip(rests, owner, strict=True):
        whole = rest if o is None else torch.cat([openings[o], rest])
        scores = alone(whole[None]).logits[0].log_softmax(-1).gather(1, whole[:, None]).squeeze(1)
        expected.append(scores[whole.numel() - rest.numel() :])
    torch.testing.assert_close(found, torch.cat(expected), rtol=1e-5, atol=1e-6)
    weights = torch.linspace(-1, 1, found.numel(), dtype=torch.float64)
    (found * weights).sum().backward()
    (torch.cat(expected) * weights).sum().backward()
    for (name, a), b in zip(packed.named_parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5, msg=name)


def test_what_stands_before_others_stands_there_whole() -> None:
    with pytest.raises(ValueError, match="whole"):
        layout_of([4, 9], before=[3, 0], shared=[1, None])


def test_bfloat16_on_a_cpu_sees_what_stands_before() -> None:
    """The path of two plain products: a block of tails whose sequences have more or less before
    them."""
    before = [20, 3, 6, 11, 0, 1, 0]
    sizes = [n - b for n, b in zip(LENGTHS, before, strict=True)]
    layer, found = nn.Identity(), []
    layer.layer_idx = 0  # type: ignore[assignment]
    kept = Kept(before)
    tail = torch.cat([torch.arange(size) >= n for size, n in zip(LENGTHS, before, strict=True)])
    query, key, value = (x.detach().to(torch.bfloat16) for x in heads(torch.float32))
    for starts, rows in (([0] * 7, slice(None)), (before, tail)):
        layout = layout_of(sizes if starts is before else LENGTHS, before=starts, ratio=0.01)
        q, k, v = (x[:, :, rows] for x in (query, key, value))
        layout.past = kept
        out, _ = packed_attention(layer, q, k, v, None, layout=layout)
        found.append(out[0])
    torch.testing.assert_close(found[1], found[0][tail], rtol=0.02, atol=0.02)


def heads(dtype: torch.dtype, *, heads: int = 4, shared: int = 2) -> list[Tensor]:
    torch.manual_seed(1)
    total = sum(LENGTHS)
    counts = (heads, heads // shared, heads // shared)
    return [torch.randn(1, n, total, 16, dtype=dtype).requires_grad_() for n in counts]


def test_bfloat16_on_a_cpu_is_float32_rounded() -> None:
    """The path of two plain products, with heads that share keys, forward and backward."""
    layout = layout_of(LENGTHS)
    found = []
    for dtype in (torch.bfloat16, torch.float32):
        query, key, value = (x.detach().to(dtype).requires_grad_() for x in heads(torch.float32))
        out, _ = packed_attention(nn.Identity(), query, key, value, None, layout=layout)
        out.float().square().sum().backward()
        found.append([out, query.grad, key.grad, value.grad])
    for a, b in zip(*found, strict=True):
        assert ((a.float() - b).norm() / b.norm()) < 0.02


def test_sequences_do_not_see_one_another() -> None:
    """A NaN in one sequence stays there."""
    query, key, value = (x.detach() for x in heads(torch.float32))
    value[:, :, :30] = torch.nan
    out, _ = packed_attention(nn.Identity(), query, key, value, None, layout=layout_of(LENGTHS))
    assert out[0, :30].isnan().all()
    assert out[0, 30:].isfinite().all()


def test_masks_and_dropout_are_refused() -> None:
    query, key, value = heads(torch.float32)
    layout = layout_of(LENGTHS)
    with pytest.raises(ValueError, match="neither"):
        packed_attention(nn.Identity(), query, key, value, None, layout=layout, dropout=0.1)


def test_a_compiled_layer_is_the_layer_and_is_compiled_once() -> None:
    """Packs of other sizes compile nothing again: guards hold on no length. With checkpointing, as
    a GPU has it."""
    network = PolicyNetwork(models(Qwen2Config, Qwen2ForCausalLM, {})[0])
    network.model.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
    network.model.train()

    def gradients(lengths: list[int]) -> list[Tensor]:
        torch.manual_seed(sum(lengths))
        ids = torch.randint(0, 40, (sum(lengths),))
        places = torch.cat([torch.arange(length) for length in lengths])
        reads = torch.arange(ids.numel())
        network.zero_grad()
        scores = network(Pack(ids, places, layout_of(lengths), reads, ids)).logprobs
        scores.sum().backward()
        return [scores.detach(), *(p.grad for p in network.parameters() if p.grad is not None)]

    packs = [[30, 12, 3], [50], [7, 6, 5, 4]]
    expected = [gradients(lengths) for lengths in packs]
    torch.compiler.reset()
    try:
        with patch("torch._dynamo.config.error_on_recompile", False):
            compile_layers(network.model, backend="aot_eager")
            found = [gradients(packs[0])]
        with (
            patch("torch._dynamo.config.error_on_recompile", True),
            patch("torch._dynamo.config.suppress_errors", False),
        ):
            found += [gradients(lengths) for lengths in packs[1:]]
    finally:
        register()
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_a_compiled_layer_with_hooks_is_not_one_without() -> None:
    """A fitted critic reads its layers by hooks, also behind a policy that ran without gradient."""
    policy = PolicyNetwork(models(Qwen2Config, Qwen2ForCausalLM, {})[0])
    critic = FeatureNetwork(models(Qwen2Config, Qwen2ForCausalLM, {})[0], most=1000)
    ids = torch.arange(9)
    pack = Pack(ids, ids, layout_of([9]), ids, ids)
    expected = critic(pack)
    torch.compiler.reset()
    try:
        for network in (policy, critic):
            compile_layers(network.model, backend="aot_eager")
        with torch.no_grad():
            policy(pack)
        torch.testing.assert_close(critic(pack), expected)
        assert expected.shape == (9, 64)
    finally:
        register()


def test_a_layer_that_cannot_be_compiled_is_computed_as_written() -> None:
    """Without a compiler a run goes on, and says why it is slower."""
    network = PolicyNetwork(models(Qwen2Config, Qwen2ForCausalLM, {})[0])
    ids = torch.arange(9)
    pack = Pack(ids, ids, layout_of([9]), ids, ids)
    expected = network(pack).logprobs

    def broken(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("no compiler")

    torch.compiler.reset()
    try:
        compile_layers(network.model, backend=broken)
        torch.testing.assert_close(network(pack).logprobs, expected)
    finally:
        register()
