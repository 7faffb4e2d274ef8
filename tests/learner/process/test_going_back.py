"""A learner that goes back to a checkpoint, in a process of its own."""

import json
import weakref
from pathlib import Path
from unittest.mock import patch

import torch

from headrace.host.hardware import free_port
from learner.models.deepspeed_engine import join_ranks
from learner.process.trainer import Trainer
from tests.learner.forked import finished
from tests.learner.recorded import run_config, save_tiny_model


def go_back(model: Path, run_dir: Path, port: int) -> None:
    """Print which engines are gone by the time others are built."""
    cpu = torch.device("cpu")
    join_ranks(rank=0, world_size=1, port=port, device=cpu)
    trainer = Trainer(run_config(model), run_dir, rank=0, device=cpu)
    held = [weakref.ref(engine) for engine in trainer.models.engines.values()]

    def build(checkpoint: Path | None) -> None:
        print(json.dumps([engine() is None for engine in held]))

    with patch.object(trainer, "_build", build):
        trainer.go_back([(0, None)])


def test_all_engines_are_gone_before_others_are_built(tmp_path: Path) -> None:
    """A value model that is there twice, with its optimizer, may have no room on the card."""
    model, log = save_tiny_model(tmp_path / "model"), tmp_path / "log"
    said = finished(go_back, model, tmp_path / "run", free_port(), log=log)
    assert json.loads(said.splitlines()[-1]) == [True, True]
