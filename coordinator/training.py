"""Batches out, updates in: the coordinator's side of the learner.

Comes in: the scheduler's selection, UpdateDone, a learner that joins (again). Goes out: Batch,
the records of what was taken and committed, checkpoints. Promises: one batch is out at a time and
is on record before it is sent; versions are issued here and never twice; a learner that was
restored to an earlier update begins a new lineage, and what was committed after that update is
ready again.
"""

import time
from collections import Counter

import msgspec

from coordinator.admission import Admission
from coordinator.batches import prepare
from coordinator.gauges import Gauges
from coordinator.generation import Generation
from coordinator.hub import Hub
from coordinator.peers import Peer
from coordinator.permissions import Orders
from coordinator.shares import DropShares
from coordinator.values import cut
from headrace.protocol.fields import Metric
from headrace.protocol.messages import (
    Batch,
    BatchPart,
    CheckpointDone,
    CheckpointRequest,
    Hello,
    UpdateDone,
    WeightNotice,
    Welcome,
)
from headrace.protocol.records import (
    BatchReturned,
    BatchTaken,
    CheckpointWritten,
    Forgotten,
    LineageBegan,
    UpdateCommitted,
    VersionIssued,
    VersionPublished,
    WindowsDropped,
)
from sequence.trajectories import Trajectory

MANY_BATCHES = 10
"""So many batches of groups filtered in a row are worth a word."""


