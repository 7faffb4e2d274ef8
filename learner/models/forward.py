"""The packed forward pass: logprobs, entropy and values of chosen tokens.

In: a `Pack` of sequences without padding, and which positions are read. Out: one number per read.
Promises: outputs are in the order of the reads; logits exist for `logits_chunk` tokens at a time
(recomputed in the backward pass beyond that) and only where they are read; logprobs, entropies and
values are float32 (float64 for a float64 model) whatever the model's precision.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from headrace.config.estimates.activations import CACHED_LOGITS
from headrace.data.image_processor import placeholder_ids
from learner.algorithms.penalties import token_entropy
from learner.batching.layout import Layout
from learner.models.images import PackImages, VisionTower

NEVER = -1e9
"""The logit of a token that is never sampled: finite, so that no gradient is NaN."""


class Pack(NamedTuple):
    """Sequences laid end to end, and the places at which their outputs are read.

    Attributes:
        token_ids: [T] int64. position_ids: [T] int64, places in their sequences, those before the
        pack counted. layout: where the sequences are. reads: [N] int64, places in the pack just
        before the N tokens of interest. targets: [N] int64, those tokens (0 where a read has no
        next token). images: those of the pack; None: a model that sees none.
    """

    token_ids: Tensor
    position_ids: Tensor
    layout: Layout
    reads: Tensor
    targets: Tensor
    images: PackImages | None = None


class TokenScores(NamedTuple):
    """[N] log pi(token) and [N] entropy in nats of the distribution it was drawn from."""

    logprobs: Tensor
    entropy: Tensor


class WideLinear(nn.Linear):
    """A head that multiplies in float32 whatever its weights are in, autocast or not."""

    def forward(self, input: Tensor) -> Tensor:
        """[..., out] of [..., in]."""
        with torch.autocast(input.device.type, enabled=False):
            x, weight = _wide(input), _wide(self.weight)
            return nn.functional.linear(x, weight, None if self.bias is None else _wide(self.bias))


def widen(head: nn.Module) -> None:
    """Make a linear head a `WideLinear`; its weights and their names stay."""
    if type(head) is nn.Linear:
        head.__class__ = WideLinear


class PackNetwork(nn.Module):
    """Base of networks: a model, the dtype of matrix products, a vision tower.

    `autocast` None: the weights' dtype. `vision` None: the model gets no images."""

    model: nn.Module
    autocast: torch.dtype | None
    vision: VisionTower | None = None

    def in_its_precision(self, device: torch.device) -> AbstractContextManager[object]:
        """Return the autocast of a forward pass."""
        dtype, enabled = self.autocast or torch.bfloat16, self.autocast is not None
        return torch.autocast(device.type, dtype=dtype, enabled=enabled)


