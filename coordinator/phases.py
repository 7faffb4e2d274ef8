"""Phases of a run, and the conditions under which one follows another.

In: `advance` after every message and ten times a second. Out: each phase's work (leases, batches,
evaluations, the last checkpoint) and its records. Draining is the way from training to an
evaluation or to the end: leases are taken back with the tokens they have, the batch in flight comes
back, the newest weights are loaded everywhere. One table lists the conditions under which a phase
follows.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Literal

from coordinator.connections.message_checks import end_record
from coordinator.hub import FETCHES, IMAGES, Hub
from coordinator.monitoring.stall_watch import StallWatch
from coordinator.monitoring.status import status
from coordinator.parts import Parts
from coordinator.rollouts.evaluation import Label, can_wait
from headrace.protocol.messages.control import Shutdown
from headrace.protocol.records.record_types import MetricsSampled, RunPhase
from headrace.run_files.run_folder import config_digest

log = logging.getLogger(__name__)
Phase = Literal[
    "starting", "evaluating", "training", "draining", "closing", "ending", "leaving", "closed"
]
"""Phases; in `ending` the run's end is being recorded, or waits for the disk."""
WORKING: tuple[Phase, ...] = ("starting", "evaluating", "training", "draining")
OVER: tuple[Phase, ...] = ("ending", "leaving", "closed")
GOODBYE_S = 10.0


