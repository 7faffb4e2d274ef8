"""Packed attention is attention of each sequence alone."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from learner.attention import ATTENTION, layout_of, packed_attention, register
from learner.forward import Pack, PolicyNetwork

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
]


def models(kind: type, model: type, extra: dict[str, Any]) -> tuple[nn.Module, nn.Module]:
    """The same weights with packed and with transformers' own attention."""
    register()
    torch.manual_seed(0)
    found = []
    for attention in (ATTENTION, "sdpa"):
        config = kind(**SHAPE, **extra)
        config._attn_implementation = attention
        found.append(model(config).double())
    found[1].load_state_dict(found[0].state_dict())
    return found[0], found[1]


@pytest.mark.parametrize(("kind", "model", "extra"), MODELS)
@pytest.mark.parametrize("ratio", [0.01, 0.75, 1.01])
def test_packed_is_unpacked(kind: type, model: type, extra: dict[str, Any], ratio: float) -> None:
    """Logprobs and gradients, however tight the blocks are."""
    packed, alone = models(kind, model, extra)
    sequences = [torch.randint(0, 40, (length,)) for length in LENGTHS]
    ids = torch.cat(sequences)
    places = torch.cat([torch.arange(length) for length in LENGTHS])
    pack = Pack(ids, places, layout_of(LENGTHS, ratio=ratio), torch.arange(ids.numel()), ids)
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
