"""The heart of the coordinator: messages in, decisions out.

Comes in: every message of every role. Goes out: leases, batches, acknowledgements, weight
notices. Waits for: a message, or a tenth of a second. Woken by: the socket. What blocks it:
nothing; the disk is written by the recorder's thread. At shutdown: training leases are taken back
with the tokens they have, the learner writes a checkpoint, the ledger is closed, everyone is
told. On failure: the first cause is kept in `Hub.failed`, written down, and everyone is told.
"""

import asyncio
import time

from coordinator.hub import Hub
from coordinator.parts import build_parts
from coordinator.peers import Peer
from coordinator.phases import Phases
from coordinator.prompts import Prompts
from coordinator.status import status, waits
from headrace.protocol import messages as m
from headrace.protocol.records import MetricsSampled, ProcessChanged

TICK_S = 0.1


class Coordinator:
    """One run, from the first Hello to the last Goodbye."""

    def __init__(self, hub: Hub, prompts: Prompts) -> None:
        self.hub = hub
        self.parts = build_parts(hub, prompts)
        self.phases = Phases(hub, self.parts)

    async def run(self) -> None:
        """Until the run is over."""
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

    # -- messages ---------------------------------------------------------------------------------

    async def _receive(self) -> None:
        while self.phases.phase != "closed":
            name, message = await self.hub.router.receive()
            await self._dispatch(name, message)
            await self.phases.advance()

    async def _dispatch(self, name: str, message: m.Message) -> None:
        hub = self.hub
        if peer := hub.peers.find(name):
            peer.last_seen = time.monotonic()
        elif not isinstance(message, m.Hello | m.StatusRequest | m.Command):
            return  # Its Hello is on the way: it hears no heartbeat from us until then.
        match message:
            case m.Hello():
                await self._join(name, message)
            case m.Heartbeat() if peer:
                peer.stats = dict(message.stats)
            case m.Goodbye():
                self._leave(name, message.failed)
            case m.Chunks():
                ended = await self.parts.intake.receive(name, message)
                for trajectory in ended:
                    self.parts.scoring.add(trajectory)
                self.parts.training.admit(ended)
            case m.GeneratorReport():
                self.parts.generation.report(name, message)
            case m.WeightsLoaded():
                self.parts.generation.loaded(name, message)
            case m.Scores():
                scored = self.parts.scoring.receive(name, message)
                for trajectory in scored:
                    if trajectory.purpose == "train":
                        self.parts.gauges.scored(trajectory)
                self.parts.training.admit(scored)
            case m.WeightNotice():
                await self.parts.training.published(message)
            case m.UpdateDone():
                await self.parts.training.done(message)
            case m.CheckpointDone():
                self.parts.training.checkpoint_done(message)
            case m.StatusRequest():
                await hub.send(name, status(hub, self.parts, self.phases.name))
            case m.Command():
                self.phases.stop("stopped" if message.action == "stop" else "interrupted")
            case _:
                hub.incident("warning", "unexpected_message", f"{type(message).__name__} of {name}")

    async def _join(self, name: str, hello: m.Hello) -> None:
        hub = self.hub
        known = hub.peers.find(name)
        if hello.protocol != m.PROTOCOL_VERSION or hello.name != name:
            await hub.send(name, m.Refused(reason=f"this is protocol {m.PROTOCOL_VERSION}"))
            return
        if hello.role == "learner" and known is not None and known.hello.pid == hello.pid:
            return
        welcome = m.Welcome(
            run_id=hub.run_id,
            run_dir=hub.run_dir,
            config="" if hello.role == "monitor" else hub.config.model_dump_json(),
        )
        match hello.role:
            case "learner":
                await self.parts.training.join(hello, welcome)
            case "generator":
                await hub.send(name, welcome)
                await self.parts.generation.join(hello)
            case "reward":
                await hub.send(name, welcome)
                self.parts.scoring.join(hello)
            case "monitor":
                hub.peers.monitors[name] = Peer(hello)
                await hub.send(name, welcome)
        if known is None or known.hello.pid != hello.pid:
            self._process_changed(hello, "up", "")
        hub.progress()

    def _leave(self, name: str, failed: str | None) -> None:
        peer = self.hub.peers.find(name)
        if peer is None:
            return
        role = peer.hello.role
        self._process_changed(peer.hello, "gone", failed or "")
        self._forget_peer(name, failed or "left")
        if failed and role in ("reward", "learner"):
            self.hub.failed = self.hub.failed or f"{name}: {failed}"

    def _forget_peer(self, name: str, reason: str) -> None:
        if name in self.hub.peers.generators:
            self.parts.generation.lose(name)
        elif name in self.hub.peers.rewards:
            self.parts.scoring.lose(name)
        elif name in self.hub.peers.monitors:
            del self.hub.peers.monitors[name]
        else:
            self.parts.training.lose(reason)

    def _process_changed(self, hello: m.Hello, state: str, detail: str) -> None:
        if hello.role == "monitor":
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

    # -- the clock --------------------------------------------------------------------------------

    async def _tick(self) -> None:
        beat = sample = 0.0
        transport = self.hub.config.transport
        while self.phases.phase != "closed":
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            if now - beat >= transport.heartbeat_s:
                beat = now
                for name, _ in self.hub.peers.everyone():
                    await self.hub.send(name, m.Heartbeat())
            for name in self.hub.peers.silent(transport.heartbeat_timeout_s):
                peer = self.hub.peers.find(name)
                assert peer is not None
                self._process_changed(peer.hello, "lost", "no heartbeat")
                self._forget_peer(name, "no heartbeat")
            if now - sample >= 1.0 and self.phases.phase in ("training", "evaluating", "draining"):
                sample = now
                self.hub.recorder.write(
                    MetricsSampled(
                        at=time.time(),
                        update=self.hub.state.update,
                        metrics=self.parts.gauges.now(
                            self.parts.generation.live(), self.parts.scoring.waiting()
                        ),
                    )
                )
            if self.hub.recorder.disk_full:
                self.hub.progress()  # Waiting for room is named, and no reason to give up.
            if now - self.hub.progress_at > transport.stall_timeout_s:
                named = waits(self.hub, self.parts).items()
                stuck = ", ".join(f"{what} for {age:.0f} s" for what, age in named)
                self.hub.failed = self.hub.failed or f"nobody makes progress: {stuck}"
            await self.phases.advance()
