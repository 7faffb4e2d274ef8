"""Event loop of the coordinator: messages in, decisions out.

In: every message of every role. Out: leases, batches, acknowledgements, weight notices. Waits for:
a message, or a tenth of a second. Blocked by: nothing; the recorder's thread writes the disk. At
shutdown: training leases are taken back with the tokens they have, the learner writes a checkpoint,
the ledger is closed, all processes are notified. On failure: the first cause is kept in
`Hub.failed`, recorded, and all processes are notified.
"""

import asyncio
import time

from coordinator.connections.message_checks import cut
from coordinator.connections.peers import GeneratorPeer, Peer
from coordinator.connections.permissions import Refusal, learner_refusal, role_refusal
from coordinator.dispatch.prompts import Prompts
from coordinator.hub import Hub
from coordinator.membership import Membership
from coordinator.monitoring.stall_watch import StallWatch
from coordinator.monitoring.status import status
from coordinator.parts import build_parts
from coordinator.phases import Phases
from headrace.protocol.messages import control as m
from headrace.protocol.records.record_types import MetricsSampled
from headrace.protocol.transport.endpoints import name_of
from headrace.trajectory.trajectories import Trajectory

TICK_S = 0.1
STOOD_STILL_S = 1.0
"""Delay of a tick that shows a standstill of process or machine, without messages."""
_WAITED_S = 0.001
"""Wait for a message from which on none was there when the socket was asked."""
BEAT_ALL = 4
"""Every such heartbeat goes to all: it says more than that the coordinator lives."""
DENSE_S, SPARSE_EVERY_S = 20_000.0, 10.0
RECORDER = "the journal"


