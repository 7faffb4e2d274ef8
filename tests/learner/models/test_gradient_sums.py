"""What DeepSpeed's engine adds up over the micro-batches of one step, in a process of its own."""

import json
from pathlib import Path

import pytest
import torch

from headrace.config.sections.learner import LearnerConfig, OptimizerConfig
from headrace.host.hardware import free_port
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
