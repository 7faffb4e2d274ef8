"""The phases of a run: starting, evaluating, training, draining, closing, leaving, closed.

Comes in: `advance` after every message and ten times a second. Goes out: what each phase lets
happen (leases, batches, evaluations, the last checkpoint) and the records that say so. Draining
is the way from training to an evaluation or to the end: leases are taken back with the tokens
they have, the batch that is out comes home, the newest weights are loaded everywhere.
"""

import asyncio
import logging
import time
from pathlib import Path
from typing import Literal

from coordinator.hub import Hub
from coordinator.monitoring.stall_watch import StallWatch
from coordinator.monitoring.status import status
from coordinator.parts import Parts
from coordinator.rollouts.evaluation import Label, can_wait
from headrace.protocol.messages.control import Shutdown
from headrace.protocol.records.record_types import MetricsSampled, RunPhase, TrajectoryEnded
from headrace.run_files.run_folder import config_digest

log = logging.getLogger(__name__)
Phase = Literal["starting", "evaluating", "training", "draining", "closing", "leaving", "closed"]
GOODBYE_S = 10.0


class Phases:
    """Where the run stands and what comes next."""

    def __init__(self, hub: Hub, parts: Parts, waits: StallWatch) -> None:
        self.hub, self.parts, self.waits = hub, parts, waits
        self.phase: Phase = "starting"
        self.outcome = "finished"
        self._label: Label = "before"
        self._stopping = False
        self._evaluated_at = 0
        self._is_over = False
        """The end of the run is written down, or waits for the disk."""
        self._skips_told = 0
        self._leaving_since = 0.0
        self._lock = asyncio.Lock()

    @property
    def name(self) -> str:
        """The phase, or how the run ended."""
        return self.outcome if self.phase in ("leaving", "closed") else self.phase

    def begin(self) -> None:
        """The run exists."""
        self._enter("starting", config=config_digest(Path(self.hub.run_dir)))

    def stop(self, outcome: str) -> None:
        """Drain, checkpoint, end (Ctrl-C, `headrace stop`)."""
        if not self._stopping:
            self._stopping, self.outcome = True, outcome

    async def advance(self) -> None:
        """Do whatever can be done now; one caller at a time."""
        async with self._lock:
            await self._advance()

    async def _advance(self) -> None:
        if self.hub.failed and not self._is_over:
            self.outcome = "failed"
            self.hub.incident("error", "run_failed", self.hub.failed)
            if self.phase != "closing":
                self._enter("closing", self.hub.failed)
            self._close()
            return
        await self.parts.scoring.dispatch()
        if self.phase not in ("closing", "leaving", "closed"):
            await self.parts.self_test.advance()
        match self.phase:
            case "starting":
                if self._stopping:
                    await self._finish()
                elif self._everyone_here() and self.parts.self_test.passed():
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
            case "leaving":
                here = len(self.hub.peers.everyone()) - len(self.hub.peers.monitors)
                if not here or time.monotonic() - self._leaving_since > GOODBYE_S:
                    self.phase = "closed"
            case _:
                pass

    def _enter(self, phase: Phase, detail: str = "", config: str | None = None) -> None:
        self.phase = phase
        if phase == "training":
            self.hub.clock.start()
            self.parts.gauges.mark_training()
            self.parts.generation.draining = False
            self.hub.clock.learner_waits(self.hub.account.taken is None)
        elif phase in ("evaluating", "closing"):
            self.hub.clock.stop()
        entered = RunPhase(at=time.time(), phase=phase, detail=detail, config=config)
        self.hub.recorder.write(entered)
        self.hub.progress("phase")
        log.info("phase %s %s", phase, detail)

    # -- start and evaluations --------------------------------------------------------------------

    def _everyone_here(self) -> bool:
        learner = self.parts.training.ready or self.hub.config.evaluation.only
        return learner and self.parts.generation.all_loaded() and bool(self.hub.peers.rewards)

    def _after_start(self) -> None:
        evaluated = any(e.label == "before" for e in self.hub.state.evaluations)
        if self.hub.config.evaluation.before and not evaluated:
            self._evaluate("before")
        else:
            self._enter("training")

    def _evaluate(self, label: Label) -> None:
        self._enter("evaluating", label)
        self._label = label
        self.parts.evaluation.begin(label)

    async def _advance_evaluation(self) -> None:
        if self._stopping:
            await self._finish()
            return
        result = await self.parts.evaluation.advance()
        if result is None:
            return
        self._evaluated_at = self.hub.state.committed
        if self._label == "after" or self.hub.config.evaluation.only:
            await self._finish()
        elif self._stop_reason():
            self._drain()
        else:
            self._enter("training")

    def _evaluation_due(self) -> bool:
        every, update = self.hub.config.evaluation.every_updates, self.hub.state.committed
        if every is None or update == 0 or update % every or update == self._evaluated_at:
            return False
        state, now = self.hub.state, self.hub.clock.now()
        if state.evaluations:
            last = state.evaluations[-1]
            spacing = self.hub.config.evaluation.spacing
            begin = self.hub.config.evaluation.spacing_from_s
            if last.version == state.versions.current:
                return False
            step = now * every / update
            if can_wait(now, step, last.train_time_s, spacing, begin=begin):
                return False
        return not self._stop_reason()

    # -- training ---------------------------------------------------------------------------------

    async def _advance_training(self) -> None:
        if self._stopping or self._stop_reason() or self._evaluation_due():
            self._drain()
            return
        await self.parts.generation.lease_training()
        self.parts.training.dispatch()
        if self.parts.prompts.skipped > self._skips_told:
            self._skips_told = self.parts.prompts.skipped
            self.hub.incident(
                "warning",
                "prompt_too_long",
                f"{self._skips_told} prompts over task.max_prompt_length were skipped so far",
            )

    def _stop_reason(self) -> str | None:
        stop, state = self.hub.config.stop, self.hub.state
        committed = state.committed
        if stop.updates is not None and committed >= stop.updates:
            return f"{committed} updates"
        if stop.train_time_s is not None and self.hub.clock.now() >= stop.train_time_s:
            return f"{stop.train_time_s:g} s of training"
        if (
            stop.tokens is not None
            and self.hub.account.ledger.accounts["trained_policy"] >= stop.tokens
        ):
            return f"{stop.tokens} tokens trained"
        if stop.after_warmup and not self.hub.scheduler.warming:
            return "the value model's warm-up is over"
        last = [e.accuracy for e in state.evaluations if e.label == "during"][-2:]
        if stop.accuracy is not None and len(last) == 2 and min(last) >= stop.accuracy:
            return f"accuracy {last[-1]:.3f} twice"
        return None

    # -- draining ---------------------------------------------------------------------------------

    def _drain(self) -> None:
        self.parts.generation.draining = True
        why = "stop" if self._stopping else self._stop_reason() or "evaluation"
        self._enter("draining", why)

    async def _quiet(self) -> bool:
        """No lease and no batch out; towards an evaluation also weights loaded and rewards in."""
        generation = self.parts.generation
        generation.hold_all()
        # Whether a learner that is gone had trained its batch is known when one comes back.
        if (self.hub.account.taken and self.hub.peers.learner) or generation.live():
            return False
        return self._stopping or (generation.all_loaded() and not self.parts.scoring.waiting())

    async def _after_drain(self) -> None:
        if self._stopping:
            await self._finish()
        elif self._evaluation_due():
            self._evaluate("during")
        elif self._stop_reason() and self.hub.config.evaluation.after:
            self._evaluate("after")
        elif self._stop_reason():
            await self._finish()
        else:
            self._enter("training")

    # -- the end ----------------------------------------------------------------------------------

    async def _finish(self) -> None:
        self._enter("closing", self.outcome)
        await self._advance_closing()

    async def _advance_closing(self) -> None:
        """Wait for a checkpoint of the last update. A learner that says Hello meanwhile has
        forgotten that it was asked for one."""
        training = self.parts.training
        if self._is_over:
            return
        if self.hub.state.committed in (0, training.checkpoint_update):
            self._close()
        elif self.hub.peers.learner is None:
            text = "no checkpoint of the last update: the learner was gone before it"
            self.hub.troubles.tell("no_checkpoint", text, "error")
            self._close()
        elif training.ready and training.orders.checkpoint is None:
            await training.request_checkpoint()

    def _close(self) -> None:
        """Write down that the run is over; everyone hears of it when that is on the disk, whatever
        the disk is waited for."""
        hub = self.hub
        self._is_over = True
        if self.outcome == "finished":
            self.parts.training.give_back("the run ended without its learner")
            self._discard()
        hub.tell(at_once=True)
        metrics = self.parts.gauges.now(0, 0)
        hub.note(MetricsSampled(at=time.time(), update=hub.state.update, metrics=metrics))
        hub.recorder.write(RunPhase(at=time.time(), phase=self.outcome, detail=hub.failed or ""))
        hub.recorder.after(self._say_goodbye, hurry=True)

    async def _say_goodbye(self) -> None:
        hub = self.hub
        self.phase = "leaving"
        self._leaving_since = time.monotonic()
        for name in list(hub.peers.monitors):
            await hub.send(name, status(hub, self.parts, self.waits, self.name))
        await hub.broadcast(Shutdown(reason=hub.failed or self.outcome))

    def _discard(self) -> None:
        """What no update will train any more leaves the ledger under its own name."""
        for trajectory in list(self.hub.account.trajectories.values()):
            if trajectory.purpose != "train":
                continue
            for record in self.hub.settlement.discard(trajectory, "discarded_at_end"):
                self.hub.note(record)
            if not trajectory.ended:
                self.hub.note(
                    TrajectoryEnded(
                        at=time.time(),
                        trajectory_id=trajectory.trajectory_id,
                        status="aborted",
                        length=trajectory.length,
                    )
                )
