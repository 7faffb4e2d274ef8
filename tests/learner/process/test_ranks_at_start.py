"""What two ranks of one host, with ZeRO 3, know once they are there: processes of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from headrace.host.hardware import free_port
from learner.process.weight_publishing import bytes_of
from tests.learner.recorded import run_config, save_tiny_model

RANK = """
import json, sys
from pathlib import Path
import torch
from headrace.config.sections.run import RunConfig
from learner.models.deepspeed_engine import join_ranks
from learner.process import checkpoint
from learner.process.trainer import Trainer

run_dir, rank, port = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
config = RunConfig.model_validate_json((run_dir / "resolved.json").read_text())
cpu, read, described = torch.device("cpu"), [], checkpoint._described
checkpoint._described = lambda folder, names: read.extend(names) or described(folder, names)
join_ranks(rank=rank, world_size=2, port=port, device=cpu)

def trainer():
    return Trainer(config, run_dir, rank=rank, device=cpu, reads_checkpoints=rank == 0)

trainer().checkpoint(0, None)
written = len(read)
started = trainer()
found = {"bytes": started.policy_bytes, "from": started.resumed_from.name,
         "written": written, "read": len(read) - written}
torch.distributed.destroy_process_group()
print(json.dumps(found))
"""


@pytest.mark.slow
def test_a_host_reads_a_checkpoint_once_and_knows_the_size_of_the_weights(tmp_path: Path) -> None:
    """DeepSpeed has partitioned the parameters by then: of none is an element left."""
    model, run_dir = save_tiny_model(tmp_path / "model"), tmp_path / "run-1"
    run_dir.mkdir()
    config = run_config(model, ranks=2, zero_stage=3)
    (run_dir / "resolved.json").write_text(config.model_dump_json())
    port = str(free_port())
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(run_dir), str(rank), port],
            stdout=subprocess.PIPE, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path.cwd())},
        )
        for rank in range(2)
    ]  # fmt: skip
    said = [rank.communicate(timeout=100)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    first, second = (json.loads(text.splitlines()[-1]) for text in said)
    whole = bytes_of(load_file(model / "model.safetensors"))
    assert whole > 0
    assert (first["bytes"], second["bytes"]) == (whole, whole)
    assert (first["from"], second["from"]) == ("step_0", "step_0")
    assert first["written"] == first["read"] > 0
    assert second["written"] == second["read"] == 0
