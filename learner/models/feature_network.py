"""A frozen model with hidden states as features, and the value head fitted on it.

In: a model that never changes. Out: features of chosen tokens, and values by a least-squares head.
Promises: features of a token never change, so that sums over all updates are of one kind and
carried keys are never too old; no gradient, no optimizer state.
"""

import math
from collections.abc import Mapping
from typing import NoReturn

import torch
from torch import Tensor, nn

from headrace.trajectory.logprob_statistics import STATISTICS
from learner.algorithms.least_squares import LeastSquaresHead
from learner.models.deepspeed_engine import StepResult
from learner.models.forward import Pack, PackNetwork, hidden_states

_SEED = 2506_15050
"""Seed of the projection, which checkpoints do not hold."""


class FeatureNetwork(PackNetwork):
    """All layers' hidden states at the reads, each divided by its root mean square.

    Beyond `most` numbers, their projection on as many random directions. `width`: F, numbers of a
    token."""

    def __init__(self, model: nn.Module, *, most: int, autocast: torch.dtype | None = None) -> None:
        super().__init__()
        self.model, self.autocast = model.requires_grad_(False), autocast
        shape = model.config.get_text_config()  # type: ignore[union-attr, operator]
        layers, size = shape.num_hidden_layers, shape.hidden_size
        self.width = min(most, layers * size)
        self._directions: Tensor | None = None
        if self.width < layers * size:
            generator = torch.Generator().manual_seed(_SEED)
            made = torch.randn(layers, size, self.width, generator=generator)
            device = next(model.parameters()).device
            self._directions = (made / math.sqrt(layers * size)).to(device)

    @torch.no_grad()
    def forward(self, pack: Pack) -> Tensor:
        """[N, F] float32 features of the states before the pack's reads."""
        with self.in_its_precision(pack.token_ids.device):
            states = hidden_states(self.model, pack, self.vision)
        layers = (x.float() for x in states)
        layers = (x * x.square().mean(-1, keepdim=True).clamp(min=1e-12).rsqrt() for x in layers)
        if self._directions is None:
            return torch.cat([*layers], dim=1)
        return torch.stack([x @ d for x, d in zip(layers, self._directions, strict=True)]).sum(0)


class FeatureEngine:
    """A `FeatureNetwork` as an engine, with a head that is refitted, not stepped.

    The head also reads the statistics of logprobs. `steps`: refits so far. `memory`: answers after
    which an earlier one counts 1/e."""

    lr = 0.0

    def __init__(self, network: FeatureNetwork, *, memory: float) -> None:
        self.network, self.steps, self.memory = network, 0, memory
        device = next(network.model.parameters()).device
        self.head = LeastSquaresHead(network.width + STATISTICS, device)

    def __call__(self, pack: Pack) -> Tensor:
        return self.network(pack)

    def backward(self, loss: Tensor, *, last: bool) -> NoReturn:
        """Raise NotImplementedError: there is no gradient."""
        raise NotImplementedError("a least-squares head is refitted, not stepped")

    def step(self) -> StepResult:
        """Raise NotImplementedError: there is no optimizer step."""
        raise NotImplementedError("a least-squares head is refitted, not stepped")

    def state(self) -> dict[str, Tensor]:
        """Copy the head and its sums, the same on all ranks, to the CPU."""
        copies = {name: x.to("cpu", copy=True) for name, x in self.head.state().items()}
        return {"steps": torch.tensor(self.steps), **copies}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned, on any number of ranks."""
        self.steps = int(tensors["steps"].item())
        self.head.load_state(dict(tensors))

    def whole_state(self, model: nn.Module, *, keep: bool, pin: bool = False) -> dict[str, Tensor]:
        """Return the state of the model, which every rank holds; {} unless `keep`."""
        return model.state_dict() if keep else {}

    def free(self) -> None:
        """Do nothing: no library holds the head on."""