class Phases:
    """State machine of the run's phases."""

    def __init__(self, hub: Hub, parts: Parts, waits: StallWatch) -> None:
        self.hub, self.parts, self.waits = hub, parts, waits
        self.phase: Phase = "starting"
        self.outcome = "finished"
        """End of the run as known now: finished, stopped, interrupted or failed."""
        self._label: Label = "before"
        self._is_evaluated = False
        done = hub.state.evaluations
        self._evaluated = {self._place(done[-1].update if done else 0)}
        self._skips_told = 0
        self._leaving_since = 0.0
        self._lock = asyncio.Lock()
        self._work: dict[Phase, Callable[[], Awaitable[None]]] = {
            "evaluating": self._evaluate,
            "training": self._train,
            "draining": self._drain,
            "closing": self._close,
        }
        self._table: dict[Phase, tuple[tuple[Callable[[], object], Phase], ...]] = {
            "starting": (
                (self._is_stopped, "closing"),
                (lambda: hub.config.evaluation.only and hub.state.evaluations, "closing"),
                (self._evaluates_first, "evaluating"),
                (self._is_ready, "training"),
            ),
            "evaluating": (
                (self._is_stopped, "closing"),
                (self._evaluated_last, "closing"),
                (lambda: self._is_evaluated and self._stop_reason(), "draining"),
                (lambda: self._is_evaluated, "training"),
            ),
            "training": (
                (self._is_stopped, "draining"),
                (self._stop_reason, "draining"),
                (self._evaluation_due, "draining"),
            ),
            "draining": (
                (lambda: not self._is_quiet(), "draining"),
                (self._is_stopped, "closing"),
                (self._evaluation_due, "evaluating"),
                (lambda: self._stop_reason() and hub.config.evaluation.after, "evaluating"),
                (self._stop_reason, "closing"),
                (lambda: True, "training"),
            ),
            "closing": (
                (lambda: hub.failed, "ending"),
                (lambda: not (self._is_stopped() or self._is_over()), "training"),
                (lambda: self._has_last_checkpoint() or hub.peers.learner is None, "ending"),
            ),
            "leaving": ((self._everyone_left, "closed"),),
        }
        """Conditions of each phase, in order: the first that holds names the next phase.

        A failed run closes in any case; the disk leads from ending to leaving."""

    @property
    def name(self) -> str:
        """Name of the phase, or of the run's end."""
        if self.phase in ("leaving", "closed"):
            return self.outcome
        return "closing" if self.phase == "ending" else self.phase

    def shutdown(self) -> Shutdown:
        """Return what tells a process that the run is over."""
        return Shutdown(reason=self.hub.failed or self.outcome)

    def record_start(self) -> None:
        """Record that the run exists."""
        self._record("", config=config_digest(Path(self.hub.run_dir)))

    def stop(self, outcome: str) -> None:
        """Drain, checkpoint, end (Ctrl-C, `headrace stop`)."""
        if self.outcome == "finished" and self.phase not in OVER:
            self.outcome = outcome

    async def advance(self) -> None:
        """Do all that can be done now; one caller at a time."""
        async with self._lock:
            self.hub.troubles.waits.pop(FETCHES, None)
            if not (self.hub.failed and self.phase not in OVER):
                await self.parts.scoring.dispatch()
                if self.phase in WORKING:
                    await self.parts.self_test.advance()
            self._follow()
            if self.phase in self._work:
                await self._work[self.phase]()
                self._tell_unasked()
                self._follow()
            if self.parts.episodes is not None and self.phase in WORKING:
                await self.parts.episodes.dispatch()

    def _follow(self) -> None:
        """Go from phase to phase while a condition holds."""
        while (following := self._following()) != self.phase:
            self._enter(following)

    def _following(self) -> Phase:
        if self.hub.failed and self.phase in WORKING:
            return "closing"
        edges = self._table.get(self.phase, ())
        return next((to for condition, to in edges if condition()), self.phase)

    def _enter(self, phase: Phase) -> None:
        hub, before, self.phase = self.hub, self.phase, phase
        hub.troubles.waits.pop(IMAGES, None)  # Where prompts are still drawn it is set again.
        match phase:
            case "evaluating":
                during: Label = "during" if self._evaluation_due() else "after"
                self._label = "before" if before == "starting" else during
                self._is_evaluated = False
                hub.clock.stop()
                self._record(self._label)
                self.parts.evaluation.start(self._label)
            case "training":
                hub.clock.start()
                self.parts.gauges.mark_training()
                self.parts.generation.draining = False
                hub.clock.learner_waits(self.parts.training.ready and hub.account.taken is None)
                self._record("")
            case "draining":
                self.parts.generation.draining = True
                self._record("stop" if self._is_stopped() else self._stop_reason() or "evaluation")
            case "closing":
                hub.clock.stop()
                self._record(hub.failed or self.outcome)
            case "ending":
                self._write_end()

    def _record(self, detail: str, config: str | None = None) -> None:
        record = RunPhase(phase=self.phase, detail=detail, config=config)
        self.hub.recorder.write(record)
        self.hub.progress("phase")
        log.info("phase %s %s", self.phase, detail)

    # -- conditions -------------------------------------------------------------------------------

    def _is_stopped(self) -> bool:
        return self.outcome != "finished"

    def _is_ready(self) -> bool:
        """Return whether everyone is here and has passed the self-test."""
        learner = self.parts.training.ready or self.hub.config.evaluation.only
        peers = self.hub.peers
        judged = bool(peers.rewards) or not self.hub.config.is_scored
        judged &= bool(peers.environments) or self.parts.episodes is None
        here = learner and self.parts.generation.all_loaded() and judged
        return here and self.parts.self_test.passed()

    def _evaluates_first(self) -> bool:
        """Return whether the starting policy is to be evaluated; a resume may ask too late."""
        state = self.hub.state
        begun = state.committed or any(e.label == "before" for e in state.evaluations)
        return self.hub.config.evaluation.before and not begun and self._is_ready()

    def _evaluated_last(self) -> bool:
        last = self._label == "after" or self.hub.config.evaluation.only
        return self._is_evaluated and last and self._is_over()

    def _is_over(self) -> bool:
        """Return whether the run ends here: a rollback may have taken it back before its end."""
        return self.hub.config.evaluation.only or bool(self._stop_reason())

    def _evaluation_due(self) -> bool:
        asked, update = self.hub.config.evaluation, self.hub.state.committed
        every = asked.every_updates
        if asked.mode == "along":
            return False
        if not (every and update) or update % every or self._place(update) in self._evaluated:
            return False
        state, now = self.hub.state, self.hub.clock.now()
        if state.evaluations:
            last = state.evaluations[-1]
            if last.version == state.versions.current:
                return False
            step = now * every / update
            if can_wait(now, step, last.train_time_s, asked.spacing, begin=asked.spacing_from_s):
                return False
        return not self._stop_reason()

    def _stop_reason(self) -> str | None:
        stop, state = self.hub.config.stop, self.hub.state
        committed, trained = state.committed, self.hub.account.ledger.accounts["trained_policy"]
        if stop.updates is not None and committed >= stop.updates:
            return f"{committed} updates"
        if stop.train_time_s is not None and self.hub.clock.now() >= stop.train_time_s:
            return f"{stop.train_time_s:g} s of training"
        if stop.tokens is not None and trained >= stop.tokens:
            return f"{stop.tokens} tokens trained"
        if stop.after_warmup and not self.hub.scheduler.warming:
            return "the value model's warm-up is over"
        if stop.accuracy is not None:
            last, before = list[float](), committed + 1
            for each in reversed(state.evaluations):
                if each.label == "during" and each.update < before:  # A rollback undid the others.
                    last.append(each.accuracy)
                    before = each.update
                if len(last) == 2:
                    break  # Asked at every message, and a long run has hundreds.
            if len(last) == 2 and min(last) >= stop.accuracy:
                return f"accuracy {last[0]:.3f} twice"
        return None

    def _is_quiet(self) -> bool:
        """Return whether no work is in flight; before an evaluation, no load or score."""
        # Whether a learner that is gone had trained its batch is known when one comes back.
        if (self.hub.account.taken and self.hub.peers.learner) or self.hub.leases.live():
            return False
        if self.parts.along.open:
            return False
        all_in = self.parts.generation.all_loaded() and not self.parts.scoring.waiting()
        published = self.parts.training.orders.follows is None
        return self._is_stopped() or (published and all_in)

    def _has_last_checkpoint(self) -> bool:
        return self.hub.state.committed in (0, self.parts.training.checkpoint_update)

    def _everyone_left(self) -> bool:
        here = len(self.hub.peers.everyone()) - len(self.hub.peers.monitors)
        return not here or time.monotonic() - self._leaving_since > GOODBYE_S

    # -- work -------------------------------------------------------------------------------------

    async def _evaluate(self) -> None:
        # A learner that came back publishes other weights than those that answer.
        published = self.parts.training.orders.follows is None
        if published and await self.parts.evaluation.advance() is not None:
            self._is_evaluated = True
            self._evaluated.add(self._place(self.hub.state.committed))

    def _place(self, update: int) -> tuple[int, int | None]:
        return update, self.hub.state.line.get(update)  # whose batch a rollback changes

    async def _train(self) -> None:
        await self.parts.along.advance()
        await self.parts.generation.lease_training()
        if self._following() == "training":  # An update may have come while images were stored.
            self.parts.training.dispatch()

    def _tell_unasked(self) -> None:
        prompts = self.parts.prompts
        if (skipped := prompts.skipped + prompts.skipped_in_evaluation) > self._skips_told:
            self._skips_told = skipped
            text = f"{self._skips_told} prompts over task.max_prompt_length were skipped so far"
            self.hub.incident("warning", "prompt_too_long", text)
        while prompts.unasked:
            self.hub.incident("warning", "prompts_unasked", prompts.unasked.pop())

    async def _drain(self) -> None:
        self.parts.generation.hold_all()
        self.parts.along.give_up()

    async def _close(self) -> None:
        """Request a checkpoint of the last update, again from a learner that says Hello
        meanwhile."""
        training = self.parts.training
        if training.ready and not training.orders.checkpoints:
            await training.request_checkpoint()

    # -- the end ----------------------------------------------------------------------------------

    def _write_end(self) -> None:
        """Record the run's end; notify all processes once the record is on disk."""
        hub = self.hub
        if hub.failed:
            self.outcome = "failed"
            hub.incident("error", "run_failed", hub.failed)
        elif not self._has_last_checkpoint():
            text = "no checkpoint of the last update: the learner was gone before it"
            hub.troubles.report("no_checkpoint", text, "error")
        if self.outcome == "finished":
            self.parts.training.line.return_batch("the run ended without its learner")
            # All tokens that no update will train have their own name in the ledger.
            trains = [t for t in hub.account.trajectories.values() if t.purpose == "train"]
            for trajectory in trains:
                for record in hub.lifecycle.discard(trajectory, "discarded_at_end"):
                    hub.record_event(record)
                if not trajectory.ended:
                    hub.record_event(end_record(trajectory, "aborted"))
        hub.write_summaries(at_once=True)
        metrics = self.parts.gauges.now(0, 0) | self.parts.gauges.carried
        hub.record_event(MetricsSampled(update=hub.state.update, metrics=metrics))
        hub.recorder.write(RunPhase(phase=self.outcome, detail=hub.failed or ""))
        hub.recorder.after(self._say_goodbye, hurry=True)

    async def _say_goodbye(self) -> None:
        hub = self.hub
        self.phase = "leaving"
        self._leaving_since = time.monotonic()
        told = status(hub, self.parts, self.waits, self.name)
        for name, _ in hub.peers.everyone():
            await hub.send(name, told if name in hub.peers.monitors else self.shutdown())
