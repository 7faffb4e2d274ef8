"""Ten updates of DeepSpeed in float32, cut in different ways, in a process of its own: `work`.

Every arm trains fresh models on the same recorded batches. Writes each arm's weights, and how many
micro-batches its optimizer steps had, into OUT.
"""

import json
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from headrace.config.sections.learner import LearnerConfig, OptimizerConfig
from headrace.config.sections.model import ModelConfig
from learner.algorithms.registry import build_algorithm
from learner.device import RankContext
from learner.models.deepspeed_engine import DeepSpeedEngine, StepResult, join_ranks
from learner.models.forward import PolicyNetwork, ValueNetwork
from learner.models.loading import load_critic, load_policy
from learner.updates.update import Updater
from tests.learner.padded import PaddedPolicy, PaddedValue
from tests.learner.rank_worker import ALGORITHM, CPU, UPDATES
from tests.learner.recorded import batch_of, record

TRAJECTORIES = 16
SETTINGS = OptimizerConfig(lr=1e-3, warmup_steps=2, minibatches=2, grad_clip=0.5)


class Arm(NamedTuple):
    """How a step's tokens are cut."""

    budget: int = 100_000
    chunk: int = 4096
    padded: bool = False


ARMS = {
    "whole": Arm(),
    "accumulated": Arm(budget=45),
    "alone": Arm(budget=1),
    "padded": Arm(padded=True),
    "chunks": Arm(chunk=7),
}


class CountingEngine(DeepSpeedEngine):
    """Notes the micro-batches of each optimizer step."""

    def __init__(self, network: nn.Module) -> None:
        config = LearnerConfig(precision="float32", policy=SETTINGS, value=SETTINGS)
        super().__init__(network, SETTINGS, config)
        self.micro_batches = [0]

    def backward(self, loss: Tensor, *, last: bool) -> None:
        self.micro_batches[-1] += 1
        super().backward(loss, last=last)

    def step(self) -> StepResult:
        self.micro_batches.append(0)
        return super().step()


def train(model: str, arm: Arm) -> list[CountingEngine]:
    """The policy and the critic after all updates."""
    torch.manual_seed(0)
    models = ModelConfig(path=model)
    policy = load_policy(models, dtype=torch.float32, device=CPU)
    critic = load_critic(models, dtype=torch.float32, device=CPU)
    networks: list[nn.Module] = (
        [PaddedPolicy(policy), PaddedValue(critic)]
        if arm.padded
        else [PolicyNetwork(policy, logits_chunk=arm.chunk), ValueNetwork(critic)]
    )
    engines = [CountingEngine(network) for network in networks]
    config = LearnerConfig(precision="float32", policy=SETTINGS, value=SETTINGS)
    place = RankContext(device=CPU, budget=arm.budget)
    algorithm = build_algorithm(ALGORITHM, window=16)
    updater = Updater(algorithm, engines[0], engines[1], config, place)
    for update in range(1, UPDATES + 1):
        shard = record(seed=update, trajectories=TRAJECTORIES, turns=update % 2 == 0)
        sent = batch_of(shard, update=update, version=update)
        outcome = updater.run(sent.batch, shard)
        assert outcome.skipped is None
    return engines


def work(model: str, out: Path, port: int) -> None:
    """Run and write into `out`."""
    torch.set_num_threads(1)
    join_ranks(rank=0, world_size=1, port=port, device=CPU)
    counts = {}
    for name, arm in ARMS.items():
        engines = train(model, arm)
        counts[name] = [engine.micro_batches[:-1] for engine in engines]
        weights = {
            f"{i}.{key}": p.detach().clone()
            for i, engine in enumerate(engines)
            for key, p in engine.network.named_parameters()
        }
        save_file(weights, out / f"{name}.safetensors")
    (out / "micro_batches.json").write_text(json.dumps(counts))
    torch.distributed.destroy_process_group()
