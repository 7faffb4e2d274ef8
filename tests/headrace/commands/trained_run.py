"""`python -m tests.headrace.commands.trained_run ROOT JSON`: a run whose updates are real.

In: a folder, sections of the configuration. Out: ROOT/run-1 with journal, diagnostics, SQL and
checkpoints. A script generates and scores, the coordinator's own state and scheduler make batches,
and the run's trainer trains a tiny model on them.
"""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace

from coordinator.batches import Prepared
from headrace.config.run import RunConfig
from headrace.hardware import free_port
from headrace.protocol.messages import Batch
from headrace.protocol.records import CheckpointWritten, UpdateCommitted
from learner.engines import join_ranks
from learner.shards import merged
from learner.trainer import Trainer
from storage.run_store import RunStore
from tests.coordinator.world import World, make_config
from tests.learner.recorded import save_tiny_model

CPU = torch.device("cpu")
UPDATES = 4
LENGTHS = (3, 10, 6, 12, 2, 5, 7, 4, 8, 1)


def configured(model: Path, **sections: Any) -> RunConfig:
    """A T-PPO run in a stream: tokens are masked at borders, others are old."""
    base: dict[str, Any] = {
        "model": {"path": str(model)},
        "algorithm": {
            "advantages": {
                "kind": "egae", "length_adaptive_alpha": 0.5, "gae_lambda_policy": 0.9,
                "boundary_mask": 1, "whiten": True,
            },
            "value": {"value_clip_low": 0.5, "value_clip_high": 0.6},
        },
        "schedule": {"mode": "streaming", "max_staleness": 2, "batch_windows": 6},
        "learner": {
            "device": "cpu", "precision": "float32", "threads": 1,
            "policy": {"lr": 1e-3}, "value": {"lr": 2e-3, "minibatches": 2},
        },
        "checkpoint": {"every_updates": 1, "keep_last": 2},
    }  # fmt: skip
    for name, values in sections.items():
        base[name] = base.get(name, {}) | values
    return make_config(**base)


def generate(world: World) -> None:
    """A few tokens of everything that is under way."""
    world.fill(8 - len(world.leased()))
    for trajectory in world.leased():
        end = LENGTHS[trajectory.trajectory_id % len(LENGTHS)]
        border = trajectory.open_start + world.config.window
        tokens = min(3, end - trajectory.length, border - trajectory.length)
        over = trajectory.length + tokens == end
        world.chunk(trajectory, tokens, "stop" if over else None)
        if over:
            world.reward(trajectory, float(trajectory.trajectory_id % 3 == 0))
        elif world.must_hold(trajectory):
            world.chunk(trajectory, 0, "held")


def train(world: World, trainer: Trainer, prepared: Prepared) -> None:
    """One update, and what the coordinator notes of it."""
    taken, parts = prepared.taken, [shard for shards in prepared.parts for shard in shards]
    batch = Batch(
        batch_id=taken.batch_id or 0,
        update=taken.update,
        lineage=taken.lineage,
        version=taken.version,
        publish_as=taken.version + 1,
        parts=[len(parts)],
        value_epochs=world.config.learner.value.epochs,
        checkpoint=True,
    )
    done = trainer.train(batch, merged(parts), None)
    world.commit(skipped=done.skipped)
    place = max(i for i, x in enumerate(world.records) if isinstance(x, UpdateCommitted))
    record = world.records[place]
    assert isinstance(record, UpdateCommitted)
    world.records[place] = replace(
        record, metrics=done.metrics | prepared.metrics, diagnostics=done.diagnostics
    )
    assert done.checkpoint is not None
    world.note(
        CheckpointWritten(
            at=time.time(), update=done.update, lineage=done.lineage, path=done.checkpoint
        )
    )


def main(arguments: Sequence[str]) -> None:
    """Make the run."""
    root = Path(arguments[0])
    config = configured(save_tiny_model(root / "model"), **json.loads(arguments[1]))
    torch.set_num_threads(config.learner.threads)
    run_dir = root / "run-1"
    store = RunStore.create(run_dir, run_dir.name, config)
    world = World(config)
    join_ranks(rank=0, world_size=1, port=free_port(), device=CPU)
    trainer = Trainer(config, run_dir, rank=0, device=CPU)
    while world.state.committed < UPDATES:
        generate(world)
        if (prepared := world.take()) is not None:
            train(world, trainer, prepared)
    torch.distributed.destroy_process_group()
    store.append(world.records)
    store.close()


if __name__ == "__main__":
    main(sys.argv[1:])