class PolicyNetwork(PackNetwork):
    """A causal language model that scores the tokens of a pack."""

    def __init__(
        self,
        model: nn.Module,
        *,
        logits_chunk: int = 4096,
        temperature: float = 1.0,
        autocast: torch.dtype | None = None,
        wide_head: bool = False,
    ) -> None:
        """`temperature`: the sampler's, so that logprobs are of its distribution.

        `autocast`: dtype of matrix products, None: the weights'. `wide_head`: float32 logits."""
        super().__init__()
        self.model = model
        if wide_head:
            widen(model.get_output_embeddings())  # type: ignore[operator]
        self._chunk = logits_chunk
        self.temperature = temperature
        self.autocast = autocast
        self._factor, self._cap = _after_the_head(model.config.get_text_config())  # type: ignore[union-attr, operator]
        self._banned = placeholder_ids(model.config)
        self.most: Callable[[int], int] = int
        """Largest number of all ranks: at ZeRO 3 each part gathers the head's weights."""

    def forward(self, pack: Pack, *, entropy_gradient: bool = False) -> TokenScores:
        """Score the pack's reads; entropy has a gradient only if `entropy_gradient`."""
        with self.in_its_precision(pack.token_ids.device):
            hidden = _hidden(self.model, pack, self.vision)
            given = hidden, pack.targets, entropy_gradient
            return TokenScores(*_in_parts(self._head, self._chunk, *given, most=self.most))

    def _head(
        self, hidden: Tensor, targets: Tensor, entropy_gradient: bool
    ) -> tuple[Tensor, Tensor]:
        logits: Tensor = self.model.get_output_embeddings()(hidden)  # type: ignore[operator]
        rows = len(hidden) if hidden.is_cuda else max(1, CACHED_LOGITS // logits.shape[1])
        return _in_parts(self._score, rows, logits, targets, entropy_gradient)

    def _score(
        self, logits: Tensor, targets: Tensor, entropy_gradient: bool
    ) -> tuple[Tensor, Tensor]:
        log_p = torch.log_softmax(self._at_temperature(_wide(logits)), dim=-1)
        chosen = log_p.gather(1, targets.unsqueeze(1)).squeeze(1)
        # Last: what no gradient needs is not recomputed.
        return chosen, token_entropy(log_p if entropy_gradient else log_p.detach())

    def _at_temperature(self, logits: Tensor) -> Tensor:
        """[n, V] logits of the sampler's distribution."""
        if self._factor != 1.0:
            logits = logits * self._factor
        if self._cap is not None:
            logits = self._cap * (logits / self._cap).tanh()
        if self._banned:
            logits = without_tokens(logits, self._banned)
        return logits if self.temperature == 1.0 else logits / self.temperature


class ValueNetwork(PackNetwork):
    """A backbone with a scalar head: V(s) in the states just before the reads' tokens."""

    def __init__(self, model: nn.Module, *, autocast: torch.dtype | None = None) -> None:
        super().__init__()
        self.model = model
        self.autocast = autocast
        widen(model.score)  # type: ignore[arg-type]

    def forward(self, pack: Pack) -> Tensor:
        """[N] values of the pack's reads."""
        with self.in_its_precision(pack.token_ids.device):
            return _wide(self.model.score(_hidden(self.model, pack, self.vision))).squeeze(1)  # type: ignore[operator]


def _in_parts(
    score: Callable[[Tensor, Tensor, bool], tuple[Tensor, Tensor]],
    rows: int,
    x: Tensor,
    targets: Tensor,
    entropy_gradient: bool,
    *,
    most: Callable[[int], int] = int,
) -> tuple[Tensor, Tensor]:
    """Score so many rows of x at a time; the backward pass recomputes each part of several."""
    count = most(max(1, -(-len(x) // max(1, rows))))
    if count == 1:
        return score(x, targets, entropy_gradient)
    sizes = [min(rows, max(0, len(x) - part * rows)) for part in range(count)]
    parts = [
        checkpoint(score, part, aim, entropy_gradient, use_reentrant=False)
        for part, aim in zip(x.split(sizes), targets.split(sizes), strict=True)
    ]
    logprobs, entropies = zip(*parts, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)


def _after_the_head(config: Any) -> tuple[float, float | None]:
    """(factor, soft cap) of the logits, which a family applies behind its head.

    Cohere's `logit_scale`, Falcon-H1's `lm_head_multiplier`, Granite's `logits_scaling`, Gemma's
    `final_logit_softcapping`."""
    factor = getattr(config, "logit_scale", None) or 1.0
    factor *= getattr(config, "lm_head_multiplier", None) or 1.0
    factor /= getattr(config, "logits_scaling", None) or 1.0
    return factor, getattr(config, "final_logit_softcapping", None)


def without_tokens(logits: Tensor, tokens: list[int]) -> Tensor:
    """[..., V] logits with which these tokens are never sampled."""
    return logits.index_fill(-1, torch.tensor(tokens, device=logits.device), NEVER)


def _hidden(model: nn.Module, pack: Pack, vision: VisionTower | None = None) -> Tensor:
    """[N, hidden] of the backbone where the pack is read."""
    hidden: Tensor = _run(model, pack, vision).last_hidden_state
    return hidden.squeeze(0).index_select(0, pack.reads)


def hidden_states(model: nn.Module, pack: Pack, vision: VisionTower | None = None) -> list[Tensor]:
    """[N, hidden] behind each layer of the backbone where the pack is read."""
    output = _run(model, pack, vision, output_hidden_states=True)
    return [x.squeeze(0).index_select(0, pack.reads) for x in output.hidden_states[1:]]


def _run(model: nn.Module, pack: Pack, vision: VisionTower | None, **settings: bool) -> Any:
    """Run the backbone on a pack."""
    layout, backbone = pack.layout, model.base_model
    inputs = {
        "input_ids": pack.token_ids.unsqueeze(0), "position_ids": pack.position_ids.unsqueeze(0),
    }  # fmt: skip
    if pack.images is not None:
        assert vision is not None, "a pack with images needs a network with a vision tower"
        backbone, inputs = vision.embed(pack.token_ids, pack.position_ids, pack.images)
    layout.masks = {}
    try:
        return backbone(**inputs, **settings, use_cache=False, layout=layout)  # type: ignore[operator]
    finally:
        layout.masks = None


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
