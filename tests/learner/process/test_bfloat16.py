"""A bfloat16 learner's checkpoints: of the ZeRO stage that it raises, and of another one."""

import json
import subprocess
import sys
from pathlib import Path

from headrace.host.hardware import free_port
from tests.learner.recorded import save_tiny_model

WORKER = """\
import json, sys
from pathlib import Path
import torch
from headrace.errors import UserError
from headrace.run_files.run_folder import manifest_text, read_manifest
from learner.models.deepspeed_engine import join_ranks
from learner.process.trainer import Trainer
from tests.learner.recorded import run_config

model, run_dir, port = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
cpu = torch.device("cpu")
join_ranks(rank=0, world_size=1, port=port, device=cpu)
config = run_config(model, precision="bfloat16", zero_stage=1)
trainer = Trainer(config, run_dir, rank=0, device=cpu)
done = Path(trainer.checkpoint(0, None).path)
manifest = read_manifest(done)
again = Trainer(config, run_dir, rank=0, device=cpu)
told = [manifest["zero_stage"], again.resumed_from == done]
(done / "manifest.json").write_text(manifest_text(manifest | {"zero_stage": 1}))
try:
    Trainer(config, run_dir, rank=0, device=cpu)
except UserError as error:
    told.append(str(error))
print(json.dumps(told))
"""


def test_a_checkpoint_of_another_stage_is_refused_in_one_line(tmp_path: Path) -> None:
    """A rank raises a stage by itself where no launcher did, and goes on from what it wrote."""
    model = save_tiny_model(tmp_path / "model")
    words = [str(model), str(tmp_path / "run"), str(free_port())]
    done = subprocess.run([sys.executable, "-c", WORKER, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    stage, resumed, line = json.loads(done.stdout.splitlines()[-1])
    assert (stage, resumed) == (2, True)
    path = tmp_path / "run" / "checkpoints" / "step_0"
    assert line == (
        f"{path} was written by 1 ranks at ZeRO stage 1; its optimizer state is cut that way: set "
        "learner.ranks and learner.zero_stage to these"
    )
