"""Batches out, updates in: the coordinator's side of the learner.

Comes in: the scheduler's selection, UpdateDone, a learner that joins (again). Goes out: Batch,
the records of what was taken and committed, checkpoints. Promises: one batch is out at a time and
is on record before it is sent; versions are issued here and never twice; a learner that was
restored to an earlier update begins a new lineage, and what was committed after that update is
ready again.
"""

import json
import time

import msgspec

from coordinator.admission import Admission
from coordinator.batches import prepare
from coordinator.gauges import Gauges
from coordinator.generation import Generation
from coordinator.hub import Hub
from coordinator.peers import Peer
from coordinator.permissions import Orders
from coordinator.shares import DropShares
from coordinator.trajectories import Trajectory
from coordinator.values import cut
from headrace.protocol.messages import (
    Batch,
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
    LineageBegan,
    TokensDropped,
    UpdateCommitted,
    VersionPublished,
)

MANY_BATCHES = 10
"""So many batches of groups filtered in a row are worth a word."""


class Training:
    """The learner's only partner."""

    def __init__(self, hub: Hub, generation: Generation, gauges: Gauges) -> None:
        self._hub = hub
        self._generation = generation
        self._gauges = gauges
        self._batch_metrics: dict[str, float] = {}
        self._sent_at = 0.0
        self._admission = Admission(hub.state)
        self._shares = DropShares()
        self.orders = Orders()
        self.ready = False
        """The learner has published its weights and waits for a batch."""
        self.checkpoint_update = -1
        self.checkpoints: list[int] = []

    # -- the learner comes and goes ---------------------------------------------------------------

    async def join(self, hello: Hello, welcome: Welcome) -> None:
        """A learner said Hello: bring the ledger to the update its weights are from."""
        hub, state = self._hub, self._hub.state
        self._commit_unreported(hello)
        self.lose("restarted")
        if hello.update != state.update or (state.update and hello.resumed_from):
            hub.note(
                LineageBegan(
                    at=time.time(),
                    lineage=state.lineage + 1,
                    update=hello.update,
                    version=state.issued_version + 1,
                    reason=f"learner restored from {hello.resumed_from or 'the starting model'}",
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
        batch = state.taken or state.returned
        if batch is None or hello.update != batch.update:
            return
        if state.taken is None:
            self._hub.note(batch)
        self._hub.note(
            UpdateCommitted(
                at=time.time(),
                update=batch.update,
                lineage=batch.lineage,
                version=batch.version,
                train_time_s=self._hub.clock.now(),
                trained_tokens=0,
                metrics={},
                diagnostics=[],
            )
        )

    def lose(self, reason: str) -> None:
        """The learner is gone: the batch it had is ready again."""
        state = self._hub.state
        self.ready = False
        self.orders = Orders()
        self._hub.peers.learner = None
        if state.taken is not None:
            self._hub.note(
                BatchReturned(
                    at=time.time(),
                    update=state.taken.update,
                    lineage=state.lineage,
                    reason=reason,
                )
            )

    def _issue_version(self) -> int:
        state = self._hub.state
        state.issued_version += 1
        return state.issued_version

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
        if hub.config.algorithm.admit == "all":
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
        if learner is None or not self.ready or hub.state.taken is not None:
            return False
        for window in hub.scheduler.too_stale():
            hub.note(
                TokensDropped(
                    at=time.time(),
                    trajectory_id=window.trajectory_id,
                    start=window.start,
                    end=window.end,
                    reason="stale",
                    tokens=window.tokens,
                )
            )
            length = hub.state.trajectories[window.trajectory_id].length
            left_out = {"stale": window.tokens}
            self._shares.add(window.trajectory_id, length, trained=0, left_out=left_out)
        selection = hub.scheduler.next_batch()
        if selection is None:
            return False
        prepared = prepare(selection, hub.state, hub.config)
        hub.note(prepared.taken)
        every = hub.config.checkpoint.every_updates
        update = prepared.taken.update
        trains = any(shard.windows for shard in prepared.shards)
        batch = Batch(
            update=update,
            version=hub.state.version,
            publish_as=self._issue_version() if trains else hub.state.version,
            shards=prepared.shards,
            value_epochs=selection.value_epochs,
            checkpoint=bool(every and update % every == 0),
            cut=self.cut(update),
        )
        self.orders.batch(batch, prepared.taken.windows)
        self._batch_metrics = prepared.metrics | self._gauges.at_dispatch(prepared.taken)
        self._batch_metrics |= self._share_metrics(prepared.taken)
        self._sent_at = time.monotonic()
        hub.clock.learner_waits(False)
        hub.recorder.after(lambda: self._send(learner.hello.name, batch))
        return True

    def _share_metrics(self, taken: BatchTaken) -> dict[str, float]:
        """Of what the batch trains and leaves out, and what was dropped since the last one."""
        for window in taken.windows:
            self._shares.add(
                window.trajectory_id,
                self._hub.state.trajectories[window.trajectory_id].length,
                trained=window.trained,
                left_out=window.dropped,
            )
        admits_all = self._hub.config.algorithm.admit == "all"
        return self._shares.take() | ({} if admits_all else self._admission.take())

    async def _send(self, name: str, batch: Batch) -> None:
        taken = self._hub.state.taken
        if taken is not None and taken.update == batch.update:
            await self._hub.send(name, batch)

    def cut(self, update: int) -> str:
        """What the coordinator needs to know to go back to this update."""
        state = self._hub.state
        return json.dumps(
            {
                "update": update,
                "lineage": state.lineage,
                "position": state.position,
                "next_group": state.next_group,
                "next_trajectory": state.next_trajectory,
                "train_time_s": self._hub.clock.now(),
            }
        )

    async def done(self, message: UpdateDone) -> None:
        """The update that was out came back."""
        hub, state = self._hub, self._hub.state
        taken = state.taken
        assert taken is not None, "permissions let through an update that nobody waits for"
        self.orders.done()
        metrics = dict(message.metrics) | self._batch_metrics
        metrics["timing_s/round_trip"] = time.monotonic() - self._sent_at
        if message.skipped:
            hub.incident("error", "update_skipped", f"update {message.update}: {message.skipped}")
        # The ledger's numbers in the record are those after this commit, so apply comes first.
        record = UpdateCommitted(
            at=time.time(),
            update=message.update,
            lineage=taken.lineage,
            version=taken.version,
            train_time_s=hub.clock.now(),
            trained_tokens=0,
            metrics=metrics,
            diagnostics=message.diagnostics,
            skipped=cut(message.skipped),
        )
        state.apply(record)
        drops = self._warmup_drops(taken.value_trajectories) if not taken.windows else []
        for drop in drops:
            state.apply(drop)
        metrics |= self._gauges.at_commit(metrics)
        record = msgspec.structs.replace(
            record, metrics=metrics, trained_tokens=state.ledger.accounts["trained_policy"]
        )
        for item in (record, *drops):
            hub.recorder.write(item)
        hub.scheduler.committed(metrics.get("critic/vf_explained_var"))
        hub.clock.learner_waits(True)
        hub.progress()
        if message.checkpoint:
            self._checkpointed(message.update, message.checkpoint)
        if message.notice is not None:
            await self.published(message.notice)

    def _warmup_drops(self, trajectory_ids: list[int]) -> list[TokensDropped]:
        """Trajectories spent on the value model's warm-up are not trained by the policy."""
        drops: list[TokensDropped] = []
        for trajectory_id in trajectory_ids:
            trajectory = self._hub.state.trajectories[trajectory_id]
            tokens = sum(w.tokens for w in trajectory.windows if w.state == "ready")
            if tokens:
                drops.append(
                    TokensDropped(
                        at=time.time(),
                        trajectory_id=trajectory_id,
                        start=0,
                        end=trajectory.length,
                        reason="value_warmup",
                        tokens=tokens,
                    )
                )
        return drops

    # -- checkpoints ------------------------------------------------------------------------------

    async def request_checkpoint(self) -> None:
        """Ask for a checkpoint of the present weights."""
        learner = self._hub.peers.learner
        if learner is not None:
            update = self._hub.state.update
            self.orders.checkpoint = update
            await self._hub.send(
                learner.hello.name, CheckpointRequest(update=update, cut=self.cut(update))
            )

    def checkpoint_done(self, message: CheckpointDone) -> None:
        """A checkpoint asked for is complete."""
        self.orders.checkpoint = None
        self._checkpointed(message.update, message.path)

    def _checkpointed(self, update: int, path: str) -> None:
        hub = self._hub
        accuracy = hub.state.evaluations[-1].accuracy if hub.state.evaluations else None
        hub.recorder.write(
            CheckpointWritten(
                at=time.time(),
                update=update,
                lineage=hub.state.lineage,
                path=path,
                accuracy=accuracy,
            )
        )
        self.checkpoint_update = update
        self.checkpoints = [*self.checkpoints, update][-hub.config.checkpoint.keep_last :]
        hub.state.forget(self.checkpoints[0])
        hub.progress()
