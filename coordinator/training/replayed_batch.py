"""A batch of the past, compiled again from the journal.

In: a run's records from the first one on, its configuration, the number of an update. Out: the
batch that the learner got for it, its record and its result. Promises: the code that folded the
state and compiled the batch then does so again, so a difference is one of the records; of several
updates of that number it is the one on the surviving line; no more is read than that takes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from coordinator.persistence.state import State
from coordinator.scheduling.base import BatchSelection
from coordinator.training.batches import PreparedBatch, prepare
from headrace.config.sections.run import RunConfig
from headrace.config.validation.batch_rules import BatchRules, batch_rules
from headrace.errors import UserError
from headrace.protocol.messages.batches import Shard
from headrace.protocol.messages.control import Batch
from headrace.protocol.records.record_types import (
    BatchReturned,
    BatchTaken,
    Forgotten,
    LineageBegan,
    Record,
    UpdateCommitted,
)
from headrace.trajectory.windows import Window


@dataclass(frozen=True)
class SentBatch:
    """A batch as it was sent out.

    Attributes:
        recorded: the journal's record of the batch. prepared: the same batch, compiled again.
        windows: those of both, by id. value_epochs: passes of the value model over its half. after:
        the last batch in the weights before; None: none, or a batch without an id.
    """

    recorded: BatchTaken
    prepared: PreparedBatch
    windows: dict[int, Window]
    value_epochs: int
    after: int | None

    @property
    def parts(self) -> list[Shard]:
        """Shards of all ranks, one rank after the other."""
        return [shard for shards in self.prepared.parts for shard in shards]

    def header(self) -> Batch:
        """Return the message that announces the batch to the learner."""
        taken = self.recorded
        return Batch(
            batch_id=taken.batch_id or 0,
            update=taken.update,
            lineage=taken.lineage,
            version=taken.version,
            publish_as=taken.version + self.prepared.trains_policy,
            parts=[len(shards) for shards in self.prepared.parts],
            value_epochs=self.value_epochs,
            checkpoint=False,
        )


@dataclass(frozen=True)
class PastBatch(SentBatch):
    """A batch as it was sent out, and `commit`: the update that it became."""

    commit: UpdateCommitted


def past_batch(
    records: Iterable[Record], config: RunConfig, update: int, ranks: Mapping[int, int]
) -> PastBatch:
    """Return the batch of an update on the surviving line; UserError without one.

    `ranks`: numbers of learner ranks by batch id, where they were not the configured one."""
    state, rules = State(config), batch_rules(config)
    out: SentBatch | None = None
    found: PastBatch | None = None
    for record in records:
        match record:
            case BatchTaken() if record.update == update:
                out = sent_batch(record, state, rules, config, ranks)
            case BatchReturned() if record.update == update:
                out = None
            case UpdateCommitted() if record.update == update and out is not None:
                found, out = PastBatch(**vars(out), commit=record), None
            case LineageBegan() if record.update < update:
                found = out = None
            case Forgotten() if found is not None and record.update >= update:
                break  # No rollback undoes it any more, and most of a long journal follows.
        state.apply(record)
    if found is None:
        have = f"its last one is {state.committed}" if state.committed else "it has none"
        raise UserError(f"there is no update {update} in this run: {have}")
    return found


def sent_batch(
    taken: BatchTaken, state: State, rules: BatchRules, config: RunConfig, ranks: Mapping[int, int]
) -> SentBatch:
    """Compile a batch from the state that it was taken from; `ranks` as above."""
    account = state.account
    selection = BatchSelection(
        [account.window(window.window_id) for window in taken.windows],
        [account.trajectories[key] for key in taken.value_trajectories],
    )
    prepared = prepare(
        selection,
        state,
        rules,
        ranks=ranks.get(taken.batch_id or 0, config.learner.ranks),
        max_bytes=config.transport.part_bytes,
        batch_id=taken.batch_id,
    )
    windows = {window.window_id: window for window in selection.windows}
    epochs = config.value_epochs(warms_up=not taken.windows)
    after = state.line.get(taken.update - 1)
    return SentBatch(taken, prepared, windows, epochs, after)
