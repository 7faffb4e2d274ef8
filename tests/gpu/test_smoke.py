"""A smoke run of the GPU path, for whoever has NVIDIA GPUs (`make test-gpu`): no CPU can show that
NCCL, CUDA graphs and tensor parallelism start, train and publish. What this machine lacks for a
test is said where it is skipped.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from headrace.config.device_defaults import resolve_learner
from headrace.config.estimates.memory import gpu_memory
from headrace.config.estimates.model_shape import model_shape
from headrace.host.hardware import detect
from headrace.host.install import dependency_version
from headrace.run_files.update_log import read_applied
from learner.device import claim_memory
from tests.integration.runs import PLAIN, REPOSITORY, Run, headrace
from tests.learner.recorded import run_config, save_tiny_model

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(900)]
MACHINE = detect()
TWO_STEPS = ("stop.updates=2", "generator.dtype=auto", "learner.precision=auto")
RECIPES = REPOSITORY / "recipes"


def needs(cards: int, *, vllm: bool = True) -> pytest.MarkDecorator:
    """Skips where GPUs or packages are missing, and says which."""
    found = len(MACHINE.gpus)
    why = f": {MACHINE.without}" if MACHINE.without else ""
    if found < cards:
        return pytest.mark.skipif(True, reason=f"needs {cards} GPU(s), finds {found}{why}")
    lacks = vllm and dependency_version("vllm") is None
    return pytest.mark.skipif(lacks, reason="needs a CUDA build of vLLM")


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Run]]:
    # Left by an engine with hot tokens in this process; a user's vLLM chooses its runner by itself.
    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER", raising=False)
    runs: list[Run] = []
    yield runs
    for run in runs:
        run.end()


def trained(
    start: list[Run], root: Path, *overrides: str, recipe: Path | None = None, ranks: int = 1
) -> None:
    """A run of two updates on GPUs ended well; without a `recipe`, of a small quickstart."""
    run = Run(root, *TWO_STEPS, "learner.device=cuda", *overrides, recipe=recipe)
    start.append(run)
    assert run.wait(800) == 0, run.text()
    assert [line.update for _, line in read_applied(run.run_dir)] == [1, 2] * ranks


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
@pytest.mark.parametrize(
    "more",
    [(), ("learner.lora.rank=4",), ("learner.context=carried",)],
    ids=["weights", "adapters", "carried keys"],
)
def test_the_learner_alone(start: list[Run], tmp_path: Path, more: tuple[str, ...]) -> None:
    trained(start, tmp_path, *PLAIN, *more)


@needs(1, vllm=False)
def test_a_student_and_its_teacher(start: list[Run], tmp_path: Path) -> None:
    small = ("schedule.batch_windows=16", "generator.max_num_seqs=32", "dashboard.enabled=false")
    teacher = f"algorithm.kl.reference_path={RECIPES / 'models' / 'chain-sums-cold'}"
    trained(start, tmp_path, *PLAIN, *small, teacher, recipe=RECIPES / "distill.toml")


@needs(1, vllm=False)
def test_fine_tuning(tmp_path: Path) -> None:
    done = headrace(
        "sft", str(RECIPES / "sft" / "cold-start.toml"), "engine.device=cuda", "training.steps=4",
        "training.batch=8", "data.examples=200", "data.eval_limit=16", "--root", str(tmp_path),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@needs(1)
@pytest.mark.parametrize(
    "more",
    [(), ("learner.lora.rank=4", "learner.lora.publish=adapter")],
    ids=["weights", "adapters that vLLM loads"],
)
def test_vllm_and_the_learner_on_one_card(
    start: list[Run], tmp_path: Path, more: tuple[str, ...]
) -> None:
    trained(start, tmp_path, *more)


@needs(2)
@pytest.mark.parametrize(
    "more",
    [
        (),
        ("learner.zero_stage=3",),
        ("learner.zero_stage=2", "learner.offload_optimizer=true"),
        ("learner.zero_stage=3", "learner.offload_optimizer=true"),
    ],
    ids=["ZeRO 2", "ZeRO 3", "ZeRO 2 with offload", "ZeRO 3 with offload"],
)
def test_two_learner_ranks(start: list[Run], tmp_path: Path, more: tuple[str, ...]) -> None:
    trained(start, tmp_path, "learner.ranks=2", *more, ranks=2)


@needs(2)
def test_tensor_parallel_2(start: list[Run], tmp_path: Path) -> None:
    trained(start, tmp_path, "generator.tensor_parallel_size=2")


@needs(2)
def test_versions_reach_another_card_by_nccl(start: list[Run], tmp_path: Path) -> None:
    """The log says so: a run whose broadcasts all fail goes on by files."""
    trained(start, tmp_path, "generator.weights=broadcast")
    (run,) = start
    log = "".join(path.read_text() for path in (run.run_dir / "logs").glob("*.log"))
    assert re.search(r"version \d+ reached \S+ by broadcast", log), log
