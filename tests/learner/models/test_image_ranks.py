"""Two ranks behind DeepSpeed, of which one has all images: the step that one process takes."""

from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from headrace.config.sections.learner import LearnerConfig, OptimizerConfig
from headrace.config.sections.model import ModelConfig
from headrace.host.hardware import free_port
from learner.device import RankContext
from learner.models.forward import PolicyNetwork
from learner.models.images import ImageInputs, VisionTower
from learner.models.loading import load_policy
from learner.models.microbatches import empty_micro_batch, micro_batches
from tests.learner.forked import Forked
from tests.learner.models.pictures import CPU, Asked, folder_of, lacks

pytestmark = pytest.mark.skipif(bool(lacks()), reason=lacks())
Stage = Literal[0, 2, 3]
STEP = OptimizerConfig(lr=1e-3, warmup_steps=0, grad_clip=0.5)


def network_of(
    folder: Path, *, freeze: bool, stage: int
) -> tuple[PolicyNetwork, Asked, RankContext]:
    config = ModelConfig(path=str(folder), freeze_vision=freeze)
    asked = Asked(folder)
    network = PolicyNetwork(load_policy(config, dtype=torch.float32, device=CPU))
    inputs = ImageInputs(asked.files.__getitem__, asked.processor, network.model)
    network.vision = VisionTower(network.model, inputs, in_step=stage == 3)
    return network, asked, RankContext(device=CPU, images=inputs)


def loss_of(engine: Any, asked: Asked, place: RankContext, *, has_work: bool) -> Tensor:
    pack, tokens = empty_micro_batch(place)
    if has_work:
        ((pack, tokens),) = micro_batches(asked.reads, range(4), place)
    signs = torch.where(tokens % 3 == 0, -1.0, 1.0)
    return (engine(pack).logprobs * signs).sum() / 20


def work(folder: Path, out: Path, port: int, rank: int, stage: Stage, freeze: bool) -> None:
    """One step of a rank, and its weights afterwards."""
    from learner.models.deepspeed_engine import DeepSpeedEngine, join_ranks

    join_ranks(rank=rank, world_size=2, port=port, device=CPU)
    network, asked, place = network_of(folder, freeze=freeze, stage=stage)
    config = LearnerConfig(ranks=2, zero_stage=stage, precision="float32", policy=STEP)
    engine = DeepSpeedEngine(network, STEP, config)
    engine.backward(loss_of(engine, asked, place, has_work=rank == 0), last=True)
    assert engine.step().applied
    engine.load_state(engine.state())
    weights = {n: x.clone() for n, x in engine.whole_state(network, keep=True).items()}
    save_file(weights, out / f"{rank}.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("freeze", [True, False])
@pytest.mark.parametrize("stage", [0, 2, 3])
def test_a_step_is_that_of_one_process(stage: Stage, freeze: bool, tmp_path: Path) -> None:
    folder = folder_of("qwen3_vl", tmp_path / "model")
    port = free_port("127.0.0.1")
    ranks = [
        Forked(work, folder, tmp_path, port, rank, stage, freeze, log=tmp_path / f"{rank}.log")
        for rank in range(2)
    ]
    for rank, forked in enumerate(ranks):
        assert forked.wait(120) == 0, (tmp_path / f"{rank}.log").read_text()[-2000:]
    network, asked, place = network_of(folder, freeze=freeze, stage=0)
    before = {n: p.detach().clone() for n, p in network.named_parameters()}
    adam = torch.optim.AdamW(
        network.parameters(), lr=STEP.lr, betas=STEP.betas, eps=STEP.eps,
        weight_decay=STEP.weight_decay,
    )  # fmt: skip
    loss_of(network, asked, place, has_work=True).backward()
    torch.nn.utils.clip_grad_norm_(network.parameters(), STEP.grad_clip)
    adam.step()
    found = [load_file(tmp_path / f"{rank}.safetensors") for rank in range(2)]
    moved = set()
    for name, expected in network.named_parameters():
        assert torch.equal(found[0][name], found[1][name]), name
        difference = (found[0][name] - expected).abs().mean()
        assert difference < 2e-5, f"{name} {difference}"
        if not torch.equal(found[0][name], before[name]):
            moved.add(".visual." in name)
    assert moved == ({False} if freeze else {True, False})
