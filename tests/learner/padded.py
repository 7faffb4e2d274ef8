"""The two networks as anybody would write them: a padded batch through transformers' attention.

In: the same `Pack` as the learner's own. Out: the same numbers, by rows padded on the left and an
attention mask. Nothing here is packed, cut into chunks or shared with `learner.models.forward`.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from learner.models.forward import Pack, TokenScores


class PaddedPolicy(nn.Module):
    """Logprobs and entropies of a pack's reads."""

    def __init__(self, model: nn.Module, *, temperature: float = 1.0) -> None:
        super().__init__()
        self.model = _with_usual_attention(model)
        self._temperature = temperature

    def forward(self, pack: Pack, *, entropy_gradient: bool = False) -> TokenScores:
        log_p = (_rows(self.model, pack) / self._temperature).log_softmax(-1)
        entropy = torch.special.entr(log_p.exp()).sum(-1)
        logprobs = log_p.gather(1, pack.targets[:, None]).squeeze(1)
        return TokenScores(logprobs, entropy if entropy_gradient else entropy.detach())


class PaddedValue(nn.Module):
    """Values of a pack's reads."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = _with_usual_attention(model)

    def forward(self, pack: Pack) -> Tensor:
        return _rows(self.model, pack).squeeze(1)


def _with_usual_attention(model: nn.Module) -> nn.Module:
    model.set_attn_implementation("sdpa")  # type: ignore[operator]
    return model


def _rows(model: nn.Module, pack: Pack) -> Tensor:
    """[N, width] of the model's output where the pack is read."""
    bounds = pack.layout.cu_lengths.long()
    sequences = pack.token_ids.split(bounds.diff().tolist())
    longest = max(s.numel() for s in sequences)
    ids = torch.stack([pad(s, (longest - s.numel(), 0)) for s in sequences])
    real = torch.stack([pad(torch.ones_like(s), (longest - s.numel(), 0)) for s in sequences])
    output = model(
        input_ids=ids,
        attention_mask=real,
        position_ids=(real.cumsum(1) - 1).clamp(min=0),
        use_cache=False,
    )
    row = torch.searchsorted(bounds, pack.reads, right=True) - 1
    # From the right: what is padded stands on the left.
    column = longest - (bounds[row + 1] - pack.reads)
    logits: Tensor = output.logits
    return logits[row, column]
