"""Finished trajectories to the reward workers and their scores back.

Comes in: trajectories that ended complete, Scores. Goes out: ScoreRequest batches, RewardArrived
records. A worker that is lost gives its trajectories back to the queue. Too many failures in a
row stop the run with the reason.
"""

import time
from collections import deque

from coordinator.hub import Hub
from coordinator.peers import RewardPeer
from coordinator.prompts import Prompts
from coordinator.values import sound_score
from headrace.protocol.messages import Hello, ScoreItem, ScoreRequest, Scores
from headrace.protocol.records import RewardArrived
from sequence.trajectories import Trajectory


class Scoring:
    """The coordinator's side of the reward workers."""

    def __init__(self, hub: Hub, prompts: Prompts) -> None:
        self._hub = hub
        self._prompts = prompts
        self._queue: deque[int] = deque()
        self._failures_in_a_row = 0
        self.seconds = 0.0

    def add(self, trajectory: Trajectory) -> None:
        """A complete trajectory waits for its reward."""
        if trajectory.complete and trajectory.reward_status is None:
            self._queue.append(trajectory.trajectory_id)

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
            self._queue.extendleft(sorted(worker.scoring, reverse=True))

    def waiting(self) -> int:
        """Trajectories that wait for a reward."""
        return len(self._queue) + sum(len(w.scoring) for w in self._hub.peers.rewards.values())

    async def dispatch(self) -> None:
        """Hand the queue to workers, at most two batches out at each."""
        size = self._hub.config.reward.batch
        for name, worker in self._hub.peers.rewards.items():
            room = 2 * size * self._hub.config.reward.children - len(worker.scoring)
            ids = [self._queue.popleft() for _ in range(min(room, size, len(self._queue)))]
            if ids:
                worker.scoring.update(ids)
                items = [self._item(self._hub.account.trajectories[i]) for i in ids]
                await self._hub.send(name, ScoreRequest(items=items))

    def _item(self, trajectory: Trajectory) -> ScoreItem:
        group = self._hub.account.groups[trajectory.group_id]
        reward = self._hub.config.reward
        sampled = trajectory.sampled_tokens()
        return ScoreItem(
            trajectory_id=trajectory.trajectory_id,
            prompt=group.prompt,
            text=self._prompts.decode(sampled),
            answer=group.answer,
            finished=trajectory.status == "finished",
            num_tokens=trajectory.sampled,
            info=group.info,
            messages=group.messages if reward.kind == "function" else "",
            prompt_ids=trajectory.opening if reward.token_ids else None,
            completion_ids=sampled if reward.token_ids else None,
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
            worker.scoring.discard(score.trajectory_id)
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
                )
            )
            self.seconds += score.seconds
            scored.append(self._hub.account.trajectories[score.trajectory_id])
            self._failures_in_a_row = 0 if ok else self._failures_in_a_row + 1
            if not ok:
                self._hub.incident(
                    "warning",
                    "reward_failed",
                    f"trajectory {score.trajectory_id}: {score.status} after {score.seconds:.1f} s"
                    f"{': ' + score.error if score.error else ''}",
                )
        self._hub.settle(scored)
        if self._failures_in_a_row >= self._hub.config.reward.max_consecutive_failures:
            self._hub.failed = self._hub.failed or (
                f"{self._failures_in_a_row} rewards in a row failed; the last: {score.status} "
                f"({score.error or 'no reason given'})"
            )
        if scored:
            self._hub.progress()
        return scored
