"""Gradients that DeepSpeed's engine sums over micro-batches, and steps that it drops; each in a
process of its own."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from headrace.config.sections.learner import LearnerConfig, OptimizerConfig
from headrace.host.hardware import free_port
from learner.models import deepspeed_engine
from learner.models.deepspeed_engine import DeepSpeedEngine, join_ranks
from tests.learner.forked import finished


def work(stage: str, port: int) -> None:
    """Print whether a step was applied, its norm, and the exact one."""
    join_ranks(rank=0, world_size=1, port=port, device=torch.device("cpu"))
    torch.manual_seed(0)
    network = torch.nn.Linear(256, 1, bias=False)
    config = LearnerConfig.model_validate(
        {"precision": "bfloat16", "zero_stage": None if stage == "None" else int(stage)}
    )
    engine = DeepSpeedEngine(network.bfloat16(), OptimizerConfig(), config)
    parts = (0.2 * torch.rand(80, 256) + 1).bfloat16()
    for number, part in enumerate(parts, 1):
        engine.backward(engine(part).sum(), last=number == len(parts))
    found = engine.step()
    print(json.dumps([found.applied, found.grad_norm, parts.double().sum(0).norm().item()]))


@pytest.mark.parametrize("stage", ["None", "1", "3"])
def test_gradients_of_many_micro_batches_are_summed_in_float32(stage: str, tmp_path: Path) -> None:
    """The gradient of a linear layer is what went in, so that the sum is known. Summed in bfloat16
    it is a fortieth off. A lower stage is raised by the engine itself, too."""
    said = finished(work, stage, free_port(), log=tmp_path / "log")
    applied, norm, exact = json.loads(said.splitlines()[-1])
    assert applied
    assert norm == pytest.approx(exact, rel=1e-4)


def step_twice(precision: str, stage: int, offloaded: bool, port: int) -> None:
    """Print of a step at an infinite loss, and of one behind it: whether it was applied, whether
    the weights stayed, and whether they are finite; then the steps that count. `offloaded`: the
    optimizer's state is in host memory, as beside a GPU."""
    join_ranks(rank=0, world_size=1, port=port, device=torch.device("cpu"))
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    network = torch.nn.Linear(8, 1, bias=False, dtype=dtype)
    config = LearnerConfig.model_validate({"precision": precision, "zero_stage": stage})
    made = deepspeed_engine._deepspeed_config

    def on_host(*given: Any) -> dict[str, Any]:
        found = made(*given)
        found["zero_optimization"]["offload_optimizer"] = {"device": "cpu", "pin_memory": False}
        return found

    with patch.object(deepspeed_engine, "_deepspeed_config", on_host if offloaded else made):
        engine = DeepSpeedEngine(network, OptimizerConfig(lr=0.5), config)

    def weights() -> torch.Tensor:
        return engine.whole_state(network, keep=True)["weight"].clone()

    told = []
    for factor in (torch.inf, 1.0):
        before = weights()
        engine.backward(engine(torch.ones(1, 8, dtype=dtype)).sum() * factor, last=True)
        applied, after = engine.step().applied, weights()
        told.append([applied, torch.equal(before, after), bool(after.isfinite().all())])
    print(json.dumps([*told, engine.steps]))


@pytest.mark.parametrize(
    ("precision", "stage", "offloaded"),
    [("float32", 0, False), ("float32", 1, False), ("float32", 2, False), ("float32", 3, False),
     ("bfloat16", 2, False), ("bfloat16", 3, False), ("bfloat16", 2, True)],
)  # fmt: skip
def test_a_step_that_is_not_finite_is_dropped_at_every_stage(
    precision: str, stage: int, offloaded: bool, tmp_path: Path
) -> None:
    """The next one is taken, by the one look for infinities that each stage has."""
    said = finished(step_twice, precision, stage, offloaded, free_port(), log=tmp_path / "log")
    first, second, steps = json.loads(said.splitlines()[-1])
    assert first == [False, True, True]
    assert second == [True, False, True]
    assert steps == 1
