"""What an engine holds is given back before another one is built; in processes of their own."""

import gc
import json
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from headrace.config.sections.learner import LearnerConfig, OptimizerConfig
from headrace.host.hardware import free_port
from learner.models.deepspeed_engine import DeepSpeedEngine, join_ranks
from tests.learner.forked import finished


def trained(stage: int, precision: str) -> tuple[DeepSpeedEngine, Any]:
    """An engine after one step."""
    network: Any = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Linear(4, 2))
    config = LearnerConfig.model_validate({"precision": precision, "zero_stage": stage})
    engine = DeepSpeedEngine(network, OptimizerConfig(), config)
    read = torch.ones(3, 8, dtype=network[0].weight.dtype)
    engine.backward(engine(read).float().square().sum(), last=True)
    assert engine.step().applied
    return engine, network


def work(stage: int, precision: str, port: int) -> None:
    """Print which large tensors of an engine are gone, once another one has trained."""
    join_ranks(rank=0, world_size=1, port=port, device=torch.device("cpu"))
    engine, network = trained(stage, precision)
    share = engine._partitions()[0]
    held = [weakref.ref(share), weakref.ref(engine._adam.state[share]["exp_avg"])]
    if stage == 3:
        held.append(weakref.ref(network[0].weight.ds_tensor))
        held.append(weakref.ref(engine.engine.optimizer.grad_partitions_flat_buffer))
    else:
        held.append(weakref.ref(network[0].weight))
    engine.free()
    del engine, network, share
    gc.collect()
    trained(stage, precision)
    print(json.dumps([tensor() is None for tensor in held]))


@pytest.mark.parametrize(
    ("stage", "precision"), [(0, "float32"), (2, "bfloat16"), (3, "float32"), (3, "bfloat16")]
)
def test_nothing_large_is_left(stage: int, precision: str, tmp_path: Path) -> None:
    """Else a rank that goes back to a checkpoint needs twice the memory of its card."""
    said = finished(work, stage, precision, free_port(), log=tmp_path / "log")
    found = json.loads(said.splitlines()[-1])
    assert all(found), found
