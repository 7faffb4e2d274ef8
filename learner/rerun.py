"""An update, computed again with its models: forward passes, losses, gradients, optimizer steps.

In: a run's configuration, the batch as its ranks got it, the checkpoint from before the update.
Out: what the learner reports of it and the weights afterwards. Promises: the trainer of the run
does it, on as many ranks as then, each a process of its own (`learner.rerun_rank`), beside the
run's folder: nothing in the run changes.
"""

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import torch
from msgspec.structs import replace
from safetensors.torch import load_file
from torch import Tensor

from headrace.config.run import RunConfig
from headrace.errors import RunFailedError, UserError
from headrace.hardware import free_port
from headrace.install import ROOT
from headrace.protocol.batches import Shard
from headrace.protocol.messages import Batch, BatchPart, UpdateDone
from learner.checkpoint import CRITIC, POLICY, mismatch, read_manifest
from learner.message_file import read_messages, write_messages

Weights = Mapping[str, Mapping[str, Tensor]]
"""By model, by the tensor's name."""
Share = Sequence[Shard]
"""What a rank gets, in parts."""
RESOLVED, SENT, REPORT, WEIGHTS = "resolved.json", "sent", "report", "weights"
"""What is in the folder in which ranks compute: the configuration, the coordinator's messages to
rank 0, and from rank 0 the report and the models' weights."""
_POLL_S = 0.05


class Rerun(NamedTuple):
    """An update computed again: its report, the weights behind it, and the kind of device."""

    done: UpdateDone
    weights: Weights
    device: str


def obstacle(config: RunConfig, run_dir: Path, update: int, after: int | None) -> str | None:
    """Why an update cannot be computed again with its models; None where it can. `after`: the batch
    that was the last one in the weights."""
    ranks, room = config.learner.ranks, _room_for_ranks(config)
    if _is_cut(config) and ranks > room:
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


def rerun(
    config: RunConfig, run_dir: Path, batch: Batch, shares: Sequence[Share], beside: Path
) -> Rerun:
    """Compute an update again that has no `obstacle`, in the empty folder `beside`.

    `shares` are those of all ranks. Where the machine has too few GPUs for them, one rank computes
    everything. UserError where a model cannot be had, RunFailedError where a rank fails.
    """
    if len(shares) > _room_for_ranks(config):
        shares = [[shard for share in shares for shard in share]]
    (beside / "checkpoints").mkdir()
    if batch.update > 1:
        checkpoint = checkpoint_before(run_dir, batch.update).resolve()
        (beside / "checkpoints" / checkpoint.name).symlink_to(checkpoint)
    changed: dict[str, Any] = {
        "learner": config.learner.model_copy(update={"ranks": len(shares)}),
        "storage": config.storage.model_copy(update={"token_diagnostics": True}),
    }
    if not _starting_models(config, batch.update):
        # A copy of the run may have come without the model that it began with.
        folder = str(beside / "checkpoints" / f"step_{batch.update - 1}" / POLICY)
        changed["model"] = config.model.model_copy(update={"path": folder})
    (beside / RESOLVED).write_text(config.model_copy(update=changed).model_dump_json())
    parts = [
        BatchPart(batch_id=batch.batch_id, rank=rank, index=index, shard=shard)
        for rank, share in enumerate(shares)
        for index, shard in enumerate(share)
    ]
    batch = replace(batch, parts=[len(share) for share in shares])
    write_messages(beside / SENT, [batch, *parts])
    _run_ranks(beside, len(shares))
    (done,) = read_messages(beside / REPORT)
    assert isinstance(done, UpdateDone)
    weights = {path.stem: load_file(path) for path in (beside / WEIGHTS).iterdir()}
    return Rerun(done, weights, "cuda" if _on_gpus(config) else "cpu")


def _is_cut(config: RunConfig) -> bool:
    """Whether each rank has an optimizer state of its own."""
    return bool(config.learner.zero_stage) or config.learner.precision == "bfloat16"


def _on_gpus(config: RunConfig) -> bool:
    return config.learner.device != "cpu" and torch.cuda.is_available()


def _room_for_ranks(config: RunConfig) -> int:
    """How many ranks this machine can have: two of them cannot share a GPU, and all share cores."""
    return torch.cuda.device_count() if _on_gpus(config) else sys.maxsize


def _run_ranks(folder: Path, ranks: int) -> None:
    """Run all ranks to their end, or none any longer once one has failed."""
    port = free_port()
    logs = [folder / f"rank-{rank}.log" for rank in range(ranks)]
    paths = [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}
    with ExitStack() as stack:
        processes = []
        for rank, log in enumerate(logs):
            process = subprocess.Popen(
                [sys.executable, "-m", "learner.rerun_rank", str(folder), "--rank", str(rank),
                 "--world-size", str(ranks), "--master-port", str(port)],
                stdin=subprocess.DEVNULL, stdout=stack.enter_context(log.open("wb")),
                stderr=subprocess.STDOUT, env=environment,
            )  # fmt: skip
            stack.callback(process.wait)
            stack.callback(process.kill)
            processes.append(process)
        while None in (codes := [p.poll() for p in processes]) and not any(codes):
            time.sleep(_POLL_S)
    for rank, code in enumerate(codes):
        if code:
            said = logs[rank].read_text(errors="replace").strip().rpartition("\n")[2]
            if code == 2:
                raise UserError(said.removeprefix("error: "))
            raise RunFailedError(f"learner rank {rank} of the replay ended with {code}: {said}")
