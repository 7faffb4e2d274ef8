"""One learner rank of a test: `python -m tests.learner.rank_worker MODEL OUT RANK WORLD PORT`.

For ZeRO 0 and 2: ten updates on recorded batches, and, with fresh engines, three of which the
second has a NaN in the last rank's shard. Writes the weights and what happened into OUT.
"""

import json
import sys
from pathlib import Path

import msgspec
import numpy as np
import torch
from safetensors.torch import save_file

from headrace.config.algorithm import AlgorithmConfig
from headrace.config.learner import LearnerConfig, OptimizerConfig
from headrace.config.model import ModelConfig
from headrace.protocol.messages import Batch
from learner.algorithm import build_algorithm
from learner.engines import DeepSpeedEngine, join_ranks
from learner.forward import PolicyNetwork, ValueNetwork
from learner.models import load_critic, load_policy
from learner.place import Place
from learner.update import Updater
from tests.learner.recorded import batch_of, record

CPU = torch.device("cpu")
STAGES = (0, 2)
UPDATES = 10
ALGORITHM = AlgorithmConfig.model_validate(
    {
        "advantages": {"kind": "egae", "length_adaptive_alpha": 0.05},
        "value": {"value_clip_low": 0.5, "value_clip_high": 0.6},
        "ratio": {"kind": "decoupled"},
        "penalties": {"positive_nll_coef": 0.1},
    }
)


def updater(model: str, stage: int, rank: int, world: int) -> tuple[Updater, list[DeepSpeedEngine]]:
    """A fresh policy and critic."""
    settings = OptimizerConfig(lr=1e-3, warmup_steps=2, minibatches=2, epochs=2, grad_clip=0.5)
    config = LearnerConfig(
        ranks=world, zero_stage=stage, precision="float32", policy=settings, value=settings
    )
    models = ModelConfig(path=model)
    policy = PolicyNetwork(load_policy(models, dtype=torch.float32, device=CPU))
    critic = ValueNetwork(load_critic(models, dtype=torch.float32, device=CPU))
    engines = [DeepSpeedEngine(network, settings, config) for network in (policy, critic)]
    place = Place(device=CPU, rank=rank, world=world, budget=100)
    return Updater(build_algorithm(ALGORITHM, window=16), *engines, config, place), engines


def recorded(update: int, world: int) -> Batch:
    """The second rank has nothing in one of the updates."""
    windows, values = record(seed=update, trajectories=1 if update == 4 else 12)
    if update == 4:
        windows, values = windows[:1], values[:1]
    return batch_of(windows, values, update=update, version=update, ranks=world, value_epochs=2)


def poisoned(batch: Batch) -> Batch:
    """A NaN in a trained token of the last rank's first window."""
    shards = list(batch.shards)
    windows = list(shards[-1].windows)
    logprobs, mask = windows[0].logprobs.copy(), windows[0].loss_mask.copy()
    logprobs[0], mask[0] = np.nan, 1
    windows[0] = msgspec.structs.replace(windows[0], logprobs=logprobs, loss_mask=mask)
    shards[-1] = msgspec.structs.replace(shards[-1], windows=windows)
    return msgspec.structs.replace(batch, shards=shards)


def main() -> None:
    """Run and write."""
    model, out, rank, world, port = sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:])
    torch.set_num_threads(1)
    join_ranks(rank=rank, world_size=world, port=port, device=CPU)
    for stage in STAGES:
        whole, engines = updater(model, stage, rank, world)
        metrics = [whole.run(recorded(u, world)).metrics for u in range(1, UPDATES + 1)]
        weights = {
            f"{i}.{name}": p.detach().clone()
            for i, engine in enumerate(engines)
            for name, p in engine.network.named_parameters()
        }
        save_file(weights, out / f"weights-{stage}-{rank}.safetensors")

        skipping, engines = updater(model, stage, rank, world)
        log = []
        for update in (1, 2, 3):
            batch = recorded(update, world)
            before = [p.detach().clone() for p in engines[0].network.parameters()]
            outcome = skipping.run(poisoned(batch) if update == 2 else batch)
            moved = any(
                not torch.equal(a, b)
                for a, b in zip(before, engines[0].network.parameters(), strict=True)
            )
            finite = all(bool(p.isfinite().all()) for p in engines[0].network.parameters())
            log.append([outcome.skipped, outcome.policy_moved, moved, finite, engines[0].steps])
        (out / f"log-{stage}-{rank}.json").write_text(json.dumps([metrics, log]))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
