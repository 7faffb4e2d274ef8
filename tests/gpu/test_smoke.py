"""A smoke run of the GPU path, for whoever has NVIDIA GPUs (`make test-gpu`): no CPU can show that
NCCL, CUDA graphs and tensor parallelism start, train and publish. What this machine lacks for a
test is said where it is skipped.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from headrace.config.device_defaults import resolve_learner
from headrace.config.estimates.memory import gpu_memory
from headrace.config.estimates.model_shape import model_shape
from headrace.host.hardware import detect
from headrace.host.install import dependency_version
from learner.device import claim_memory
from tests.integration.runs import PLAIN, Run
from tests.learner.recorded import run_config, save_tiny_model

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(900)]
MACHINE = detect()
TWO_STEPS = ("stop.updates=2", "generator.dtype=auto", "learner.precision=auto")


def needs(cards: int, *, vllm: bool = True) -> pytest.MarkDecorator:
    """Skips where GPUs or packages are missing, and says which."""
    found = len(MACHINE.gpus)
    why = f": {MACHINE.without}" if MACHINE.without else ""
    if found < cards:
        return pytest.mark.skipif(True, reason=f"needs {cards} GPU(s), finds {found}{why}")
    lacks = vllm and dependency_version("vllm") is None
    return pytest.mark.skipif(lacks, reason="needs a CUDA build of vLLM")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[list[Run]]:
    runs: list[Run] = []
    yield runs
    for run in runs:
        run.end()


def trained(start: list[Run], root: Path, *overrides: str) -> None:
    """A small quickstart of two updates on GPUs ended well."""
    run = Run(root, *TWO_STEPS, "learner.device=cuda", *overrides)
    start.append(run)
    assert run.wait(800) == 0, run.text()
    assert run.applied() == 2


@needs(1, vllm=False)
def test_the_learner_claims_its_memory_first(tmp_path: Path) -> None:
    """A CPU has no allocator that keeps what is freed."""
    device = torch.device("cuda", 0)
    config = resolve_learner(
        run_config(save_tiny_model(tmp_path)), on_gpu=True, bfloat16=False
    ).config
    claim_memory(config, device)
    assert torch.cuda.memory_reserved(device) >= gpu_memory(config, model_shape(tmp_path)).total


@needs(1, vllm=False)
@pytest.mark.parametrize("more", [(), ("learner.lora.rank=4",)], ids=["weights", "adapters"])
def test_the_learner_alone(start: list[Run], tmp_path: Path, more: tuple[str, ...]) -> None:
    trained(start, tmp_path, *PLAIN, *more)


@needs(1)
def test_vllm_and_the_learner_on_one_card(start: list[Run], tmp_path: Path) -> None:
    trained(start, tmp_path)


@needs(2)
def test_two_learner_ranks(start: list[Run], tmp_path: Path) -> None:
    trained(start, tmp_path, "learner.ranks=2")


@needs(2)
def test_tensor_parallel_2(start: list[Run], tmp_path: Path) -> None:
    trained(start, tmp_path, "generator.tensor_parallel_size=2")
