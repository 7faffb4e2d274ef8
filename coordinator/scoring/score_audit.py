"""Audit of rewards: a second source scores a share of answers, without training.

In: training answers that have their reward, and scores of audits. Out: items of requests, marked as
audits; AuditArrived records. Promises: an audit follows its answer's reward and delays none; the
choice of prompts depends on the prompt's id and the seed alone; failures are counted and reported
once in a row, and nothing waits for an audit, an evaluation and the end of the run included. An
answer that is forgotten before its turn has no audit.
"""

from collections import deque
from collections.abc import Callable, Iterable

import msgspec

from coordinator.connections.peers import RewardPeer
from coordinator.hub import Hub
from coordinator.scoring.group_diversity import chosen
from headrace.protocol.messages.control import Score, ScoreItem
from headrace.protocol.records.record_types import AuditArrived, GroupIssued
from headrace.trajectory.trajectories import Trajectory

MOST_WAITING = 1024
"""Maximum number of answers that wait for audits; the oldest are dropped."""


class ScoreAudit:
    """Requests and scores of `[reward.audit]`."""

    def __init__(self, hub: Hub, source_of: Callable[[GroupIssued], str]) -> None:
        self._hub = hub
        self._config = hub.config.reward.audit
        self._source_of = source_of
        self._waiting: deque[int] = deque(maxlen=MOST_WAITING)
        self._failing = False

    @property
    def waits(self) -> bool:
        """True where an answer waits for its audit."""
        return bool(self._waiting)

    def add(self, trajectory: Trajectory) -> None:
        """Queue a trajectory that has its reward, if its prompt is audited."""
        audit = self._config
        scored = trajectory.reward_status == "ok" and trajectory.audit_status is None
        if audit is None or not scored or trajectory.purpose != "train":
            return
        group = self._hub.account.groups[trajectory.group_id]
        if not chosen(f"{audit.seed}/{group.prompt_id}", audit.share):
            return
        if self._source_of(group) != audit.source:
            self._waiting.append(trajectory.trajectory_id)

    def requeue(self, worker: RewardPeer) -> None:
        """Queue the audits of a worker that is gone again."""
        self._waiting.extendleft(sorted(worker.auditing, reverse=True))

    def queued(self) -> dict[str, int]:
        """Return the number of answers that the audit's source has yet to score."""
        if self._config is None:
            return {}
        out = sum(len(worker.auditing) for worker in self._hub.peers.rewards.values())
        return {self._config.source: len(self._waiting) + out}

    def items(
        self, worker: RewardPeer, item_of: Callable[[Trajectory, str], ScoreItem]
    ) -> list[ScoreItem]:
        """Return the audits that go to a worker now: at most two batches per child in flight."""
        audit, reward = self._config, self._hub.config.reward
        if audit is None or not self._waiting:
            return []
        room = 2 * reward.batch * reward.sources[audit.source].children - len(worker.auditing)
        items = []
        for trajectory in self._next(min(room, reward.batch)):
            item = item_of(trajectory, audit.source)
            items.append(msgspec.structs.replace(item, audit=True))
            worker.auditing.add(trajectory.trajectory_id)
        return items

    def _next(self, number: int) -> Iterable[Trajectory]:
        """Pop the next trajectories that are still known."""
        while number > 0 and self._waiting:
            trajectory = self._hub.account.trajectories.get(self._waiting.popleft())
            if trajectory is not None:
                number -= 1
                yield trajectory

    def receive(self, worker: RewardPeer | None, score: Score) -> None:
        """Record an audit's score; one without a request is ignored."""
        if self._config is None or worker is None or score.trajectory_id not in worker.auditing:
            self._hub.rejections.count("score_not_asked")
            return
        worker.auditing.remove(score.trajectory_id)
        ok = score.status == "ok"
        arrived = AuditArrived(
            trajectory_id=score.trajectory_id,
            source=self._config.source,
            status=score.status,
            reward=score.reward if ok else None,
            correct=score.correct if ok else None,
            parts=score.parts,
            seconds=score.seconds,
            error=score.error,
        )
        self._hub.record_event(arrived)
        trajectory = self._hub.account.trajectories.get(score.trajectory_id)
        if trajectory is not None:
            source = self._source_of(self._hub.account.groups[trajectory.group_id])
            self._hub.monitors.audited(source, trajectory.reward, arrived)
        if not ok and not self._failing:
            text = f"the audit of trajectory {score.trajectory_id} by {arrived.source}"
            reason = f"{score.status}{': ' + score.error if score.error else ''}"
            incident = f"{text}: {reason}; nothing waits for it"
            self._hub.incident("warning", "audit_failed", incident)
        self._failing = not ok