class Training:
    """The one part of the coordinator that talks with the learner."""

    def __init__(self, hub: Hub, generation: Generation, gauges: Gauges) -> None:
        self._hub = hub
        self._generation = generation
        self._gauges = gauges
        self._batch_metrics: dict[str, Metric] = {}
        self._sent_at = 0.0
        self._admission = Admission(hub.account)
        self._shares = DropShares()
        self.orders = Orders()
        self.ready = False
        """The learner has published its weights and waits for a batch."""

    # -- the learner comes and goes ---------------------------------------------------------------

    async def join(self, hello: Hello, welcome: Welcome) -> None:
        """A learner said Hello: bring the ledger to the update its weights are from."""
        hub, state = self._hub, self._hub.state
        self._commit_unreported(hello)
        self.lose("restarted")
        if hello.update != state.update or (state.update and hello.resumed_from):
            undone = [b for u, b in hub.account.committed.items() if u > hello.update]
            hub.note(
                LineageBegan(
                    at=time.time(),
                    lineage=state.lineage + 1,
                    update=hello.update,
                    version=state.versions.issued + 1,
                    reason=f"learner restored from {hello.resumed_from or 'the starting model'}",
                    window_ids=[w.window_id for batch in undone for w in batch.windows],
                    value_trajectories=[t for batch in undone for t in batch.value_trajectories],
                )
            )
            hub.scheduler.restart()
        self.admit(self._admission.unjudged())
        hub.peers.learner = Peer(hello)
        version = self._issue_version()
        self.orders = Orders(versions={version: hello.update}, newest=hello.update)
        await hub.send(
            hello.name,
            Welcome(
                run_id=welcome.run_id,
                run_dir=welcome.run_dir,
                config=welcome.config,
                publish_as=version,
            ),
        )

    def _commit_unreported(self, hello: Hello) -> None:
        """The learner's weights hold a batch whose UpdateDone never came (it died, or the
        coordinator did, between checkpoint and report): it is trained, and must not be again."""
        state = self._hub.state
        batch = self._hub.account.taken or state.returned
        if batch is None or hello.update != batch.update:
            return
        if self._hub.account.taken is None:
            self._hub.note(batch)
        self._hub.note(
            UpdateCommitted(
                at=time.time(),
                update=batch.update,
                lineage=batch.lineage,
                version=batch.version,
                train_time_s=self._hub.clock.now(),
                trained_tokens=0,
                window_ids=[window.window_id for window in batch.windows],
                value_trajectories=batch.value_trajectories,
                metrics={},
                diagnostics=[],
            )
        )
        self._spend(batch)
        self._hub.scheduler.committed(None)

    def _spend(self, batch: BatchTaken) -> None:
        """What a warm-up's critic has seen the end of is not for the policy any more."""
        if not batch.windows:
            for drop in self._hub.settlement.spend(batch.value_trajectories):
                self._hub.note(drop)

    def lose(self, reason: str) -> None:
        """The learner is gone: the batch it had is ready again."""
        self.ready = False
        self.orders = Orders()
        self._hub.peers.learner = None
        if (taken := self._hub.account.taken) is not None:
            self._hub.note(
                BatchReturned(
                    at=time.time(),
                    update=taken.update,
                    lineage=taken.lineage,
                    reason=reason,
                    window_ids=[window.window_id for window in taken.windows],
                    value_trajectories=taken.value_trajectories,
                )
            )

    def _issue_version(self) -> int:
        version = self._hub.state.versions.issued + 1
        self._hub.note(VersionIssued(at=time.time(), version=version))
        return version

    async def published(self, notice: WeightNotice) -> None:
        """The learner's weights can be had under a version."""
        self.orders.published(notice.version)
        self._hub.note(
            VersionPublished(
                at=time.time(),
                version=notice.version,
                lineage=self._hub.state.lineage,
                update=notice.update,
                num_bytes=notice.num_bytes,
            )
        )
        self._hub.progress()
        await self._generation.publish(notice)
        self.ready = True

    # -- updates ----------------------------------------------------------------------------------

    def admit(self, ended: list[Trajectory]) -> None:
        """Trajectories have their scores, or will never have one: with dynamic sampling, groups
        that teach nothing are dropped."""
        hub = self._hub
        if not hub.rules.mixed_groups:
            return
        for drop in list(self._admission.judge(ended)):
            hub.note(drop)
        schedule = hub.config.schedule
        many = MANY_BATCHES * max(1, schedule.batch_windows // schedule.num_generations)
        if self._admission.in_a_row >= many:
            hub.incident(
                "warning",
                "nothing_admitted",
                f"{self._admission.in_a_row} groups in a row had equal scores and were filtered: "
                "the task is too easy or too hard for this policy (algorithm.admit)",
            )
            self._admission.in_a_row = 0

    def dispatch(self) -> bool:
        """Send the next batch if there is one; True if it was."""
        hub, learner = self._hub, self._hub.peers.learner
        if learner is None or not self.ready or hub.account.taken is not None:
            return False
        self._drop_stale()
        selection = hub.scheduler.next_batch()
        if selection is None:
            return False
        prepared = prepare(
            selection,
            hub.state,
            hub.rules,
            ranks=hub.config.learner.ranks,
            max_bytes=hub.config.transport.part_bytes,
        )
        hub.note(prepared.taken)
        every = hub.config.checkpoint.every_updates
        update = prepared.taken.update
        version = hub.state.versions.current
        batch = Batch(
            update=update,
            lineage=prepared.taken.lineage,
            version=version,
            publish_as=self._issue_version() if prepared.trains_policy else version,
            parts=[len(parts) for parts in prepared.parts],
            value_epochs=selection.value_epochs,
            checkpoint=bool(every and update % every == 0),
        )
        parts = [
            BatchPart(update=update, rank=rank, index=index, shard=shard)
            for rank, shards in enumerate(prepared.parts)
            for index, shard in enumerate(shards)
        ]
        windows = [hub.account.window(item.window_id) for item in prepared.taken.windows]
        self.orders.batch(batch, windows)
        self._batch_metrics = {
            **prepared.metrics,
            **self._gauges.at_dispatch(prepared.taken),
            **self._share_metrics(prepared.taken),
        }
        self._sent_at = time.monotonic()
        hub.clock.learner_waits(False)
        hub.recorder.after(lambda: self._send(learner.hello.name, batch, parts))
        return True

    def _drop_stale(self) -> None:
        """Windows of which every token is too old leave at once, so that others may begin."""
        hub = self._hub
        stale = hub.scheduler.too_stale()
        for window in stale:
            length = hub.account.trajectories[window.trajectory_id].sampled
            left_out = {"stale": window.tokens}
            self._shares.add(window.trajectory_id, length, trained=0, left_out=left_out)
        if stale:
            ids = [window.window_id for window in stale]
            hub.note(WindowsDropped(at=time.time(), window_ids=ids, reason="stale"))

    def _share_metrics(self, taken: BatchTaken) -> dict[str, Metric]:
        """Of what the batch trains and leaves out, and what was dropped since the last one."""
        for item in taken.windows:
            window = self._hub.account.window(item.window_id)
            left_out = Counter[str]()
            for run in item.masked:
                left_out[run.reason] += run.tokens
            self._shares.add(
                window.trajectory_id,
                self._hub.account.trajectories[window.trajectory_id].sampled,
                trained=window.tokens - left_out.total(),
                left_out=left_out,
            )
        judged = self._admission.take() if self._hub.rules.mixed_groups else {}
        return self._shares.take() | judged

    async def _send(self, name: str, batch: Batch, parts: list[BatchPart]) -> None:
        taken = self._hub.account.taken
        if taken is not None and (taken.lineage, taken.update) == (batch.lineage, batch.update):
            await self._hub.send(
                name, msgspec.structs.replace(batch, journal=self._hub.recorder.end)
            )
            for part in parts:
                await self._hub.send(name, part)

    async def done(self, message: UpdateDone) -> None:
        """The update that was out came back."""
        hub = self._hub
        taken = hub.account.taken
        assert taken is not None, "permissions let through an update that nobody waits for"
        self.orders.done()
        metrics = dict(message.metrics) | self._batch_metrics
        metrics["timing_s/round_trip"] = time.monotonic() - self._sent_at
        if message.skipped:
            hub.incident("error", "update_skipped", f"update {message.update}: {message.skipped}")
        record = UpdateCommitted(
            at=time.time(),
            update=message.update,
            lineage=taken.lineage,
            version=taken.version,
            train_time_s=hub.clock.now(),
            trained_tokens=0,
            window_ids=[window.window_id for window in taken.windows],
            value_trajectories=taken.value_trajectories,
            metrics=metrics,
            diagnostics=message.diagnostics,
            skipped=cut(message.skipped),
        )
        # Its metrics hold the ledger as it is after this commit, so they are filled in behind it.
        hub.state.apply(record)
        metrics |= self._gauges.at_commit(metrics)
        trained = hub.account.ledger.accounts["trained_policy"]
        hub.recorder.write(msgspec.structs.replace(record, metrics=metrics, trained_tokens=trained))
        self._spend(taken)
        explained = metrics.get("critic/vf_explained_var")
        hub.scheduler.committed(explained if isinstance(explained, float) else None)
        hub.clock.learner_waits(True)
        hub.progress()
        if message.checkpoint:
            self._checkpointed(message.update, message.checkpoint)
        if message.notice is not None:
            await self.published(message.notice)

    # -- checkpoints ------------------------------------------------------------------------------

    async def request_checkpoint(self) -> None:
        """Ask for a checkpoint of the present weights."""
        learner = self._hub.peers.learner
        if learner is not None:
            update, lineage = self._hub.state.update, self._hub.state.lineage
            self.orders.checkpoint = update
            end = self._hub.recorder.end
            await self._hub.send(
                learner.hello.name,
                CheckpointRequest(update=update, lineage=lineage, journal=end),
            )

    def checkpoint_done(self, message: CheckpointDone) -> None:
        """A checkpoint asked for is complete."""
        self.orders.checkpoint = None
        self._checkpointed(message.update, message.path)

    @property
    def checkpoint_update(self) -> int:
        """The update of the newest checkpoint on this lineage; -1 before the first."""
        return max(self._hub.state.checkpoints, default=-1)

    def _checkpointed(self, update: int, path: str) -> None:
        """A rollback goes back to the oldest checkpoint that is kept, at most."""
        hub = self._hub
        evaluated = [e.accuracy for e in hub.state.evaluations if e.update == update]
        hub.note(
            CheckpointWritten(
                at=time.time(),
                update=update,
                lineage=hub.state.lineage,
                path=path,
                accuracy=evaluated[-1] if evaluated else None,
            )
        )
        kept = sorted(set(hub.state.checkpoints))[-hub.config.checkpoint.keep_last :]
        hub.note(Forgotten(at=time.time(), update=kept[0]))
        hub.progress()
