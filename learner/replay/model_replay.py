"""Replay of an update with its models, from forward passes to optimizer steps.

In: a run's configuration, the batch as its ranks got it, the checkpoint from before the update.
Out: the learner's report and the weights afterwards. Promises: the run's trainer does it, on as
many ranks as then, each a process of its own, beside the run's folder: nothing in the run changes.
"""

import logging
import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
from msgspec.structs import replace
from safetensors.torch import load_file
from torch import Tensor
from torch.multiprocessing.spawn import ProcessException, start_processes

from headrace.config.sections.run import RunConfig
from headrace.errors import RunFailedError, UserError
from headrace.host.hardware import free_port, has_gpu
from headrace.protocol.messages.batches import Shard
from headrace.protocol.messages.control import Batch, UpdateDone
from headrace.protocol.transport.codec import message_codec
from headrace.run_files.run_folder import MEDIA, read_manifest
from learner.process.checkpoint import CRITIC, POLICY, mismatch

ModelWeights = Mapping[str, Mapping[str, Tensor]]
"""By model, by the tensor's name."""
RankShare = Sequence[Shard]
"""A rank's share of a batch, in parts."""
RESOLVED, REPORT, WEIGHTS = "resolved.json", "report", "weights"
"""Files of a replay: configuration, each rank's report, weights (by rank 0)."""
_UNBOUNDED = 1 << 40
"""Bytes: a file that a process of ours wrote has no limit."""


class ReplayedUpdate(NamedTuple):
    """A replayed update: its report, the weights behind it, and the kind of device."""

    done: UpdateDone
    weights: ModelWeights
    device: str


