"""A plain torch engine behind the learner's Engine protocol, for float64 and for comparisons."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from learner.models.deepspeed_engine import StepResult


class PlainEngine:
    """torch's own optimizer; keeps the gradients of all steps, the last one's by itself, and counts
    its forward passes."""

    def __init__(self, network: nn.Module, *, lr: float = 1e-2, clip: float = 1.0) -> None:
        self.network = network
        self.steps = 0
        self.passes = 0
        self.gradients: dict[str, Tensor] = {}
        self.history: list[dict[str, Tensor]] = []
        self._optimizer = torch.optim.AdamW(network.parameters(), lr=lr, weight_decay=0.0)
        self._clip = clip
        self._is_complete = False
        """The last micro-batch of the next step has come."""

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        self.passes += 1
        return self.network(*arguments, **settings)

    @property
    def lr(self) -> float:
        return float(self._optimizer.param_groups[0]["lr"])

    def backward(self, loss: Tensor, *, last: bool) -> None:
        assert not self._is_complete, "a step has one last micro-batch"
        self._is_complete = last
        # A ratio of NaN has a gradient of 0, because it is clamped: only the loss tells.
        (loss * torch.where(loss.detach().isfinite(), 1.0, math.nan)).backward()

    def step(self) -> StepResult:
        assert self._is_complete
        self._is_complete = False
        self.gradients = {
            name: p.grad.clone()
            for name, p in self.network.named_parameters()
            if p.grad is not None
        }
        self.history.append(self.gradients)
        norm = float(nn.utils.clip_grad_norm_(self.network.parameters(), self._clip))
        applied = math.isfinite(norm)
        if applied:
            self._optimizer.step()
            self.steps += 1
        self._optimizer.zero_grad()
        return StepResult(applied, norm)
