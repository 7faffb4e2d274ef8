"""Evaluations along the stream: held-out prompts beside training, which does not pause.

In: `advance` while the run trains. Out: trajectories of purpose `along`, at most a share of the
slots at once, then metrics `along/*` of the next update, among them the first and the last version
that answered. Promises: no verdict rests on them: `best`, `stop.accuracy`, Compare and the exact
evaluations know nothing of them. One that is open where the run pauses, ends or starts again is
given up: what a generator has of it comes back first.
"""

import statistics
from collections.abc import Callable

from coordinator.connections.message_checks import end_record
from coordinator.hub import Hub
from coordinator.rollouts.generation import Generation
from headrace.trajectory.trajectories import Trajectory

Figures = dict[str, float]
SLOTS_SHARE = 0.25
"""Share of all slots that an evaluation may have: the rest samples for the learner."""


class AlongEvaluation:
    """Evaluation along the stream that is open, if any."""

    def __init__(self, hub: Hub, generation: Generation, tell: Callable[[Figures], None]) -> None:
        """`tell` takes the figures of an evaluation."""
        self._hub, self._generation, self._tell = hub, generation, tell
        self._asked: list[Trajectory] = []
        self._waits: list[Trajectory] = []
        """Those that may have no score yet, checked from the end."""
        self._begun_at = hub.state.committed
        self.open = bool(self._left())
        """True while a trajectory of one has no end."""

    async def advance(self) -> None:
        """Begin an evaluation that is due, lease its trajectories, hand over its figures."""
        if not self._asked:
            self.give_up()
            if self.open or not self._is_due():
                return
            await self._issue()
        slots = max(1, int(SLOTS_SHARE * self._hub.peers.capacity))
        leases = self._hub.leases
        await self._generation.lease_evaluation(slots - len(leases.given) + leases.live())
        while self._waits and self._waits[-1].settled:
            self._waits.pop()
        if self._asked and not self._waits:
            self._tell(self._result())
            self._asked, self.open = [], False

    def give_up(self) -> None:
        """End what is open, once no generator has it."""
        if not self.open:
            return
        self._asked = []
        self._generation.hold(t.trajectory_id for t in self._left())
        for trajectory in self._left():
            if self._hub.leases.of(trajectory.trajectory_id) is None:
                self._hub.record_event(end_record(trajectory, "aborted"))
        self.open = bool(self._left())

    def _left(self) -> list[Trajectory]:
        known = self._hub.account.trajectories.values()
        return [t for t in known if t.purpose == "along" and not t.ended]

    def _is_due(self) -> bool:
        asked, update = self._hub.config.evaluation, self._hub.state.committed
        every = asked.every_updates
        if asked.mode == "exact" or every is None or self._hub.scheduler.warming:
            return False
        return update // every > self._begun_at // every

    async def _issue(self) -> None:
        if (groups := await self._generation.draw_evaluation("along")) is None:
            return
        for group in groups:
            self._hub.record_event(group)
        known = self._hub.account.trajectories
        self._asked = [known[key] for group in groups for key in group.trajectory_ids]
        self._waits, self._begun_at = list(self._asked), self._hub.state.committed
        self.open = bool(self._asked)

    def _result(self) -> Figures:
        versions = [span.version for t in self._asked for span in t.spans]
        right = sum(bool(t.correct) for t in self._asked if t.reward is not None)
        return {
            "along/accuracy": right / len(self._asked),
            "along/response_length": statistics.fmean(t.sampled for t in self._asked),
            "along/first_version": float(min(versions, default=0)),
            "along/last_version": float(max(versions, default=0)),
        }