def replay_obstacle(config: RunConfig, run_dir: Path, update: int, after: int | None) -> str | None:
    """Say why an update cannot be replayed, or None; `after`: the batch before it."""
    ranks, room = config.learner.ranks, _room_for_ranks(config)
    if config.learner.zero_stage and ranks > room:
        return (
            f"its optimizer state is cut for learner.ranks = {ranks}, each with a GPU of its own, "
            f"and this machine has {room}"
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
    """Return the models read besides a checkpoint: starting models, a base, a reference."""
    path, critic = config.model.path, config.model.critic_path
    kl, found = config.algorithm.kl, []
    if update == 1 or config.learner.lora is not None:
        found = [path, *([critic] if critic and config.algorithm.value is not None else [])]
    return found if kl is None else [*found, kl.reference_path or path]


def checkpoint_before(run_dir: Path, update: int) -> Path:
    """Return the path of an update's starting weights, whether or not they were kept."""
    return run_dir / "checkpoints" / f"step_{update - 1}"


def weights_after(run_dir: Path, update: int, batch_id: int | None) -> ModelWeights:
    """Read the weights behind an update; empty where no checkpoint has them."""
    path = run_dir / "checkpoints" / f"step_{update}"
    if not path.is_dir() or mismatch(path) or read_manifest(path).get("batch_id") != batch_id:
        return {}
    folders = ((name, path / name) for name in (POLICY, CRITIC))
    return {name: _tensors_in(folder) for name, folder in folders if folder.is_dir()}


def _tensors_in(folder: Path) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        found.update(load_file(file))
    return found


def replay_update(
    config: RunConfig, run_dir: Path, batch: Batch, shares: Sequence[RankShare], beside: Path
) -> ReplayedUpdate:
    """Replay an update that has no `replay_obstacle`, in the empty folder `beside`.

    `shares` are those of all ranks. Where the machine has too few GPUs for them, one rank computes
    everything. UserError where a model cannot be loaded, RunFailedError where a rank fails."""
    if len(shares) > _room_for_ranks(config):
        shares = [[shard for share in shares for shard in share]]
    (beside / "checkpoints").mkdir()
    (beside / MEDIA).symlink_to((run_dir / MEDIA).resolve())
    if batch.update > 1:
        checkpoint = checkpoint_before(run_dir, batch.update).resolve()
        (beside / "checkpoints" / checkpoint.name).symlink_to(checkpoint)
    changed: dict[str, Any] = {
        "learner": config.learner.model_copy(update={"ranks": len(shares)}),
        "storage": config.storage.model_copy(update={"token_diagnostics": True}),
    }
    if config.model.path not in _starting_models(config, batch.update):
        # A copy of the run may have come without the model that it began with.
        folder = str(beside / "checkpoints" / f"step_{batch.update - 1}" / POLICY)
        changed["model"] = config.model.model_copy(update={"path": folder})
    (beside / RESOLVED).write_text(config.model_copy(update=changed).model_dump_json())
    _run_ranks(config, beside, batch, shares)
    codec = message_codec(max_bytes=_UNBOUNDED)
    paths = [beside / f"{REPORT}-{rank}" for rank in range(len(shares))]
    reports = [codec.decode(msgspec.msgpack.decode(path.read_bytes())) for path in paths]
    first, *others = (report for report in reports if isinstance(report, UpdateDone))
    diagnostics = [row for report in (first, *others) for row in report.diagnostics]
    weights = {path.name: _tensors_in(path) for path in (beside / WEIGHTS).iterdir()}
    done = replace(first, diagnostics=diagnostics)
    return ReplayedUpdate(done, weights, "cuda" if _on_gpus(config) else "cpu")


def _on_gpus(config: RunConfig) -> bool:
    return config.learner.device != "cpu" and has_gpu()


def _room_for_ranks(config: RunConfig) -> int:
    """Return the machine's maximum number of ranks: one per GPU, any number on a CPU."""
    return torch.cuda.device_count() if _on_gpus(config) else sys.maxsize


def _run_ranks(config: RunConfig, folder: Path, batch: Batch, shares: Sequence[RankShare]) -> None:
    """Run all ranks to their end, or end them once one has failed."""
    logging.getLogger(start_processes.__module__).setLevel(logging.ERROR)
    arguments = (folder, free_port(), batch, shares)
    # A process that asked CUDA cannot fork one that uses it; elsewhere what all ranks import is
    # imported once.
    method = "spawn" if _on_gpus(config) else "forkserver"
    multiprocessing.get_context("forkserver").set_forkserver_preload(["learner.run"])
    try:
        start_processes(_compute, arguments, nprocs=len(shares), start_method=method)
    except ProcessException as error:
        said = str(error).strip().rpartition("\n")[2]
        kind, _, text = said.partition(": ")
        if kind.endswith(f".{UserError.__name__}"):
            raise UserError(text) from error
        code = getattr(error, "exit_code", 1)
        raise RunFailedError(
            f"learner rank {error.error_index} of the replay ended with {code}: {said}"
        ) from error


def _compute(rank: int, folder: Path, port: int, batch: Batch, shares: Sequence[RankShare]) -> None:
    """Run the update on one rank, in a process of its own; write report and weights."""
    with (folder / f"rank-{rank}.log").open("wb") as log:
        os.dup2(log.fileno(), 1)  # What libraries print is not the answer.
        os.dup2(log.fileno(), 2)
    from learner.batching.shards import merge_shards
    from learner.device import choose_device
    from learner.models.deepspeed_engine import join_ranks
    from learner.process.trainer import Trainer
    from learner.run import REPRODUCIBLE, use_cores

    # MKL reads it at its first product.
    os.environ.update({k: v for k, v in REPRODUCIBLE.items() if k not in os.environ})
    config = RunConfig.model_validate_json((folder / RESOLVED).read_text())
    device = choose_device(config.learner.device, rank)
    if device.type == "cpu":
        use_cores(config, None)
    join_ranks(rank=rank, world_size=len(shares), port=port, device=device)
    try:
        trainer = Trainer(config, folder, rank=rank, device=device)
        done = trainer.train(batch, merge_shards(shares[rank]), None)
        frames = message_codec(max_bytes=_UNBOUNDED).encode(done)
        (folder / f"{REPORT}-{rank}").write_bytes(msgspec.msgpack.encode(frames))
        models = trainer.models.whole()
        if rank == 0:
            for name, model in models.items():
                trainer.models.save(name, folder / WEIGHTS / name, model)
    finally:
        torch.distributed.destroy_process_group()
