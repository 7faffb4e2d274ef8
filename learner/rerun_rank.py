"""One rank of an update that is computed again: `python -m learner.rerun_rank FOLDER --rank R ...`.

In: a folder with the configuration, the checkpoint from before the update and the coordinator's
messages, which rank 0 hands out as in the run. Out: in the same folder, by rank 0, the report of
all ranks and the weights behind the update. Promise: the run's own trainer does it, and writes
nowhere else. Exit codes: 0 done, 2 the user's mistake; what it printed last says which.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import torch
from safetensors.torch import save_file

from headrace.config.run import RunConfig
from headrace.errors import UserError
from headrace.protocol.messages import Batch, Message, UpdateDone
from learner.engines import join_ranks
from learner.message_file import UNBOUNDED, read_messages, write_messages
from learner.relay import Relay
from learner.rerun import REPORT, RESOLVED, SENT, WEIGHTS
from learner.run import REPRODUCIBLE, choose_device, use_cores
from learner.shards import merged
from learner.trainer import Trainer, joined


def main(argv: Sequence[str] | None = None) -> int:
    """Compute the update on this rank; the exit code."""
    parser = argparse.ArgumentParser(prog="learner.rerun_rank")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world-size", type=int, required=True)
    parser.add_argument("--master-port", type=int, required=True)
    options = parser.parse_args(argv)
    # MKL reads it at its first product.
    os.environ.update({k: v for k, v in REPRODUCIBLE.items() if k not in os.environ})
    try:
        _compute(options.folder, options.rank, options.world_size, options.master_port)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _compute(folder: Path, rank: int, world: int, port: int) -> None:
    config = RunConfig.model_validate_json((folder / RESOLVED).read_text())
    device = choose_device(config, rank)
    if device.type == "cpu":
        use_cores(config, None)
    join_ranks(rank=rank, world_size=world, port=port, device=device)
    try:
        relay = Relay(rank=rank, world=world)
        trainer = Trainer(config, folder, rank=rank, device=device)
        reports = _train(relay, trainer, folder / SENT if rank == 0 else None)
        weights = trainer.whole_weights()
        if rank == 0:
            write_messages(folder / REPORT, [joined(reports, max_bytes=UNBOUNDED)])
            (folder / WEIGHTS).mkdir()
            for name, tensors in weights.items():
                save_file(tensors, folder / WEIGHTS / f"{name}.safetensors")
    finally:
        torch.distributed.destroy_process_group()


def _train(relay: Relay, trainer: Trainer, sent: Path | None) -> list[UpdateDone]:
    """The update; rank 0, which alone is told what the coordinator `sent`, has all reports."""
    messages = None if sent is None else read_messages(sent)
    batch = relay.share(None if messages is None else next(messages))
    assert isinstance(batch, Batch)
    parts = relay.deliver(batch, None if messages is None else messages.__next__)
    assert not isinstance(parts, Message)
    reports = relay.collect(trainer.train(batch, merged(parts), None))
    return cast(list[UpdateDone], reports)


if __name__ == "__main__":
    sys.exit(main())
