"""What DeepSpeed's engine adds up over the micro-batches of one step, in a process of its own."""

import json
import subprocess
import sys

import pytest

from headrace.host.hardware import free_port

WORKER = """\
import json, sys
import torch
from headrace.config.sections.learner import LearnerConfig, OptimizerConfig
from learner.models.deepspeed_engine import DeepSpeedEngine, join_ranks

stage, port = sys.argv[1], int(sys.argv[2])
join_ranks(rank=0, world_size=1, port=port, device=torch.device("cpu"))
torch.manual_seed(0)
network = torch.nn.Linear(256, 1, bias=False)
config = LearnerConfig(precision="bfloat16", zero_stage=None if stage == "None" else int(stage))
engine = DeepSpeedEngine(network.bfloat16(), OptimizerConfig(), config)
parts = (0.2 * torch.rand(80, 256) + 1).bfloat16()
for number, part in enumerate(parts, 1):
    engine.backward(engine(part).sum(), last=number == len(parts))
found = engine.step()
print(json.dumps([found.applied, found.grad_norm, parts.double().sum(0).norm().item()]))
"""


@pytest.mark.parametrize("stage", ["None", "1", "3"])
def test_gradients_of_many_micro_batches_are_summed_in_float32(stage: str) -> None:
    """The gradient of a linear layer is what went in, so that the sum is known. Summed in bfloat16
    it is a fortieth off. A lower stage is raised by the engine itself, too."""
    done = subprocess.run(
        [sys.executable, "-c", WORKER, stage, str(free_port())],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    applied, norm, exact = json.loads(done.stdout.splitlines()[-1])
    assert applied
    assert norm == pytest.approx(exact, rel=1e-4)
