"""The heart of the coordinator: messages in, decisions out.

Comes in: every message of every role. Goes out: leases, batches, acknowledgements, weight
notices. Waits for: a message, or a tenth of a second. Woken by: the socket. What blocks it:
nothing; the disk is written by the recorder's thread. At shutdown: training leases are taken back
with the tokens they have, the learner writes a checkpoint, the ledger is closed, everyone is
told. On failure: the first cause is kept in `Hub.failed`, written down, and everyone is told.

Phases: starting, evaluating, training, draining (towards an evaluation or the end), closing.
"""

import asyncio
import logging
import time
from typing import Literal

from coordinator.evaluation import Evaluation, Label
from coordinator.gauges import Gauges
from coordinator.generation import Generation
from coordinator.hub import Hub
from coordinator.intake import Intake
from coordinator.peers import Peer
from coordinator.prompts import Prompts
from coordinator.scoring import Scoring
from coordinator.training import Training
from headrace.protocol import messages as m
from headrace.protocol.records import MetricsSampled, ProcessChanged, RunPhase, TokensDropped

log = logging.getLogger(__name__)
TICK_S = 0.1
GOODBYE_S = 20.0
Phase = Literal["starting", "evaluating", "training", "draining", "closing", "closed"]


class Coordinator:
    """One run, from the first Hello to the last Goodbye."""

    def __init__(self, hub: Hub, prompts: Prompts) -> None:
        self.hub = hub
        self.gauges = Gauges(hub)
        self.intake = Intake(hub)
        self.scoring = Scoring(hub, prompts)
        self.generation = Generation(hub, prompts)
        self.training = Training(hub, self.generation, self.gauges)
        self.evaluation = Evaluation(hub, prompts, self.generation)
        self.prompts = prompts
        self.phase: Phase = "starting"
        self.outcome = "finished"
        self._next_label: Label | None = None
        self._stopping = False
        self._evaluated_at = 0
        self._checkpoint_asked = False
        self._skips_told = 0

    async def run(self) -> None:
        """Until the run is over."""
        tasks = [
            asyncio.create_task(self.hub.recorder.run(), name="recorder"),
            asyncio.create_task(self._tick(), name="tick"),
            asyncio.create_task(self._receive(), name="receive"),
        ]
        self._enter("starting")
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks[1:]:
                task.cancel()
            await self.hub.recorder.flush() if not tasks[0].done() else None
            tasks[0].cancel()

    def stop(self, outcome: str) -> None:
        """Drain, checkpoint, end (Ctrl-C, `headrace stop`)."""
        if not self._stopping:
            self._stopping, self.outcome = True, outcome

    # -- messages ---------------------------------------------------------------------------------

    async def _receive(self) -> None:
        while self.phase != "closed":
            name, message = await self.hub.router.receive()
            await self._dispatch(name, message)
            await self._advance()

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
                for trajectory in await self.intake.receive(name, message):
                    self.scoring.add(trajectory)
            case m.GeneratorReport():
                self.generation.report(name, message)
            case m.WeightsLoaded():
                self.generation.loaded(name, message)
            case m.Scores():
                for trajectory in self.scoring.receive(name, message):
                    if trajectory.purpose == "train":
                        self.gauges.scored(trajectory)
            case m.WeightNotice():
                await self.training.published(message)
            case m.UpdateDone():
                await self.training.done(message)
            case m.CheckpointDone():
                self.training.checkpoint_done(message)
            case m.StatusRequest():
                await hub.send(name, self._status())
            case m.Command():
                self.stop("stopped")
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
                await self.training.join(hello, welcome)
            case "generator":
                await hub.send(name, welcome)
                await self.generation.join(hello)
            case "reward":
                await hub.send(name, welcome)
                self.scoring.join(hello)
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
            self.generation.lose(name)
        elif name in self.hub.peers.rewards:
            self.scoring.lose(name)
        elif name in self.hub.peers.monitors:
            del self.hub.peers.monitors[name]
        else:
            self.training.lose(reason)

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
        while self.phase != "closed":
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
            if now - sample >= 1.0 and self.phase in ("training", "evaluating", "draining"):
                sample = now
                self.hub.recorder.write(
                    MetricsSampled(
                        at=time.time(),
                        update=self.hub.state.update,
                        metrics=self.gauges.now(self.generation.live(), self.scoring.waiting()),
                    )
                )
            if now - self.hub.progress_at > transport.stall_timeout_s:
                waits = ", ".join(f"{what} for {s:.0f} s" for what, s in self.waits().items())
                self.hub.failed = self.hub.failed or f"nobody makes progress: {waits}"
            await self._advance()

    def waits(self) -> dict[str, float]:
        """What is waited for, in words, and for how long."""
        hub, peers = self.hub, self.hub.peers
        waits: list[str] = []
        if not peers.generators:
            waits.append("a generator to join")
        elif hub.state.version >= 0 and not self.generation.all_loaded():
            waits.append(f"generators to load version {hub.state.version}")
        if not peers.rewards:
            waits.append("a reward worker to join")
        if peers.learner is None:
            waits.append("the learner to join")
        elif not self.training.ready:
            waits.append("the learner to publish its weights")
        elif hub.state.taken:
            waits.append(f"the learner's update {hub.state.taken.update}")
        if hub.recorder.disk_full:
            waits.append("room on the disk")
        if self.scoring.waiting():
            waits.append(f"{self.scoring.waiting()} rewards")
        if self.generation.live():
            waits.append(f"{self.generation.live()} trajectories to go on")
        age = time.monotonic() - hub.progress_at
        return dict.fromkeys(waits, age)

    # -- phases -----------------------------------------------------------------------------------

    def _enter(self, phase: Phase, detail: str = "") -> None:
        self.phase = phase
        if phase == "training":
            self.hub.clock.start()
            self.gauges.mark_training()
            self.generation.draining = False
            self.hub.clock.learner_waits(self.hub.state.taken is None)
        elif phase in ("evaluating", "closing"):
            self.hub.clock.stop()
        self.hub.recorder.write(RunPhase(at=time.time(), phase=phase, detail=detail))
        self.hub.progress()
        log.info("phase %s %s", phase, detail)

    async def _advance(self) -> None:
        """Do whatever can be done now."""
        hub = self.hub
        if hub.failed and self.phase not in ("closing", "closed"):
            self.outcome = "failed"
            hub.incident("error", "run_failed", hub.failed)
            self._enter("closing", hub.failed)
            await self._close(checkpoint=False)
            return
        await self.scoring.dispatch()
        match self.phase:
            case "starting":
                if self._stopping:
                    await self._finish()
                elif self._everyone_here():
                    self._after_start()
            case "evaluating":
                await self._advance_evaluation()
            case "training":
                await self._advance_training()
            case "draining":
                if await self._quiet():
                    await self._after_drain()
            case "closing":
                await self._advance_closing()
            case _:
                pass

    def _everyone_here(self) -> bool:
        learner = self.training.ready or self.hub.config.evaluation.only
        return learner and self.generation.all_loaded() and bool(self.hub.peers.rewards)

    def _after_start(self) -> None:
        evaluated = any(e.label == "before" for e in self.hub.state.evaluations)
        if self.hub.config.evaluation.before and not evaluated:
            self._evaluate("before")
        else:
            self._enter("training")

    def _evaluate(self, label: Label) -> None:
        self._enter("evaluating", label)
        self._next_label = label
        self.evaluation.begin(label)

    async def _advance_evaluation(self) -> None:
        if self._stopping and self.outcome != "finished":
            await self._finish()
            return
        result = await self.evaluation.advance()
        if result is None:
            return
        self._evaluated_at = self.hub.state.update
        if self._next_label == "after" or self.hub.config.evaluation.only:
            await self._finish()
        elif self._stop_reason():
            self._drain()
        else:
            self._enter("training")

    async def _advance_training(self) -> None:
        if self._stopping or self._stop_reason() or self._evaluation_due():
            self._drain()
            return
        await self.generation.lease_training()
        self.training.dispatch()
        if self.prompts.skipped > self._skips_told:
            self._skips_told = self.prompts.skipped
            self.hub.incident(
                "warning",
                "prompt_too_long",
                f"{self.prompts.skipped} prompts over task.max_prompt_length were skipped so far",
            )

    def _drain(self) -> None:
        self.generation.draining = True
        self._enter("draining", self._stop_reason() or ("stop" if self._stopping else "evaluation"))

    async def _quiet(self) -> bool:
        """No lease and no batch out, the newest weights loaded everywhere, every reward in."""
        await self.generation.hold_all()
        busy = self.hub.state.taken or self.generation.live() or self.scoring.waiting()
        if self._stopping and self.outcome != "finished":
            return not (self.hub.state.taken or self.generation.live())
        return not busy and self.generation.all_loaded()

    async def _after_drain(self) -> None:
        stopped = self._stopping and self.outcome != "finished"
        if stopped:
            await self._finish()
        elif self._evaluation_due():
            self._evaluate("during")
        elif self._stop_reason() and self.hub.config.evaluation.after:
            self._evaluate("after")
        elif self._stop_reason():
            await self._finish()
        else:
            self._enter("training")

    def _evaluation_due(self) -> bool:
        every, update = self.hub.config.evaluation.every_updates, self.hub.state.update
        if self.hub.state.taken is not None:
            update -= 1
        due = every is not None and update > 0 and update % every == 0
        return due and update != self._evaluated_at and not self._stop_reason()

    def _stop_reason(self) -> str | None:
        stop, state = self.hub.config.stop, self.hub.state
        committed = state.update - (state.taken is not None)
        if stop.updates is not None and committed >= stop.updates:
            return f"{committed} updates"
        if stop.train_time_s is not None and self.hub.clock.now() >= stop.train_time_s:
            return f"{stop.train_time_s:g} s of training"
        if stop.tokens is not None and state.ledger.accounts["trained_policy"] >= stop.tokens:
            return f"{stop.tokens} tokens trained"
        last = [e.accuracy for e in state.evaluations if e.label == "during"][-2:]
        if stop.accuracy is not None and len(last) == 2 and min(last) >= stop.accuracy:
            return f"accuracy {last[-1]:.3f} twice"
        return None

    # -- the end ----------------------------------------------------------------------------------

    async def _finish(self) -> None:
        self._enter("closing", self.outcome)
        wanted = self.training.ready and self.training.checkpoint_update != self.hub.state.update
        if wanted and self.hub.state.update > 0:
            self._checkpoint_asked = True
            self._closing_since = time.monotonic()
            await self.training.request_checkpoint()
        else:
            await self._close(checkpoint=False)

    async def _advance_closing(self) -> None:
        if not self._checkpoint_asked:
            return
        if self.training.checkpoint_update == self.hub.state.update:
            self._checkpoint_asked = False
            await self._close(checkpoint=True)
        elif self.hub.peers.learner is None:
            self._checkpoint_asked = False
            self.hub.incident("error", "no_checkpoint", "the learner was gone before the last one")
            await self._close(checkpoint=False)

    async def _close(self, *, checkpoint: bool) -> None:
        hub = self.hub
        if self.outcome == "finished":
            self._discard()
        metrics = self.gauges.now(0, 0)
        hub.recorder.write(MetricsSampled(at=time.time(), update=hub.state.update, metrics=metrics))
        hub.recorder.write(RunPhase(at=time.time(), phase=self.outcome, detail=hub.failed or ""))
        await hub.recorder.flush()
        for name in list(hub.peers.monitors):
            await hub.send(name, self._status())
        await hub.broadcast(m.Shutdown(reason=hub.failed or self.outcome))
        self.phase = "closed"

    def _discard(self) -> None:
        """What no update will train any more leaves the ledger under its own name."""
        state = self.hub.state
        for trajectory in list(state.trajectories.values()):
            if trajectory.purpose != "train":
                continue
            left = sum(w.tokens for w in trajectory.windows if w.state in ("waiting", "ready"))
            left += trajectory.length - trajectory.open_start
            if left:
                self.hub.note(
                    TokensDropped(
                        at=time.time(),
                        trajectory_id=trajectory.trajectory_id,
                        start=0,
                        end=trajectory.length,
                        reason="discarded_at_end",
                        tokens=left,
                    )
                )

    # -- telling ----------------------------------------------------------------------------------

    def _status(self) -> m.Status:
        hub, state = self.hub, self.hub.state
        ledger = state.ledger
        scored, total = self.evaluation.progress()
        gauges = (
            self.gauges.latest
            | self.gauges.now(self.generation.live(), self.scoring.waiting())
            | {
                "train_time_s": hub.clock.now(),
                "eval/scored": float(scored),
                "eval/total": float(total),
                "warming_up": float(hub.scheduler.warming and self.phase == "training"),
                "rejected_messages": float(hub.router.rejected + self.intake.rejected),
            }
        )
        for evaluation in state.evaluations:
            gauges[f"eval/{evaluation.label}/accuracy"] = evaluation.accuracy
            gauges[f"eval/{evaluation.label}/response_length"] = evaluation.response_length
        return m.Status(
            run_id=hub.run_id,
            phase=self.outcome if self.phase == "closed" else self.phase,
            update=state.update,
            version=state.version,
            gauges=gauges,
            ledger={
                "generated": ledger.generated,
                **{
                    name: ledger.accounts[name] for name in ("trained_policy", "ready", "in_flight")
                },
            },
            dropped=dict(ledger.dropped),
            waits=self.waits(),
            processes={n: p.hello.role for n, p in hub.peers.everyone()},
            message=hub.failed or "",
        )
