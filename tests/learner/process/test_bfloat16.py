"""A bfloat16 learner's checkpoints: of the ZeRO stage that it raises, and of another one."""

import json
from pathlib import Path

import pytest
import torch

from headrace.errors import UserError
from headrace.host.hardware import free_port
from headrace.run_files.run_folder import manifest_text, read_manifest
from learner.models.deepspeed_engine import join_ranks
from learner.process.trainer import Trainer
from tests.learner.forked import finished
from tests.learner.recorded import run_config, save_tiny_model


def go_on(model: Path, run_dir: Path, port: int) -> None:
    """Print the stage of its checkpoint, whether that is gone on from, and the refusal of another
    stage."""
    cpu = torch.device("cpu")
    join_ranks(rank=0, world_size=1, port=port, device=cpu)
    config = run_config(model, precision="bfloat16", zero_stage=1)
    trainer = Trainer(config, run_dir, rank=0, device=cpu)
    written = trainer.checkpoint(0, None)
    assert written is not None
    done = Path(written.path)
    manifest = read_manifest(done)
    again = Trainer(config, run_dir, rank=0, device=cpu)
    told = [manifest["zero_stage"], again.resumed_from == done]
    (done / "manifest.json").write_text(manifest_text(manifest | {"zero_stage": 1}))
    with pytest.raises(UserError) as refused:
        Trainer(config, run_dir, rank=0, device=cpu)
    print(json.dumps([*told, str(refused.value)]))


def test_a_checkpoint_of_another_stage_is_refused_in_one_line(tmp_path: Path) -> None:
    """A rank raises a stage by itself where no launcher did, and goes on from what it wrote."""
    model, log = save_tiny_model(tmp_path / "model"), tmp_path / "log"
    said = finished(go_on, model, tmp_path / "run", free_port(), log=log)
    stage, resumed, line = json.loads(said.splitlines()[-1])
    assert (stage, resumed) == (2, True)
    path = tmp_path / "run" / "checkpoints" / "step_0"
    assert line == (
        f"{path} was written by 1 ranks at ZeRO stage 1; its optimizer state is cut that way: set "
        "learner.ranks and learner.zero_stage to these"
    )
