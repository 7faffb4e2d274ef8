"""A run whose updates are real: `make`.

In: a folder, sections of the configuration. Out: ROOT/run-1 with journal, diagnostics, SQL and
checkpoints. A script generates and scores, the coordinator's own state and scheduler make batches,
and the run's trainer trains a tiny model on them, on as many ranks as configured, each a process of
its own: the first one is `lead`, the others `follow`.
"""

import time
from pathlib import Path
from typing import Any, cast

import torch
from msgspec.structs import replace

from coordinator.training.batches import PreparedBatch
from headrace.config.sections.run import RunConfig
from headrace.host.hardware import free_port
from headrace.protocol.messages.control import Batch, BatchPart, Shutdown, UpdateDone
from headrace.protocol.records.record_types import CheckpointWritten, UpdateCommitted
from learner.batching.shards import merge_shards
from learner.loop import run_loop
from learner.models.deepspeed_engine import join_ranks
from learner.process.rank_broadcast import RankRelay
from learner.process.trainer import Trainer
from learner.run import REPRODUCIBLE
from storage.run_store import RunStore
from tests.coordinator.world import World, make_config
from tests.learner.forked import Forked
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


def train(world: World, relay: RankRelay, trainer: Trainer, prepared: PreparedBatch) -> None:
    """One update, and what the coordinator notes of it."""
    taken = prepared.taken
    batch = Batch(
        batch_id=taken.batch_id or 0,
        update=taken.update,
        lineage=taken.lineage,
        version=taken.version,
        publish_as=taken.version + 1,
        parts=[len(shards) for shards in prepared.parts],
        value_epochs=world.config.learner.value.epochs,
        checkpoint=True,
    )
    parts = (
        BatchPart(batch_id=batch.batch_id, rank=rank, index=index, shard=shard)
        for rank, shards in enumerate(prepared.parts)
        for index, shard in enumerate(shards)
    )
    relay.share(batch)
    own = relay.deliver(batch, parts.__next__)
    assert isinstance(own, list)
    reports = relay.collect(trainer.train(batch, merge_shards(own), None))
    done = trainer.report(cast(list[UpdateDone], reports))
    world.commit(skipped=done.skipped)
    place = max(i for i, x in enumerate(world.records) if isinstance(x, UpdateCommitted))
    record = world.records[place]
    assert isinstance(record, UpdateCommitted)
    world.records[place] = replace(
        record, metrics=done.metrics | prepared.metrics, diagnostics=done.diagnostics
    )
    path = done.checkpoint or str(trainer.checkpoints.writing.written(None))
    world.note(
        CheckpointWritten(at=time.time(), update=done.update, lineage=done.lineage, path=path)
    )


def joined(config: RunConfig, run_dir: Path, *, rank: int, port: int) -> tuple[RankRelay, Trainer]:
    """A rank among the others."""
    torch.set_num_threads(config.learner.threads)
    join_ranks(rank=rank, world_size=config.learner.ranks, port=port, device=CPU)
    relay = RankRelay(rank=rank, world=config.learner.ranks)
    return relay, Trainer(config, run_dir, rank=rank, device=CPU)


def lead(config: RunConfig, run_dir: Path, port: int) -> None:
    """The run, as the first rank."""
    store = RunStore.create(run_dir, run_dir.name, config)
    world = World(config)
    relay, trainer = joined(config, run_dir, rank=0, port=port)
    while world.state.committed < UPDATES:
        generate(world)
        rules = {"ranks": config.learner.ranks, "max_bytes": config.transport.part_bytes}
        if (prepared := world.take(**rules)) is not None:
            train(world, relay, trainer, prepared)
    relay.share(Shutdown(reason="enough"))
    store.append(world.records)
    store.close()
    torch.distributed.destroy_process_group()


def follow(config: RunConfig, run_dir: Path, port: int, rank: int) -> None:
    """Another rank, to the end of the run."""
    relay, trainer = joined(config, run_dir, rank=rank, port=port)
    run_loop(None, None, relay, trainer)
    torch.distributed.destroy_process_group()


def make(root: Path, **sections: Any) -> Path:
    """The folder of a run with real updates."""
    config = configured(save_tiny_model(root / "model"), **sections)
    place = (config, root / "run-1", free_port())
    ranks = [Forked(lead, *place, log=root / "rank-0.log", env=REPRODUCIBLE)]
    for rank in range(1, config.learner.ranks):
        log = root / f"rank-{rank}.log"
        ranks.append(Forked(follow, *place, rank, log=log, env=REPRODUCIBLE))
    for process in ranks:
        assert process.wait(240) == 0, process.text()
    return root / "run-1"
