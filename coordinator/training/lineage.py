"""Alignment of the ledger and the batch in flight with the learner's weights.

In: a learner's Hello with the update and the batch of its weights. Out: the records that bring the
ledger to those weights, or the order to load others. Promises: a batch stays in flight until a
learner says whether its weights hold it, and is then either committed or returned, never both; a
learner whose weights are not a place on the surviving line is never kept.
"""

from coordinator.hub import Hub
from headrace.protocol.messages.control import Hello, Restore
from headrace.protocol.records.record_types import (
    BatchReturned,
    BatchTaken,
    LineageBegan,
    UpdateCommitted,
)


class Lineage:
    """Surviving line of updates, and its alignment with a learner's weights."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def align(self, hello: Hello) -> str | None:
        """Bring the ledger to a joining learner's weights; return why not, or None."""
        hub, state = self._hub, self._hub.state
        taken = hub.account.taken
        if taken is not None and (hello.update, hello.batch_id) == (taken.update, taken.batch_id):
            self._commit_unreported(taken)
        else:
            self.return_batch("the learner's weights are without it")
        if not state.is_on_line(hello.update, hello.batch_id):
            return (
                f"its weights are from update {hello.update} (batch {hello.batch_id}), which is "
                "not, or no longer, a place on the run's surviving line of updates"
            )
        if hello.update != state.update or (state.update and hello.resumed_from):
            self._roll_back(hello)
        return None

    def return_batch(self, reason: str) -> None:
        """Return the batch in flight, if any, to the ready ones."""
        taken = self._hub.account.taken
        if taken is not None:
            self._hub.record_event(
                BatchReturned(
                    update=taken.update,
                    lineage=taken.lineage,
                    reason=reason,
                    window_ids=[window.window_id for window in taken.windows],
                    value_trajectories=taken.value_trajectories,
                    batch_id=taken.batch_id,
                )
            )

    def restore(self, reason: str) -> Restore:
        """Return the order to load weights that are on the line."""
        return Restore(reason=reason, line=sorted(self._hub.state.line.items()))

    def drop_warmup_windows(self, batch: BatchTaken) -> None:
        """Drop the windows of a warm-up's batch, whose outcomes the critic has trained on."""
        if not batch.windows:
            for drop in self._hub.lifecycle.drop_for_warmup(batch.value_trajectories):
                self._hub.record_event(drop)

    def _commit_unreported(self, batch: BatchTaken) -> None:
        """Commit a batch that the learner's weights hold, but that it never reported."""
        self._hub.record_event(
            UpdateCommitted(
                update=batch.update,
                lineage=batch.lineage,
                version=batch.version,
                train_time_s=self._hub.clock.now(),
                trained_tokens=0,
                window_ids=[window.window_id for window in batch.windows],
                value_trajectories=batch.value_trajectories,
                metrics={},
                diagnostics=[],
                batch_id=batch.batch_id,
            )
        )
        self.drop_warmup_windows(batch)
        self._hub.scheduler.committed(None)

    def _roll_back(self, hello: Hello) -> None:
        """Begin a new lineage at the weights' update: all committed later is ready again."""
        hub, state = self._hub, self._hub.state
        undone = [b for u, b in hub.account.committed.items() if u > hello.update]
        hub.record_event(
            LineageBegan(
                lineage=state.lineage + 1,
                update=hello.update,
                version=state.versions.issued + 1,
                reason=f"learner restored from {hello.resumed_from or 'the starting model'}",
                window_ids=[w.window_id for batch in undone for w in batch.windows],
                value_trajectories=[t for batch in undone for t in batch.value_trajectories],
            )
        )
        hub.scheduler.restart()
