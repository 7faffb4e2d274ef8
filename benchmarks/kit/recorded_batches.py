"""The batches of a finished run, trained again by the learner alone, with another value model.

In: a run, and overrides of its settings. Out: explained variance of each update before it trained,
and the seconds of the value model. Promises: batches are those of the run, made from its journal by
the coordinator's own code, so that value models are compared on the same answers; weights begin
where the run began; nothing is published and no checkpoint written.
"""

import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from coordinator.persistence.state import State
from coordinator.training.replayed_batch import sent_batch
from headrace.config.sections.run import RunConfig
from headrace.config.validation.batch_rules import batch_rules
from headrace.protocol.messages.batches import Shard
from headrace.protocol.messages.control import Batch
from headrace.protocol.records.record_types import BatchTaken
from learner.batching.shards import merged
from learner.process.trainer import Trainer
from storage.journal.store import read_journal


class CriticRecord(NamedTuple):
    """By update: what the value model explained of answers that it had not trained on, and its
    seconds."""

    explained: list[float]
    seconds: list[float]


def recorded_batches(run_dir: Path, config: RunConfig) -> Iterator[tuple[Batch, Shard]]:
    """Each batch that left for the learner, for a learner of one rank with this configuration."""
    state, rules = State(config), batch_rules(config)
    for records in read_journal(run_dir / "journal"):
        for _, record in records:
            if isinstance(record, BatchTaken):
                sent = sent_batch(record, state, rules, config, {})
                yield sent.header(), merged(sent.parts)
            state.apply(record)


def critic_record(run_dir: Path, config: RunConfig) -> CriticRecord:
    """Train a run's batches again; needs a joined process group of one rank."""
    learner = config.learner.model_copy(update={"ranks": 1})
    config = config.model_copy(update={"learner": learner})
    found = CriticRecord([], [])
    with tempfile.TemporaryDirectory(prefix="headrace-critic-") as folder:
        trainer = Trainer(config, Path(folder), rank=0, device=torch.device("cpu"))
        for batch, shard in recorded_batches(run_dir, config):
            metrics = trainer.train(batch, shard, None).metrics
            explained = metrics.get("critic/vf_explained_var", math.nan)
            seconds = metrics.get("timing_s/value", math.nan)
            assert isinstance(explained, float)
            assert isinstance(seconds, float)
            found.explained.append(round(explained, 3))
            found.seconds.append(round(seconds, 2))
    return found
