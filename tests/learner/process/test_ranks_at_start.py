"""What two ranks of one host, with ZeRO 3, know once they are there: processes of their own."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import load_file

from headrace.config.sections.run import RunConfig
from headrace.host.hardware import free_port
from headrace.run_files.run_folder import described_files
from learner.models.deepspeed_engine import join_ranks
from learner.process import checkpoint
from learner.process.trainer import Trainer
from learner.process.weight_publishing import bytes_of
from tests.learner.forked import Forked
from tests.learner.recorded import run_config, save_tiny_model


def start(run_dir: Path, rank: int, port: int) -> None:
    """Begin, write a checkpoint, begin again; print what was read and known."""
    config = RunConfig.model_validate_json((run_dir / "resolved.json").read_text())
    cpu, read = torch.device("cpu"), list[str]()

    def noted(folder: Path, names: Sequence[str]) -> dict[str, dict[str, Any]]:
        read.extend(names)
        return described_files(folder, names)

    join_ranks(rank=rank, world_size=2, port=port, device=cpu)
    with patch.object(checkpoint, "described_files", noted):
        settings: dict[str, Any] = {"rank": rank, "device": cpu, "reads_checkpoints": rank == 0}
        Trainer(config, run_dir, **settings).checkpoint(0, None)
        written = len(read)
        started = Trainer(config, run_dir, **settings)
    assert started.resumed_from is not None
    found = {
        "bytes": started.models.policy_bytes,
        "from": started.resumed_from.name,
        "written": written,
        "read": len(read) - written,
    }
    torch.distributed.destroy_process_group()
    print(json.dumps(found))


@pytest.mark.slow
def test_a_host_reads_a_checkpoint_once_and_knows_the_size_of_the_weights(tmp_path: Path) -> None:
    """DeepSpeed has partitioned the parameters by then: of none is an element left."""
    model, run_dir = save_tiny_model(tmp_path / "model"), tmp_path / "run-1"
    run_dir.mkdir()
    config = run_config(model, ranks=2, zero_stage=3)
    (run_dir / "resolved.json").write_text(config.model_dump_json())
    port = free_port()
    ranks = [
        Forked(start, run_dir, rank, port, log=tmp_path / f"rank-{rank}.log") for rank in range(2)
    ]
    for rank in ranks:
        assert rank.wait(100) == 0, rank.text()[-4000:]
    first, second = (json.loads(rank.text().splitlines()[-1]) for rank in ranks)
    whole = bytes_of(load_file(model / "model.safetensors"))
    assert whole > 0
    assert (first["bytes"], second["bytes"]) == (whole, whole)
    assert (first["from"], second["from"]) == ("step_0", "step_0")
    assert first["written"] == first["read"] > 0
    assert second["written"] == second["read"] == 0
