"""Whole parameters of models that ZeRO 3 keeps apart; each in a process of its own."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from headrace.config.sections.learner import LearnerConfig, OptimizerConfig
from headrace.host.hardware import free_port
from learner.models.deepspeed_engine import DeepSpeedEngine, join_ranks
from tests.learner.forked import finished


def work(port: int) -> None:
    """Print the numbers that a device holds at each gather; whether the state is right; what a rank
    gets that keeps nothing."""
    import deepspeed

    join_ranks(rank=0, world_size=1, port=port, device=torch.device("cpu"))
    network = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Linear(4, 2))
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    config = LearnerConfig.model_validate({"precision": "float32", "zero_stage": 3})
    engine = DeepSpeedEngine(network, OptimizerConfig(), config)
    gathered, held = deepspeed.zero.GatheredParameters, list[int]()
    enter = gathered.__enter__

    def watched(context: Any) -> None:
        enter(context)
        held.append(sum(p.numel() for p in network.parameters()))

    with patch.object(gathered, "__enter__", watched):
        state = engine.whole_state(network, keep=True)
        nothing = engine.whole_state(network, keep=False)
    same = all(torch.equal(state[name], x) for name, x in before.items())
    print(json.dumps([held, same, nothing]))


def test_parameters_are_gathered_one_by_one(tmp_path: Path) -> None:
    """A GPU with its share of 7.6 billion parameters twice has no room for 15 GB more."""
    said = finished(work, free_port(), log=tmp_path / "log")
    assert json.loads(said.splitlines()[-1]) == [[32, 4, 8, 2] * 2, True, {}]
