"""The learner alone: the batches of a finished run, trained again without anybody beside it.

In: a run folder and cores (`python -m benchmarks.kit.learner_alone FOLDER 0,1`); it takes as many
threads as the run's learner had. Out: a line `{"seconds": ..., "updates": ...}`. The batches are
those of the run, made from its journal by the coordinator's own code; the weights begin where the
run began. Nothing is published and no checkpoint written.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from coordinator.persistence.state import State
from coordinator.scheduling.base import Selection
from coordinator.training.batches import prepare
from headrace.config.sections.run import RunConfig
from headrace.config.validation.batch_rules import batch_rules
from headrace.host.hardware import free_port
from headrace.protocol.messages.batches import Shard
from headrace.protocol.messages.control import Batch
from headrace.protocol.records.record_types import BatchTaken
from learner.batching.shards import merged
from learner.models.deepspeed_engine import join_ranks
from learner.process.trainer import Trainer
from storage.journal.store import read_journal


def recorded_batches(run_dir: Path, config: RunConfig) -> Iterator[tuple[Batch, Shard]]:
    """Each batch that left for the learner, as it was, for a learner of one rank."""
    state, rules = State(config), batch_rules(config)
    value = config.algorithm.value
    for records in read_journal(run_dir / "journal"):
        for _, record in records:
            if isinstance(record, BatchTaken):
                epochs = config.learner.value.epochs
                if value is not None and not record.windows:
                    epochs = value.warmup_epochs
                windows = [state.account.window(item.window_id) for item in record.windows]
                finished = [state.account.trajectories[key] for key in record.value_trajectories]
                prepared = prepare(
                    Selection(windows, finished, epochs),
                    state,
                    rules,
                    ranks=1,
                    max_bytes=config.transport.part_bytes,
                )
                header = Batch(
                    batch_id=record.batch_id or record.update,
                    update=record.update,
                    lineage=record.lineage,
                    version=record.version,
                    publish_as=record.version + int(prepared.trains_policy),
                    parts=[len(prepared.parts[0])],
                    value_epochs=epochs,
                    checkpoint=False,
                )
                yield header, merged(prepared.parts[0])
            state.apply(record)


def seconds_of(run_dir: Path) -> tuple[float, int]:
    """Seconds in updates, and how many there were."""
    config = RunConfig.model_validate_json((run_dir / "resolved.json").read_text())
    torch.set_num_threads(config.learner.threads)
    device = torch.device("cpu")
    join_ranks(rank=0, world_size=1, port=free_port(), device=device)
    seconds, updates = 0.0, 0
    with tempfile.TemporaryDirectory(prefix="headrace-learner-") as folder:
        trainer = Trainer(config, Path(folder), rank=0, device=device)
        for batch, shard in recorded_batches(run_dir, config):
            began = time.perf_counter()
            trainer.train(batch, shard, None)
            seconds += time.perf_counter() - began
            updates += 1
    torch.distributed.destroy_process_group()
    return seconds, updates


if __name__ == "__main__":
    os.sched_setaffinity(0, [int(core) for core in sys.argv[2].split(",")])
    spent, count = seconds_of(Path(sys.argv[1]))
    print(json.dumps({"seconds": spent, "updates": count}))
