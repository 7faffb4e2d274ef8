"""Batches out, updates in: the coordinator's side of the learner.

In: the scheduler's selection, UpdateDone, a learner that joins (again) with the update and the
batch of its weights. Out: Batch, the records of taken and committed batches and of a lineage that
begins, checkpoints, the order to load other weights. Promises: at most one batch is in flight, and
it is on record before it is sent; batch ids and version numbers are never used twice; a batch stays
in flight until a learner says whether its weights hold it, and is then either committed or
returned, never both; a learner whose weights are not a place on the surviving line is never kept.
"""

import secrets
import time

import msgspec
import numpy as np

from coordinator.connections.message_checks import cut
from coordinator.connections.peers import Peer
from coordinator.connections.permissions import OutstandingRequests
from coordinator.dispatch.mixture import asked_shares
from coordinator.hub import Hub
from coordinator.rollouts.generation import Generation
from coordinator.scheduling.group_filter import GroupFilter
from coordinator.training.batches import prepare
from coordinator.training.gauges import Gauges
from headrace.protocol.fields import Metric
from headrace.protocol.messages import control as m
from headrace.protocol.messages.diagnostics import TokenDiagnostics
from headrace.protocol.records import record_types as r
from headrace.trajectory.trajectories import Trajectory
from headrace.trajectory.windows import Window

_BATCH_ID_BITS = 52
"""Bits of a random batch id, which never repeats, even if a journal lost its end."""
MANY_BATCHES = 10
"""Number of consecutively filtered batches of groups that raises a notice."""
DECILES = 10


