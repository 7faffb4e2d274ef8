"""An update, computed again with its models: forward passes, losses, gradients, optimizer steps.

In: a run's configuration, the batch as one share, the checkpoint from before the update. Out: what
a learner reports of it and the weights afterwards. Promises: the trainer of the run does it, on one
rank, beside the run's folder: nothing in the run changes.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor

from headrace.config.run import RunConfig
from headrace.hardware import free_port
from headrace.protocol.batches import Shard
from headrace.protocol.messages import Batch, UpdateDone
from learner.checkpoint import mismatch, read_manifest
from learner.engines import join_ranks
from learner.run import REPRODUCIBLE, choose_device, use_cores
from learner.trainer import CRITIC, POLICY, Trainer

Weights = Mapping[str, Mapping[str, Tensor]]
"""By model, by the tensor's name."""


class Rerun(NamedTuple):
    """An update computed again: its report, the weights behind it, and the kind of device."""

    done: UpdateDone
    weights: Weights
    device: str


def obstacle(config: RunConfig, run_dir: Path, update: int, after: int | None) -> str | None:
    """Why an update cannot be computed again with its models; None where it can. `after`: the batch
    that was the last one in the weights."""
    learner = config.learner
    if learner.ranks > 1 and (learner.zero_stage or learner.precision == "bfloat16"):
        return (
            f"its optimizer state is cut for learner.ranks = {learner.ranks}, and a replay has one "
            "rank"
        )
    for start in _starting_models(config, update):
        if not Path(start).is_dir():
            return f"the model that the run began with is not at {start}"
    if update == 1:
        return None
    path = checkpoint_before(run_dir, update)
    if not path.is_dir():
        return (
            f"there is no checkpoint of update {update - 1}: a run with checkpoint.every_updates = "
            "1 and a large checkpoint.keep_last has one before each of its last updates"
        )
    if problem := mismatch(path):
        return f"checkpoint {path.name} is not whole: {problem}"
    trained = read_manifest(path).get("batch_id")
    if None not in (trained, after) and trained != after:
        return f"checkpoint {path.name} is of a line of updates that was given up"
    return None


def _starting_models(config: RunConfig, update: int) -> list[str]:
    """What is read besides a checkpoint: for update 1 instead of one, and as a reference."""
    path, critic = config.model.path, config.model.critic_path
    if update == 1:
        return [path, *([critic] if critic and config.algorithm.value is not None else [])]
    return [path] if config.algorithm.kl is not None else []


def checkpoint_before(run_dir: Path, update: int) -> Path:
    """Where the weights of an update's start are, if anybody kept them."""
    return run_dir / "checkpoints" / f"step_{update - 1}"


def weights_after(run_dir: Path, update: int, batch_id: int | None) -> Weights:
    """The weights behind an update; empty where no checkpoint has them."""
    path = run_dir / "checkpoints" / f"step_{update}"
    if not path.is_dir() or mismatch(path) or read_manifest(path).get("batch_id") != batch_id:
        return {}
    found: dict[str, dict[str, Tensor]] = {}
    for name in (POLICY, CRITIC):
        for file in sorted((path / name).glob("*.safetensors")):
            found.setdefault(name, {}).update(load_file(file))
    return found


def rerun(config: RunConfig, run_dir: Path, batch: Batch, shard: Shard, beside: Path) -> Rerun:
    """Compute an update again that has no `obstacle`, in the empty folder `beside`. UserError where
    a model cannot be had."""
    os.environ.update({k: v for k, v in REPRODUCIBLE.items() if k not in os.environ})
    (beside / "checkpoints").mkdir()
    if batch.update > 1:
        checkpoint = checkpoint_before(run_dir, batch.update).resolve()
        (beside / "checkpoints" / checkpoint.name).symlink_to(checkpoint)
    changed: dict[str, Any] = {
        "learner": config.learner.model_copy(update={"ranks": 1}),
        "storage": config.storage.model_copy(update={"token_diagnostics": True}),
    }
    if not _starting_models(config, batch.update):
        # A copy of the run may have come without the model that it began with.
        folder = str(beside / "checkpoints" / f"step_{batch.update - 1}" / POLICY)
        changed["model"] = config.model.model_copy(update={"path": folder})
    config = config.model_copy(update=changed)
    device = choose_device(config, 0)
    if device.type == "cpu":
        use_cores(config, None)
    join_ranks(rank=0, world_size=1, port=free_port(), device=device)
    try:
        trainer = Trainer(config, beside, rank=0, device=device)
        done = trainer.train(batch, shard, None)
        return Rerun(done, trainer.whole_weights(), device.type)
    finally:
        torch.distributed.destroy_process_group()