class Coordinator:
    """One run, from the first Hello to the last Goodbye."""

    def __init__(self, hub: Hub, prompts: Prompts) -> None:
        self.hub = hub
        self.parts = build_parts(hub, prompts)
        self.waits = StallWatch(hub, self.parts)
        self.phases = Phases(hub, self.parts, self.waits)
        self.membership = Membership(hub, self.parts)
        self._beats = 0

    async def run(self) -> None:
        """Serve until the run is over."""
        recorder = asyncio.create_task(self.hub.recorder.run(), name="recorder")
        work = [
            asyncio.create_task(self._tick(), name="tick"),
            asyncio.create_task(self._receive(), name="receive"),
        ]
        self.phases.record_start()
        try:
            done, _ = await asyncio.wait([recorder, *work], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in work:
                task.cancel()
            if not recorder.done():
                flush = asyncio.create_task(self.hub.recorder.flush(), name="flush")
                await asyncio.wait([recorder, flush], return_when=asyncio.FIRST_COMPLETED)
                if not recorder.cancel():  # It failed, and no flush ends any more.
                    recorder.result()
                await self.waits.write_last(self.phases.name)

    # -- messages ---------------------------------------------------------------------------------

    async def _receive(self) -> None:
        changed = False
        while self.phases.phase != "closed":
            asked_at = time.monotonic()
            identity, message = await self.hub.router.receive()
            if time.monotonic() - asked_at > _WAITED_S:
                self.membership.empty_at = asked_at
            changed |= await self._dispatch(identity, message)
            if changed and not self.hub.router.has_more():
                changed = False
                await self.phases.advance()

    async def _dispatch(self, identity: str, message: m.Message) -> bool:
        """Act on a message; return whether something may have changed."""
        hub = self.hub
        if isinstance(message, m.Hello):
            if message.role == "learner" and self.phases.phase == "ending":
                return False  # Its next Hello is answered.
            if message.role != "monitor" and self.phases.phase in ("leaving", "closed"):
                await hub.router.send(identity, self.phases.shutdown())
                return False
            await self.membership.join(identity, message)
            return True
        name = name_of(identity) or identity
        peer = hub.peers.of(name, identity)
        if peer is None:
            awaited = hub.peers.learner is None and name.startswith("learner")
            if awaited and isinstance(message, m.Progress):
                hub.does(name, message)
                return False
            hub.rejections.count("before_hello")
            if isinstance(message, m.Heartbeat):
                await self.membership.ask_hello(identity)
            return False
        peer.last_seen = time.monotonic()  # Any message is a sign of life.
        if isinstance(message, m.Heartbeat):
            return False
        if refusal := self._refusal(peer, message):
            hub.rejections.add(name, *refusal)
            if isinstance(message, m.UpdateDone) and peer is hub.peers.learner:
                await self.parts.training.check_unexpected_update(message)
            return False
        await self._act(name, peer, message)
        return True

    def _refusal(self, peer: Peer, message: m.Message) -> Refusal | None:
        """Return the reason why this peer may not send this now, or None."""
        if refusal := role_refusal(message, peer.hello.role):
            return refusal
        match message:
            case m.WeightsLoaded(version=version):
                assert isinstance(peer, GeneratorPeer)
                if version not in peer.noticed:
                    text = f"no notice of weights {version} awaits an answer"
                    return Refusal("not_asked", text)
            case m.UpdateDone() | m.WeightNotice() | m.CheckpointDone():
                return learner_refusal(message, self.parts.training.orders)
        return None

    async def _act(self, name: str, peer: Peer, message: m.Message) -> None:
        hub = self.hub
        match message:
            case m.Progress():
                hub.does(name, message)
            case m.Goodbye():
                self.membership.leave(name, message.failed)
            case m.Chunks():
                message = await self.parts.self_test.receive(name, message)
                ended = await self.parts.intake.receive(name, message)
                if self.parts.episodes is not None:
                    self.parts.episodes.end(ended)
                self._ended(ended)
            case m.GeneratorReport():
                self.parts.generation.report(name, message)
                self.parts.gauges.reported(name, message)
            case m.WeightsLoaded():
                self.parts.generation.loaded(name, message)
                if message.error is not None:
                    self.parts.self_test.not_loaded(name, message.error)
            case m.Scores():
                message = self.parts.self_test.scored(message)
                self._ended(self.parts.scoring.receive(name, message))
            case m.StepReplies():
                assert self.parts.episodes is not None
                self._ended(self.parts.episodes.receive(name, message))
            case m.WeightNotice():
                await self.parts.training.published(message)
            case m.UpdateDone():
                await self.parts.training.commit_update(message)
            case m.CheckpointDone():
                self.parts.training.checkpoint_done(message)
            case m.Trouble(kind=kind, text=text, waits=True):
                hub.troubles.set_wait(name, kind, cut(text) or "")
            case m.Trouble(kind=kind, text=text):
                hub.troubles.report(kind, cut(text) or "")
            case m.StatusRequest():
                await hub.send(name, status(hub, self.parts, self.waits, self.phases.name))
            case m.Command():
                self.phases.stop("stopped" if message.action == "stop" else "interrupted")

    def _ended(self, trajectories: list[Trajectory]) -> None:
        """Pass on ended trajectories, which wait for their reward or have it."""
        for trajectory in trajectories:
            if trajectory.reward_status is None:
                self.parts.scoring.add(trajectory)
            elif trajectory.purpose == "train":
                self.parts.gauges.scored(trajectory)
        self.parts.training.admit(trajectories)

    # -- the clock --------------------------------------------------------------------------------

    def _watch_disk(self) -> None:
        """Report once what the recorder waits for, and when it goes on."""
        recorder, troubles = self.hub.recorder, self.hub.troubles
        told = troubles.waits.get(RECORDER)
        if recorder.waits_for != (told.text if told else ""):
            troubles.set_wait(RECORDER, "disk", recorder.waits_for)
        troubles.set_lag(recorder.store.behind)

    async def _tick(self) -> None:
        hub, parts, last = self.hub, self.parts, time.monotonic()
        transport = hub.config.transport
        beat, sample, show = map(IntervalTimer, (transport.heartbeat_s, 1.0, 1.0))
        while self.phases.phase != "closed":
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            if now - last > STOOD_STILL_S:
                self.membership.stood_still(now, now - last)
            last = now
            await parts.scoring.spread.measure()
            if beat.is_due(now):
                await self._beat()
            if self.membership.expire(now):
                await parts.intake.expire()
            self._watch_disk()
            if show.is_due(now):
                self.waits.show(self.phases.name)
            works = self.phases.phase in ("training", "evaluating", "draining")
            sample.seconds = sampling_interval(hub.clock.now())
            if works and not hub.recorder.waits_for and sample.is_due(now):
                metrics = parts.gauges.now(hub.leases.live(), parts.scoring.waiting())
                hub.record_event(MetricsSampled(update=hub.state.update, metrics=metrics))
            self._ended(parts.scoring.expire())  # Lines whose deadline has passed.
            parts.generation.expire()
            if hub.troubles.waits:
                hub.progress("disk")  # It is named, and no reason to give up.
            self.waits.watch(now - hub.progress_at - transport.stall_timeout_s)
            await self.phases.advance()

    async def _beat(self) -> None:
        """Send a sign of life to everyone who got nothing else; now and then to all."""
        self.hub.write_summaries()
        self._beats += 1
        for name, _ in self.hub.peers.everyone():
            if name in self.hub.told and self._beats % BEAT_ALL:
                continue
            if name in self.hub.peers.generators:
                await self.parts.generation.reconciliation.beat(name)
            else:
                await self.hub.send(name, m.Heartbeat())
        self.hub.told.clear()


class IntervalTimer:
    """A timer that is due every `seconds`, the first time at once."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self._last = seconds, float("-inf")

    def is_due(self, now: float) -> bool:
        """Return whether the timer is due, and restart it if so."""
        if due := now - self._last >= self.seconds:
            self._last = now
        return due


def sampling_interval(trained_s: float) -> float:
    """Seconds between two records of the gauges after so much training: longer in a long run.

    A chart reads all of them, and in a week of seconds they would be most of SQL."""
    return min(max(1.0, trained_s / DENSE_S), SPARSE_EVERY_S)
