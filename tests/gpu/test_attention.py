"""FlashAttention's packs on a GPU are those of the padded blocks, which CPUs test against each
sequence alone."""

from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

from headrace.host.hardware import has_gpu
from learner.batching.layout import layout_of
from learner.models import attention

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not has_gpu(), reason="needs a GPU that torch can use"),
]
PACKS: dict[str, dict[str, Any]] = {
    "answers": {"lengths": [300, 128, 77, 5, 1]},
    "shared prompt": {"lengths": [90, 40, 3, 64], "before": [64, 64, 64, 0],
                      "shared": [3, 3, 3, None]},
    "carried keys": {"lengths": [50, 20, 9], "before": [200, 0, 33]},
}  # fmt: skip


class Known:
    """Keys and values of the tokens before a pack."""

    def __init__(self, rows: tuple[Tensor, Tensor]) -> None:
        self._rows = rows

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        return self._rows

    def add_layer(self, layer: int, key: Tensor, value: Tensor) -> None: ...


@pytest.mark.parametrize("window", [None, 48])
@pytest.mark.parametrize("name", PACKS)
def test_a_pack_without_padding_is_the_padded_one(name: str, window: int | None) -> None:
    torch.manual_seed(0)
    device, place = torch.device("cuda", 0), nn.Identity()
    place.layer_idx = 0  # type: ignore[assignment]
    layout = layout_of(**PACKS[name], device=device)
    tokens = sum(PACKS[name]["lengths"])
    past = tuple(torch.randn(layout.past_length, 2, 64, device=device) for _ in range(2))
    drawn = [torch.randn(1, n, tokens, 64, device=device) for n in (8, 2, 2)]

    def computed(dtype: torch.dtype) -> list[Tensor]:
        """The output, and the gradients of queries, keys and values."""
        q, k, v = (x.to(dtype).requires_grad_() for x in drawn)
        if layout.past_length:
            layout.past = Known((past[0].to(dtype), past[1].to(dtype)))
        out, _ = attention.packed_attention(
            place, q, k, v, None, layout=layout, sliding_window=window
        )
        out.float().square().sum().backward()
        return [x.detach().float() for x in (out, q.grad, k.grad, v.grad) if x is not None]

    with patch.object(attention, "_flash", wraps=attention._flash) as flash:
        found, expected = computed(torch.bfloat16), computed(torch.float32)
    assert flash.call_count == 1
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours - theirs).norm() / theirs.norm() < 0.02


def test_values_may_be_narrower_than_keys() -> None:
    """As DeepSeek's are, of which FlashAttention takes none."""
    layout = layout_of([40, 7], device="cuda")
    q, k, v = (
        torch.randn(1, 4, 47, width, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for width in (192, 192, 128)
    )
    out, _ = attention.packed_attention(nn.Identity(), q, k, v, None, layout=layout)
    out.float().sum().backward()
    assert out.shape == (1, 47, 4, 128)
    assert v.grad is not None
    assert v.grad.isfinite().all()
