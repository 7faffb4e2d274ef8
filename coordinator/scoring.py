"""Finished trajectories to the reward workers and their scores back.

Comes in: trajectories that ended complete, Scores. Goes out: ScoreRequest batches, RewardArrived
records. Each prompt has a source of rewards, by its row; sources queue apart, so that a slow one
does not hold the others up. A worker that is lost gives its trajectories back to the queues. Too
many failures of a source in a row stop the run with the reason.
"""

import json
import time
from collections import Counter, deque

from coordinator.hub import Hub
from coordinator.peers import RewardPeer
from coordinator.prompts import Prompts
from coordinator.values import sound_score
from headrace.config.reward import DEFAULT_SOURCE
from headrace.errors import UserError
from headrace.protocol.messages import Hello, Score, ScoreItem, ScoreRequest, Scores
from headrace.protocol.records import RewardArrived
from sequence.trajectories import Group, Trajectory


class Scoring:
    """The coordinator's side of the reward workers."""

    def __init__(self, hub: Hub, prompts: Prompts) -> None:
        self._hub = hub
        self._prompts = prompts
        self._sources = hub.config.reward.each()
        self._queues: dict[str, deque[int]] = {name: deque() for name in self._sources}
        self._failures_in_a_row: Counter[str] = Counter()
        self.seconds = 0.0

    def add(self, trajectory: Trajectory) -> None:
        """A complete trajectory waits for its reward."""
        if trajectory.complete and trajectory.reward_status is None:
            source = self.source_of(self._hub.account.groups[trajectory.group_id])
            self._queues[source].append(trajectory.trajectory_id)

    def source_of(self, group: Group) -> str:
        """The source of rewards of a prompt; UserError where the route leads nowhere."""
        reward, task = self._hub.config.reward, self._hub.config.task
        if not reward.sources:
            return DEFAULT_SOURCE
        found = reward.route_of(task.kind, lambda: json.loads(group.info))
        if found is None:
            raise UserError(f"reward.route leaves prompt {group.prompt_id} without a source")
        return found

    def join(self, hello: Hello) -> None:
        """A worker said Hello; the same process may say it again and keeps what it is scoring."""
        known = self._hub.peers.rewards.get(hello.name)
        if known is not None and known.hello.pid == hello.pid:
            return
        self.lose(hello.name)
        self._hub.peers.rewards[hello.name] = RewardPeer(hello)

    def lose(self, name: str) -> None:
        """A worker is gone: others score what it had."""
        worker = self._hub.peers.rewards.pop(name, None)
        if worker:
            for trajectory_id, source in sorted(worker.scoring.items(), reverse=True):
                self._queues[source].appendleft(trajectory_id)

    def waiting(self) -> int:
        """Trajectories that wait for a reward."""
        queued = sum(len(queue) for queue in self._queues.values())
        return queued + sum(len(w.scoring) for w in self._hub.peers.rewards.values())

    async def dispatch(self) -> None:
        """Hand the queues to workers, at most two batches of a source out at each child."""
        if not any(self._queues.values()):
            return
        size = self._hub.config.reward.batch
        for name, worker in self._hub.peers.rewards.items():
            out = Counter(worker.scoring.values())
            for source, queue in self._queues.items():
                room = 2 * size * self._sources[source].children - out[source]
                ids = [queue.popleft() for _ in range(min(room, size, len(queue)))]
                if ids:
                    worker.scoring.update(dict.fromkeys(ids, source))
                    trajectories = (self._hub.account.trajectories[i] for i in ids)
                    items = [self._item(trajectory, source) for trajectory in trajectories]
                    await self._hub.send(name, ScoreRequest(items=items))

    def _item(self, trajectory: Trajectory, source: str) -> ScoreItem:
        group = self._hub.account.groups[trajectory.group_id]
        with_ids = self._hub.config.reward.token_ids
        sampled = trajectory.sampled_tokens()
        return ScoreItem(
            trajectory_id=trajectory.trajectory_id,
            prompt=group.prompt,
            text=self._prompts.decode(sampled),
            answer=group.answer,
            finished=trajectory.status == "finished",
            num_tokens=trajectory.sampled,
            info=group.info,
            messages=group.messages if self._sources[source].kind in ("function", "judge") else "",
            prompt_ids=trajectory.opening if with_ids else None,
            completion_ids=sampled if with_ids else None,
            source=source,
        )

    def receive(self, name: str, message: Scores) -> list[Trajectory]:
        """Take scores and return their trajectories; scores that were not asked for are ignored."""
        worker = self._hub.peers.rewards.get(name)
        scored: list[Trajectory] = []
        for score in map(sound_score, message.scores):
            if worker is None or score.trajectory_id not in worker.scoring:
                # What a worker is asked before it is lost, it may answer after.
                self._hub.rejections.count("score_not_asked")
                continue
            source = worker.scoring.pop(score.trajectory_id)
            ok = score.status == "ok"
            self._hub.note(
                RewardArrived(
                    at=time.time(),
                    trajectory_id=score.trajectory_id,
                    status=score.status,
                    reward=score.reward if ok else None,
                    rewards=score.rewards,
                    correct=score.correct if ok else None,
                    parts=score.parts,
                    seconds=score.seconds,
                    error=score.error,
                    source=source,
                )
            )
            self.seconds += score.seconds
            scored.append(self._hub.account.trajectories[score.trajectory_id])
            self._failures_in_a_row[source] = 0 if ok else self._failures_in_a_row[source] + 1
            if not ok:
                self._fail(score, source)
        self._hub.settle(scored)
        if scored:
            self._hub.progress()
        return scored

    def _fail(self, score: Score, source: str) -> None:
        """Tell of a scoring that failed; the run ends where too many of its source did."""
        named = f" by {source}" if source != DEFAULT_SOURCE else ""
        self._hub.incident(
            "warning",
            "reward_failed",
            f"trajectory {score.trajectory_id}: {score.status}{named} after {score.seconds:.1f} s"
            f"{': ' + score.error if score.error else ''}",
        )
        failures = self._failures_in_a_row[source]
        if failures >= self._hub.config.reward.max_consecutive_failures:
            self._hub.failed = self._hub.failed or (
                f"{failures} rewards{named} in a row failed; the last: {score.status} "
                f"({score.error or 'no reason given'})"
            )
