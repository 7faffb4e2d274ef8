"""The heart of the coordinator: messages in, decisions out.

Comes in: every message of every role. Goes out: leases, batches, acknowledgements, weight
notices. Waits for: a message, or a tenth of a second. Woken by: the socket. What blocks it:
nothing; the disk is written by the recorder's thread. At shutdown: training leases are taken back
with the tokens they have, the learner writes a checkpoint, the ledger is closed, everyone is
told. On failure: the first cause is kept in `Hub.failed`, written down, and everyone is told.
"""

import asyncio
import time
from functools import partial

from coordinator.connections.message_checks import cut
from coordinator.connections.peers import GeneratorPeer, Peer
from coordinator.connections.permissions import (
    Refusal,
    hello_problem,
    learner_refusal,
    loaded_refusal,
    role_refusal,
)
from coordinator.connections.rejections import COMINGS
from coordinator.dispatch.prompts import Prompts
from coordinator.hub import Hub, Mover
from coordinator.monitoring.stall_watch import Waits
from coordinator.monitoring.status import status
from coordinator.parts import build_parts
from coordinator.phases import Phases
from headrace.protocol.messages import control as m
from headrace.protocol.records.record_types import MetricsSampled, ProcessChanged
from headrace.protocol.transport.endpoints import name_of
from headrace.trajectory.trajectories import Trajectory

TICK_S = 0.1
STOOD_STILL_S = 1.0
"""A tick that comes so late means that the process stood still (it was stopped, or the machine was)
and heard nobody."""
_WAITED_S = 0.001
"""A message that takes so long to come was not there when the socket was asked."""
RECORDER = "the journal"
NEWCOMER_S = 60.0
"""How long a Hello under a name that is taken is remembered, and who was asked for one."""
ASK_EVERY_S, MOST_ASKED = 0.5, 1024
"""How often one process is asked for its Hello, and how many are at a time."""
MOST_NEWCOMERS = 1000
MOST_PEERS = 4096
"""Processes that are connected at a time."""
HELLO_AGAIN_S = 1.0
"""Who has been welcomed is not welcomed again within this time for the same Hello: an honest peer
waits longer, and another one would be sent the configuration without end."""
JOINING: dict[str, Mover] = {
    "generator": "generators",
    "reward": "reward workers",
    "learner": "learner",
}