class LearnerUpdates:
    """Messages to and from the learner, and their records."""

    def __init__(self, hub: Hub, generation: Generation, gauges: Gauges) -> None:
        self._hub = hub
        self._generation = generation
        self._gauges = gauges
        self._batch_metrics: dict[str, Metric] = {}
        self._sent_at = 0.0
        self.line = Lineage(hub)
        self._filter = GroupFilter(hub.account)
        self._shares = DropRatesByLength()
        self.orders = OutstandingRequests()
        self.ready = False
        """True once the learner has published its weights and waits for a batch."""

    # -- the learner comes and goes ---------------------------------------------------------------

    async def join(self, hello: m.Hello, welcome: m.Welcome) -> None:
        """Take in a learner that says Hello (again); align its weights with the ledger."""
        hub = self._hub
        self.forget_learner()
        problem = self.line.align(hello)
        self.admit(self._filter.unjudged())
        if problem is not None:
            await self._bring_back(hello.name, problem)
            return
        if hub.scheduler.selector.is_behind():
            self._generation.hold_all()
        hub.peers.learner = Peer(hello)
        version = self._issue_version()
        given = {version: hello.update}
        self.orders = OutstandingRequests(versions=given, newest=hello.update, follows=version)
        welcome = msgspec.structs.replace(
            welcome, publish_as=version, lineage=hub.state.lineage, greeting=hello.greeting
        )
        await hub.send(hello.name, welcome)

    def forget_learner(self) -> None:
        """Forget a learner that is gone; its batch is in flight until the next Hello."""
        self.ready = False
        self.orders = OutstandingRequests(follows=self.orders.follows)
        self._hub.clock.learner_waits(False)
        self._hub.peers.learner = None

    async def check_unexpected_update(self, message: m.UpdateDone) -> None:
        """Bring back a learner that trained a batch neither in flight nor committed."""
        hub = self._hub
        committed = hub.state.line.get(hub.state.committed)
        learner = hub.peers.learner
        ours = self.orders.batch and self.orders.batch.batch_id
        if learner is not None and message.batch_id not in (ours, committed):
            name = learner.hello.name
            self.forget_learner()
            await self._bring_back(
                name, f"it trained batch {message.batch_id}, which it did not have at that time"
            )

    async def _bring_back(self, name: str, problem: str) -> None:
        self.line.return_batch("the learner has to go back")
        self._hub.incident("warning", "learner_brought_back", f"{name}: {problem}")
        line = sorted(self._hub.state.line.items())
        await self._hub.send(name, m.Restore(reason=problem, line=line))

    def _issue_version(self) -> int:
        version = self._hub.state.versions.issued + 1
        self._hub.record_event(r.VersionIssued(version=version))
        return version

    async def published(self, notice: m.WeightNotice) -> None:
        """Record and announce a version that the learner has published."""
        self.orders.published(notice.version)
        self._hub.record_event(
            r.VersionPublished(
                version=notice.version,
                lineage=self._hub.state.lineage,
                update=notice.update,
                num_bytes=notice.num_bytes,
                ranker=notice.ranker.named if notice.ranker else None,
            )
        )
        self._hub.rankers.published(notice.ranker)
        self._hub.progress("learner")
        self._generation.publish(notice)
        self.ready = True
        self._hub.clock.learner_waits(self._hub.account.taken is None)

    # -- updates ----------------------------------------------------------------------------------

    def admit(self, ended: list[Trajectory]) -> None:
        """Drop groups of these ended trajectories that teach nothing (dynamic sampling)."""
        hub = self._hub
        if hub.config.algorithm.admit == "all":
            return
        for drop in self._filter.judge(ended, warming=hub.scheduler.warming):
            hub.record_event(drop)
        schedule = hub.config.schedule
        many = MANY_BATCHES * max(1, schedule.batch_windows // schedule.num_generations)
        if self._filter.in_a_row >= many:
            text = (
                f"{self._filter.in_a_row} groups in a row had equal scores: "
                "the task is too easy or too hard for this policy (algorithm.admit)"
            )
            hub.incident("warning", "nothing_admitted", text)
            self._filter.in_a_row = 0
            # Without an update no checkpoint comes, and dropped answers would fill the memory.
            hub.record_event(r.Forgotten(update=min(hub.state.line)))

    def dispatch(self) -> None:
        """Send the next batch, if there is one."""
        hub, learner = self._hub, self._hub.peers.learner
        if learner is None or not self.ready or hub.account.taken is not None:
            return
        self._drop_stale()
        selection = hub.scheduler.next_batch()
        if selection is None:
            return
        batch_id = secrets.randbits(_BATCH_ID_BITS)
        prepared = prepare(
            selection,
            hub.state,
            hub.rules,
            ranks=hub.config.learner.ranks,
            max_bytes=hub.config.transport.part_bytes,
            batch_id=batch_id,
        )
        hub.record_event(prepared.taken)
        every = hub.config.checkpoint.every_updates
        update = prepared.taken.update
        version = hub.state.versions.current
        batch = m.Batch(
            batch_id=batch_id,
            update=update,
            lineage=prepared.taken.lineage,
            version=version,
            publish_as=self._issue_version() if prepared.trains_policy else version,
            parts=[len(parts) for parts in prepared.parts],
            value_epochs=hub.config.value_epochs(warms_up=not selection.windows),
            checkpoint=bool(every and update % every == 0),
        )
        parts = [
            m.BatchPart(batch_id=batch_id, rank=rank, index=index, shard=shard)
            for rank, shards in enumerate(prepared.parts)
            for index, shard in enumerate(shards)
        ]
        windows = [hub.account.window(item.window_id) for item in prepared.taken.windows]
        self.orders.batch_sent(batch, windows)
        self._batch_metrics = {
            **prepared.metrics,
            **self._gauges.at_dispatch(prepared.taken),
            **self._share_metrics(windows),
        }
        self._sent_at = time.monotonic()
        hub.clock.learner_waits(False)
        hub.recorder.after(lambda: self._send(learner.hello.name, batch, parts))

    def _drop_stale(self) -> None:
        """Drop windows whose tokens are all too old at once, so that others may begin."""
        stale = self._hub.scheduler.selector.too_stale()
        if stale:
            ids = [window.window_id for window in stale]
            self._hub.record_event(r.WindowsDropped(window_ids=ids, reason="stale"))
        self._add_shares(stale)

    def _share_metrics(self, windows: list[Window]) -> dict[str, Metric]:
        """Return metrics of tokens that the batch trains or leaves out, and of drops."""
        self._add_shares(windows)
        chooses = self._hub.config.algorithm.admit != "all"
        return self._shares.pop_metrics() | (self._filter.pop_metrics() if chooses else {})

    def _add_shares(self, windows: list[Window]) -> None:
        for window in windows:
            self._shares.add(window, self._hub.account.trajectories[window.trajectory_id].sampled)

    async def _send(self, name: str, batch: m.Batch, parts: list[m.BatchPart]) -> None:
        taken = self._hub.account.taken
        if taken is not None and taken.batch_id == batch.batch_id and self.orders.batch is batch:
            await self._hub.send(
                name, msgspec.structs.replace(batch, journal=self._hub.recorder.end)
            )
            for part in parts:
                await self._hub.send(name, part)

    async def commit_update(self, message: m.UpdateDone) -> None:
        """Commit the update in flight, which the learner has done."""
        hub = self._hub
        taken = hub.account.taken
        assert taken is not None, "permissions let through an update that nobody waits for"
        self.orders.batch_answered(message.follows, message.checkpoint)
        metrics = dict(message.metrics) | self._batch_metrics
        metrics["timing_s/round_trip"] = time.monotonic() - self._sent_at
        metrics |= asked_shares(hub.config.task, hub.state.mixture, hub.state.committed)
        record = self.line.commit(taken, message.skipped, metrics, message.diagnostics)
        # Its metrics hold the ledger as it is after this commit, so they are filled in behind it.
        metrics |= self._gauges.at_commit(metrics)
        hub.recorder.write(msgspec.structs.replace(record, metrics=metrics))
        self.line.drop_warmup_windows(taken)
        explained = metrics.get("critic/vf_explained_var")
        hub.scheduler.committed(explained if isinstance(explained, float) else None)
        hub.clock.learner_waits(True)
        hub.progress("learner")
        if message.checkpoint:
            self._checkpointed(message.update, message.checkpoint)
        if message.notice is not None:
            await self.published(message.notice)

    # -- checkpoints ------------------------------------------------------------------------------

    async def request_checkpoint(self) -> None:
        """Request a checkpoint of the present weights."""
        learner = self._hub.peers.learner
        if learner is not None:
            update, end = self._hub.state.committed, self._hub.recorder.end
            self.orders.checkpoints.add(update)
            lineage = self._hub.state.lineage
            request = m.CheckpointRequest(update=update, lineage=lineage, journal=end)
            await self._hub.send(learner.hello.name, request)

    def checkpoint_done(self, message: m.CheckpointDone) -> None:
        """Record a requested checkpoint that is complete."""
        self.orders.checkpoints.discard(message.update)
        self._checkpointed(message.update, message.path)

    @property
    def checkpoint_update(self) -> int:
        """The update of the newest checkpoint on this lineage; -1 before the first."""
        return max(self._hub.state.checkpoints, default=-1)

    def _checkpointed(self, update: int, path: str) -> None:
        """Record a checkpoint, and forget all before the oldest one that is kept."""
        hub = self._hub
        # Of weights that a rollback undid, an evaluation may have the same update.
        place = (update, hub.state.versions.current)
        evaluated = [e.accuracy for e in hub.state.evaluations if (e.update, e.version) == place]
        hub.record_event(
            r.CheckpointWritten(
                update=update,
                lineage=hub.state.lineage,
                path=path,
                accuracy=evaluated[-1] if evaluated else None,
            )
        )
        kept = sorted(set(hub.state.checkpoints))[-hub.config.checkpoint.keep_last :]
        hub.record_event(r.Forgotten(update=kept[0]))
        hub.progress("learner")


class DropRatesByLength:
    """Shares of tokens left out of training, by the length of their response.

    They show whether age limits drop long responses more often than short ones. Counts since the
    last update, for each tenth of the responses, shortest first. Filtered groups and tokens spent
    on a warm-up do not count: their length is not why they are left out.
    """

    def __init__(self) -> None:
        self._rows: dict[int, list[int]] = {}
        """Length, and tokens trained, stale and left out otherwise, by trajectory."""

    def add(self, window: Window, length: int) -> None:
        """Add a window that a batch has, or that is dropped, of a response with `length` tokens."""
        left_out = window.dropped()
        stale, whole = left_out.get("stale", 0), sum(left_out.values())
        row = self._rows.setdefault(window.trajectory_id, [0, 0, 0, 0])
        row[0] = max(row[0], length)
        for column, new in enumerate((window.tokens - whole, stale, whole - stale), 1):
            row[column] += new

    def pop_metrics(self) -> dict[str, list[float | None]]:
        """Return metrics of all added windows, and reset; None for a tenth without tokens."""
        drops: list[float | None] = [None] * DECILES
        masks, sizes = drops.copy(), drops.copy()
        rows = sorted((length, key, *tokens) for key, (length, *tokens) in self._rows.items())
        self._rows = {}
        table = np.array(rows, np.int64).reshape(-1, 5)
        for decile, part in enumerate(np.array_split(table, DECILES)):
            length, _, trained, stale, masked = part.sum(axis=0).tolist()
            if tokens := trained + stale + masked:
                drops[decile] = stale / tokens
                masks[decile] = masked / tokens
                sizes[decile] = length / len(part)
        named = {
            "staleness/drop_share": drops,
            "staleness/mask_share": masks,
            "staleness/length": sizes,
        }
        return named if any(size is not None for size in sizes) else {}


class Lineage:
    """Surviving line of updates, and its alignment with a learner's weights."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def align(self, hello: m.Hello) -> str | None:
        """Bring the ledger to a joining learner's weights; return why not, or None."""
        hub, state = self._hub, self._hub.state
        taken = hub.account.taken
        if taken is not None and (hello.update, hello.batch_id) == (taken.update, taken.batch_id):
            # The learner's weights hold it, and it was never reported.
            hub.recorder.write(self.commit(taken, hello.skipped, {}, []))
            self.drop_warmup_windows(taken)
            hub.scheduler.committed(None)
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
                r.BatchReturned(
                    update=taken.update,
                    lineage=taken.lineage,
                    reason=reason,
                    window_ids=[window.window_id for window in taken.windows],
                    value_trajectories=taken.value_trajectories,
                    batch_id=taken.batch_id,
                )
            )

    def drop_warmup_windows(self, batch: r.BatchTaken) -> None:
        """Drop the windows of a warm-up's batch, whose outcomes the critic has trained on."""
        if not batch.windows:
            for drop in self._hub.lifecycle.drop_for_warmup(batch.value_trajectories):
                self._hub.record_event(drop)

    def commit(
        self,
        batch: r.BatchTaken,
        skipped: str | None,
        metrics: dict[str, Metric],
        diagnostics: list[TokenDiagnostics],
    ) -> r.UpdateCommitted:
        """Apply the commit of a batch, and return its record with the tokens trained by then.

        `skipped`: why the learner broke its update off, which is reported."""
        if skipped:
            self._hub.incident("error", "update_skipped", f"update {batch.update}: {skipped}")
        record = r.UpdateCommitted(
            update=batch.update,
            lineage=batch.lineage,
            version=batch.version,
            train_time_s=self._hub.clock.now(),
            trained_tokens=0,
            window_ids=[window.window_id for window in batch.windows],
            value_trajectories=batch.value_trajectories,
            metrics=metrics,
            diagnostics=diagnostics,
            skipped=cut(skipped),
            batch_id=batch.batch_id,
        )
        self._hub.state.apply(record)
        trained = self._hub.account.ledger.accounts["trained_policy"]
        return msgspec.structs.replace(record, trained_tokens=trained)

    def _roll_back(self, hello: m.Hello) -> None:
        """Begin a new lineage at the weights' update: all committed later is ready again."""
        hub, state = self._hub, self._hub.state
        undone = [b for u, b in hub.account.committed.items() if u > hello.update]
        hub.record_event(
            r.LineageBegan(
                lineage=state.lineage + 1,
                update=hello.update,
                version=state.versions.issued + 1,
                reason=f"learner restored from {hello.resumed_from or 'the starting model'}",
                window_ids=[w.window_id for batch in undone for w in batch.windows],
                value_trajectories=[t for batch in undone for t in batch.value_trajectories],
            )
        )
        hub.scheduler.restart()