class Coordinator:
    """One run, from the first Hello to the last Goodbye."""

    def __init__(self, hub: Hub, prompts: Prompts) -> None:
        self.hub = hub
        self.parts = build_parts(hub, prompts)
        self.waits = Waits(hub, self.parts)
        self.phases = Phases(hub, self.parts, self.waits)
        self._joined: set[str] = set()
        """Who has ever been here. Who dies and comes back, again and again, moves nothing."""
        self._newcomers: dict[str, float] = {}
        """Who said Hello under a name that another process has, and when first."""
        self._asked: dict[str, float] = {}
        """Who was asked for a Hello, and when last."""
        self._woke_at = self._empty_at = 0.0
        """When this process last went on after it had stood still, and when nothing was left to
        receive."""

    async def run(self) -> None:
        """Serve until the run is over."""
        recorder = asyncio.create_task(self.hub.recorder.run(), name="recorder")
        work = [
            asyncio.create_task(self._tick(), name="tick"),
            asyncio.create_task(self._receive(), name="receive"),
        ]
        self.phases.begin()
        try:
            done, _ = await asyncio.wait([recorder, *work], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in work:
                task.cancel()
            if not recorder.done():
                await self.hub.recorder.flush()
                recorder.cancel()
                await self.waits.end(self.phases.name)

    # -- messages ---------------------------------------------------------------------------------

    async def _receive(self) -> None:
        while self.phases.phase != "closed":
            asked_at = time.monotonic()
            identity, message = await self.hub.router.receive()
            if time.monotonic() - asked_at > _WAITED_S:
                self._empty_at = asked_at
            if await self._dispatch(identity, message):
                await self.phases.advance()
            else:
                await asyncio.sleep(0)  # A flood is received without a pause: let others run.

    async def _dispatch(self, identity: str, message: m.Message) -> bool:
        """Do what a message says; False where it is refused, or nobody knows its sender."""
        hub = self.hub
        if isinstance(message, m.Hello):
            await self._join(identity, message)
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
                await self._ask_hello(identity)
            return False
        peer.last_seen = time.monotonic()
        if refusal := self._refusal(peer, message):
            hub.rejections.add(name, *refusal)
            if isinstance(message, m.UpdateDone):
                await self.parts.training.doubt(message)
            return False
        await self._act(name, peer, message)
        return True

    async def _ask_hello(self, identity: str) -> None:
        """Ask a process that lives for its Hello; now and then, and only so many of them, because
        whoever is asked need not be one that reads."""
        now = time.monotonic()
        before = self._asked.get(identity)
        if len(self._asked) < MOST_ASKED if before is None else now - before >= ASK_EVERY_S:
            self._asked[identity] = now
            await self.hub.router.send(identity, m.AskHello())

    def _refusal(self, peer: Peer, message: m.Message) -> Refusal | None:
        """Whether this peer may say this now."""
        if refusal := role_refusal(message, peer.hello.role):
            return refusal
        match message:
            case m.WeightsLoaded():
                assert isinstance(peer, GeneratorPeer)
                return loaded_refusal(message, peer.noticed)
            case m.UpdateDone() | m.WeightNotice() | m.CheckpointDone():
                return learner_refusal(message, self.parts.training.orders)
        return None

    async def _act(self, name: str, peer: Peer, message: m.Message) -> None:
        hub = self.hub
        match message:
            case m.Heartbeat():
                pass  # Whatever a peer says is a sign of life.
            case m.Progress():
                hub.does(name, message)
            case m.Goodbye():
                self._leave(name, message.failed)
            case m.Chunks():
                message = await self.parts.self_test.receive(name, message)
                ended = await self.parts.intake.receive(name, message)
                for trajectory in ended:
                    self.parts.scoring.add(trajectory)
                self.parts.training.admit(ended)
            case m.GeneratorReport():
                self.parts.generation.report(name, message)
                self.parts.gauges.reported(name, message)
            case m.WeightsLoaded():
                self.parts.generation.loaded(name, message)
                if message.error is not None:
                    self.parts.self_test.not_loaded(name, message.error)
            case m.Scores():
                message = self.parts.self_test.scored(message)
                self._rewarded(self.parts.scoring.receive(name, message))
            case m.WeightNotice():
                await self.parts.training.published(message)
            case m.UpdateDone():
                await self.parts.training.done(message)
            case m.CheckpointDone():
                self.parts.training.checkpoint_done(message)
            case m.Trouble(kind=kind, text=text):
                tell = partial(hub.troubles.wait, name) if message.waits else hub.troubles.tell
                tell(kind, cut(text) or "")
            case m.StatusRequest():
                await hub.send(name, status(hub, self.parts, self.waits, self.phases.name))
            case m.Command():
                self.phases.stop("stopped" if message.action == "stop" else "interrupted")

    def expire(self) -> None:
        """Wait no longer for what has passed its deadline."""
        self._rewarded(self.parts.scoring.expire())

    def _rewarded(self, trajectories: list[Trajectory]) -> None:
        """Rewards have come."""
        for trajectory in trajectories:
            if trajectory.purpose == "train":
                self.parts.gauges.scored(trajectory)
        self.parts.training.admit(trajectories)

    async def _join(self, identity: str, hello: m.Hello) -> None:
        hub, name = self.hub, hello.name
        problem = hello_problem(identity, hello, hub.state.given)
        if problem is None and await self._is_contested(identity, hello):
            return
        known = hub.peers.of(name, identity)
        if known is not None and hello == known.hello and known.welcomed_within(HELLO_AGAIN_S):
            hub.rejections.count("hello_again")
            return
        if known is None and len(hub.peers.identities) >= MOST_PEERS:
            problem = f"{MOST_PEERS} processes are connected, and more are not taken"
        if known is not None and (known.hello.role, known.hello.pid) != (hello.role, hello.pid):
            problem = f"this socket is of process {known.hello.pid}, a {known.hello.role}"
        if problem is not None:
            hub.rejections.add(identity, "hello_refused", problem)
            await hub.router.send(identity, m.Refused(reason=problem))
            return
        hub.let_in(name, identity)
        welcome = m.Welcome(
            run_id=hub.run_id,
            run_dir=hub.run_dir,
            config="" if hello.role == "monitor" else hub.config.public().model_dump_json(),
        )
        match hello.role:
            case "learner":
                await self.parts.training.join(hello, welcome)
            case "generator":
                await hub.send(name, welcome)
                await self.parts.generation.join(hello)
                self.parts.self_test.join(name)
            case "reward":
                await hub.send(name, welcome)
                self.parts.scoring.join(hello)
            case "monitor":
                hub.peers.monitors[name] = Peer(hello)
                await hub.send(name, welcome)
        if (peer := hub.peers.of(name, identity)) is not None:
            peer.welcomed = time.monotonic()
        if known is None:
            self._process_changed(hello, "up", "")
        mover = JOINING.get(hello.role)
        if mover is not None and name not in self._joined:
            self._joined.add(name)
            hub.progress(mover)

    async def _is_contested(self, identity: str, hello: m.Hello) -> bool:
        """Whether another process holds this name (or the learner's place) and may still be alive.
        A holder whose connection is closed is forgotten. A holder that says anything after the
        newcomer's first Hello is alive, and the newcomer's next Hello is refused. Until then the
        newcomer gets no answer."""
        peers = self.hub.peers
        holder = peers.find(hello.name)
        if hello.role == "learner" and peers.learner is not None:
            holder = peers.learner
        if holder is None:
            return False
        name = holder.hello.name
        if peers.identities[name] == identity:
            return False
        if not await self.hub.send(name, m.Heartbeat()):
            self._process_changed(holder.hello, "lost", "its connection is closed")
            self._forget_peer(name)
            return False
        if identity not in self._newcomers and len(self._newcomers) >= MOST_NEWCOMERS:
            self.hub.rejections.count("before_hello")
            return True
        asked_at = self._newcomers.setdefault(identity, time.monotonic())
        if holder.last_seen > asked_at:
            del self._newcomers[identity]
            reason = f"process {holder.hello.pid} on {holder.hello.host} is {name}, and it lives"
            self.hub.rejections.add(identity, "hello_refused", reason)
            await self.hub.router.send(identity, m.Refused(reason=reason))
        return True

    def _leave(self, name: str, failed: str | None) -> None:
        peer = self.hub.peers.find(name)
        assert peer is not None
        role, failed = peer.hello.role, cut(failed)
        self._process_changed(peer.hello, "gone", failed or "")
        self._forget_peer(name, died=False)
        if failed and role in ("reward", "learner"):
            self.hub.failed = self.hub.failed or f"{name}: {failed}"

    def _forget_peer(self, name: str, *, died: bool = True) -> None:
        peers = self.hub.peers
        if name in peers.generators:
            self.parts.generation.lose(name, died=died)
        elif name in peers.rewards:
            self.parts.scoring.lose(name)
        elif name in peers.monitors:
            del peers.monitors[name]
        else:
            self.parts.training.lose()
        self.hub.router.end(peers.identities.pop(name))
        self.hub.troubles.waits.pop(name, None)
        self.hub.doing.pop(name, None)

    def _process_changed(self, hello: m.Hello, state: str, detail: str) -> None:
        if hello.role == "monitor" or not self.hub.repeats.passes("process_changed", COMINGS):
            return
        self.hub.recorder.write(
            ProcessChanged(
                at=time.time(),
                name=hello.name,
                role=hello.role,
                pid=hello.pid,
                host=hello.host,
                state=state,  # type: ignore[arg-type]
                detail=detail,
            )
        )

    def _wake(self, now: float, seconds: float) -> None:
        """This process stood still: nobody was silent, and nobody failed to make progress."""
        self._woke_at = now
        self.hub.peers.excuse(seconds)
        self.hub.progress_at = min(now, self.hub.progress_at + seconds)
        if seconds > self.hub.config.transport.heartbeat_s * 2:
            self.hub.incident(
                "warning", "stood_still", f"the coordinator stood still for {seconds:.1f} s"
            )

    def _has_heard_all(self, now: float) -> bool:
        """Whether what came while this process stood still was received, so that silence means
        something."""
        patience = self.hub.config.transport.heartbeat_timeout_s
        return self._empty_at >= self._woke_at or now - self._woke_at > patience

    def _forget_silent(self) -> None:
        """Give up peers that were not heard for too long."""
        for name in self.hub.peers.silent(self.hub.config.transport.heartbeat_timeout_s):
            peer = self.hub.peers.find(name)
            assert peer is not None
            self._process_changed(peer.hello, "lost", "no heartbeat")
            self._forget_peer(name)

    # -- the clock --------------------------------------------------------------------------------

    def _watch_disk(self) -> None:
        """Say what the recorder waits for, once, and when it goes on."""
        recorder, troubles = self.hub.recorder, self.hub.troubles
        told = troubles.waits.get(RECORDER)
        if recorder.waits_for != (told.text if told else ""):
            troubles.wait(RECORDER, "disk", recorder.waits_for)
        troubles.lag(recorder.behind)

    async def _tick(self) -> None:
        beat = sample = shown = 0.0
        last = time.monotonic()
        hub, transport = self.hub, self.hub.config.transport
        while self.phases.phase != "closed":
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            if now - last > STOOD_STILL_S:
                self._wake(now, now - last)
            last = now
            await self.parts.scoring.spread.measure()
            self._newcomers = {k: at for k, at in self._newcomers.items() if now - at < NEWCOMER_S}
            self._asked = {k: at for k, at in self._asked.items() if now - at < NEWCOMER_S}
            if now - beat >= transport.heartbeat_s:
                beat = now
                self.hub.tell()
                for name, _ in self.hub.peers.everyone():
                    if name in self.hub.peers.generators:
                        await self.parts.generation.roll_call.beat(name)
                    else:
                        await self.hub.send(name, m.Heartbeat())
            if self._has_heard_all(now):
                self._forget_silent()
                await self.parts.intake.expire()
            self._watch_disk()
            if now - shown >= 1.0:
                shown = now
                self.waits.show(self.phases.name)
            if (
                now - sample >= 1.0
                and not hub.recorder.waits_for
                and self.phases.phase in ("training", "evaluating", "draining")
            ):
                sample = now
                self.hub.note(
                    MetricsSampled(
                        at=time.time(),
                        update=self.hub.state.update,
                        metrics=self.parts.gauges.now(
                            self.parts.generation.live(), self.parts.scoring.waiting()
                        ),
                    )
                )
            self.expire()
            self.parts.generation.expire()
            if self.hub.troubles.waits:
                self.hub.progress("disk")  # It is named, and no reason to give up.
            self.waits.watch(now - self.hub.progress_at - transport.stall_timeout_s)
            await self.phases.advance()
