"""Score requests to reward workers, and the scores of answers, groups and lines.

In: trajectories that ended, lines in windows that closed, Scores. Out: ScoreRequest batches,
RewardArrived and LinesScored records. Each prompt has a reward source, by its row, and a second one
may score lines; sources queue apart, so that a slow one does not hold the others up. The requests
of a worker that is lost return to the queues. An outcome whose lines are still being scored is kept
until they are, or their deadline has passed. Too many failures of a source in a row stop the run
with the reason.
"""

import json
from collections import Counter, deque
from collections.abc import Iterator, Sequence

import msgspec

from coordinator.connections.message_checks import sound_score
from coordinator.connections.peers import RewardPeer, ScoreKey
from coordinator.dispatch.prompts import Prompts
from coordinator.hub import Hub
from coordinator.line_rewards.line_scoring import LineScoring
from coordinator.scoring.group_diversity import GroupDiversity
from coordinator.scoring.score_audit import ScoreAudit
from coordinator.scoring.score_items import ScoreItems
from headrace.config.sections.reward import DEFAULT_SOURCE
from headrace.errors import ProtocolError, UserError
from headrace.protocol.messages.control import Hello, Score, ScoreItem, ScoreRequest, Scores
from headrace.protocol.records.record_types import GroupIssued, RewardArrived
from headrace.protocol.token_spans import Reward
from headrace.protocol.transport.codec import in_parts
from headrace.trajectory.trajectories import Trajectory

_SCORED = {
    "trajectory": "trajectory", "group": "the group of trajectory", "line": "lines of trajectory"
}  # fmt: skip


class Scoring:
    """Queues of score requests, and the records of their scores."""

    def __init__(self, hub: Hub, prompts: Prompts) -> None:
        self._hub = hub
        self._items = ScoreItems(hub.config.reward, hub.account, prompts)
        self._sources = hub.config.reward.each()
        self._queues: dict[str, deque[ScoreKey]] = {name: deque() for name in self._sources}
        self._asked_groups: set[ScoreKey] = set()
        self._outcomes: dict[int, Score] = {}
        """Scores of answers whose lines are still being scored, by trajectory."""
        self._rewarded: list[Trajectory] = []
        self._failures_in_a_row: Counter[str] = Counter()
        self._audits = ScoreAudit(hub, self.source_of)
        self.spread = GroupDiversity(prompts.decode, hub.monitors.spread, seed=hub.config.seed)
        hub.monitors.queues, hub.monitors.in_flight = self.queues, self.in_flight

    def add(self, trajectory: Trajectory) -> None:
        """Queue an ended trajectory or its whole group to be scored, or audited."""
        if not trajectory.ended:
            return
        source = self.source_of(self._hub.account.groups[trajectory.group_id])
        if self._sources[source].unit == "group":
            members = self._hub.account.members(trajectory.group_id)
            ask = ScoreKey(members[0].trajectory_id, source)
            unscored = (member.complete and member.reward_status is None for member in members)
            if all(m.ended for m in members) and any(unscored) and ask not in self._asked_groups:
                self._asked_groups.add(ask)
                self._queues[source].append(ask)
        elif trajectory.complete and trajectory.reward_status is None:
            self._queues[source].append(ScoreKey(trajectory.trajectory_id, source))
        self._audits.add(trajectory)

    def source_of(self, group: GroupIssued) -> str:
        """Return the reward source of a prompt; UserError where the route leads nowhere."""
        config = self._hub.config
        found = config.source_of(lambda: json.loads(group.info))
        if found is None:
            raise UserError(f"reward.route leaves prompt {group.prompt_id} without a source")
        return found

    def join(self, hello: Hello) -> None:
        """Add a worker; the same process may say Hello again and keeps its requests."""
        known = self._hub.peers.rewards.get(hello.name)
        if known is None or known.hello.pid != hello.pid:
            self.forget_worker(hello.name)
            self._hub.peers.rewards[hello.name] = RewardPeer(hello)

    def forget_worker(self, name: str) -> None:
        """Remove a worker that is gone, and queue its requests again."""
        worker = self._hub.peers.rewards.pop(name, None)
        if worker:
            for ask in sorted(worker.scoring, reverse=True):
                self._queues[ask.source].appendleft(ask)
            self._audits.requeue(worker)

    def queues(self) -> dict[str, int]:
        """Return the number of waiting requests by source, in flight and audits included."""
        out, audits = self.in_flight(), self._audits.queued()
        return {
            name: len(queue) + out[name] + audits.get(name, 0)
            for name, queue in self._queues.items()
        }

    def in_flight(self) -> dict[str, int]:
        """Return the number of requests in flight by source, without audits."""
        workers = self._hub.peers.rewards.values()
        return {name: sum(worker.in_flight[name] for worker in workers) for name in self._sources}

    def waiting(self) -> int:
        """Return the number of missing rewards; nothing waits for an audit."""
        queued = sum(len(queue) for queue in self._queues.values())
        out = sum(len(worker.scoring) for worker in self._hub.peers.rewards.values())
        return queued + out + len(self._outcomes)

    async def dispatch(self) -> None:
        """Send the queues to workers, at most two batches of a source in flight per child."""
        if (lines := self._hub.lines) is not None:
            self._queues[lines.source].extend(ScoreKey(i, lines.source) for i in lines.wanted())
        if not any(self._queues.values()) and not self._audits.waits:
            return
        size = self._hub.config.reward.batch
        idlest_first = sorted(
            self._hub.peers.rewards.items(), key=lambda pair: pair[1].in_flight.total()
        )
        for place, (name, worker) in enumerate(idlest_first):
            for source, queue in self._queues.items():
                if not self._hub.rankers.ready(source):
                    continue
                room = 2 * size * self._sources[source].children - worker.in_flight[source]
                share = -(-len(queue) // (len(idlest_first) - place))
                asks = [queue.popleft() for _ in range(min(room, size, share))]
                await self._send(name, [i for ask in asks for i in self._asking(worker, ask)])
            await self._send(name, self._audits.items(worker, self._items.whole))

    async def _send(self, name: str, items: list[ScoreItem]) -> None:
        """Send items to a worker; one that is longer than any message gets no score."""
        for part in in_parts(items, self._hub.config.transport.request_bytes):
            try:
                await self._hub.send(name, ScoreRequest(items=part))
            except ProtocolError as error:
                one = part[0]  # Several are never too long together.
                score = Score(
                    trajectory_id=one.trajectory_id, source=one.source, audit=one.audit,
                    status="invalid", error=f"{error} (transport.max_message_mib)",
                )  # fmt: skip
                self._rewarded = self.receive(name, Scores(scores=[score]))

    def _asking(self, worker: RewardPeer, ask: ScoreKey) -> Iterator[ScoreItem]:
        """Yield the item of a request to a worker; none where it is obsolete."""
        trajectory = self._hub.account.trajectories.get(ask.trajectory_id)
        lines = self._hub.lines
        if lines is not None and ask.source == lines.source:
            ends = lines.question(trajectory) if trajectory else []
            if trajectory is None or not ends:
                lines.drop(ask.trajectory_id)
                return
            yield self._items.lines(trajectory, ask.source, ends)
        elif trajectory is None:
            return
        elif self._sources[ask.source].unit == "group":
            siblings = self._siblings(ask)
            model = self._hub.rankers.choose(ask, siblings)
            yield self._items.group(siblings, ask.source, model)
        else:
            model = self._hub.rankers.choose(ask, [trajectory])
            yield self._items.whole(trajectory, ask.source, model)
        worker.asked(ask)

    def _siblings(self, ask: ScoreKey) -> list[Trajectory]:
        """Return the members of a group that its source scores: all that have an end."""
        group_id = self._hub.account.trajectories[ask.trajectory_id].group_id
        return [member for member in self._hub.account.members(group_id) if member.complete]

    # -- scores -----------------------------------------------------------------------------------

    def receive(self, name: str, message: Scores) -> list[Trajectory]:
        """Take requested scores; return the trajectories that have their reward now."""
        worker = self._hub.peers.rewards.get(name)
        touched: list[Trajectory] = []
        for score in map(sound_score, message.scores):
            if score.audit:
                self._audits.receive(worker, score)
                continue
            ask = ScoreKey(score.trajectory_id, score.source)
            if worker is None or ask not in worker.scoring:
                # A worker may answer requests of the time before it was lost.
                self._hub.rejections.count("score_not_asked")
                continue
            worker.answered(ask)
            if ask.trajectory_id not in self._hub.account.trajectories:
                continue  # Of a branch whose evaluation is over.
            outdated = self._hub.rankers.is_outdated(ask)
            # The version that scored a part of a group scores the rest.
            if outdated and not any(t.reward_model for t in self._siblings(ask)):
                self._hub.rejections.count("score_outdated")
                self._queues[ask.source].appendleft(ask)
                continue
            touched += self._take(ask, score)
        self._hub.settle_windows(touched)
        if touched:
            self._hub.progress("rewards")
        return self._pop_rewarded()

    def expire(self) -> list[Trajectory]:
        """Give up lines whose deadline has passed; return trajectories that now have their
        reward."""
        lines = self._hub.lines
        late = [] if lines is None else lines.expired()
        for trajectory in late:
            self._record_outcome(trajectory)
        self._hub.settle_windows(late)
        if late:
            self._hub.progress("rewards")
        return self._pop_rewarded()

    def _pop_rewarded(self) -> list[Trajectory]:
        """Pop the trajectories that have their reward."""
        rewarded, self._rewarded = self._rewarded, []
        return rewarded

    def _take(self, ask: ScoreKey, score: Score) -> list[Trajectory]:
        """Note a score, and return the trajectories that it changes."""
        if (lines := self._hub.lines) is not None and ask.source == lines.source:
            return self._take_lines(lines, ask, score)
        if self._sources[ask.source].unit == "group":
            return self._take_group(ask, score)
        self._count(ask, score)
        trajectory = self._hub.account.trajectories[ask.trajectory_id]
        self._keep_outcome(trajectory, ask.source, score)
        return [trajectory]

    def _take_lines(self, lines: LineScoring, ask: ScoreKey, score: Score) -> list[Trajectory]:
        score = lines.checked(score)
        self._count(ask, score)
        trajectory = self._hub.account.trajectories[ask.trajectory_id]
        settles = ask.trajectory_id in self._outcomes
        self._hub.record_event(lines.answered(trajectory, score, settles=settles))
        self._record_outcome(trajectory)
        return [trajectory]

    def _take_group(self, ask: ScoreKey, score: Score) -> list[Trajectory]:
        self._asked_groups.discard(ask)
        siblings = self._siblings(ask)
        score = _of_siblings(score, siblings)
        self._count(ask, score)
        each = score.siblings if score.status == "ok" else [score] * len(siblings)
        new = [(t, own) for t, own in zip(siblings, each, strict=True) if t.reward_status is None]
        for trajectory, own in new:
            self._keep_outcome(trajectory, ask.source, own)
        return [trajectory for trajectory, _ in new]

    def _keep_outcome(self, trajectory: Trajectory, source: str, score: Score) -> None:
        """Record the score of a whole answer, or keep it until its lines are scored."""
        self._outcomes[trajectory.trajectory_id] = msgspec.structs.replace(score, source=source)
        self._record_outcome(trajectory)

    def _record_outcome(self, trajectory: Trajectory) -> None:
        """Record a kept outcome, if there is one and no line is missing any more."""
        lines, score = self._hub.lines, self._outcomes.get(trajectory.trajectory_id)
        if score is None:
            return
        ok, rewards, reward = score.status == "ok", list[Reward](), score.reward
        at_end = Reward(score.reward, trajectory.last_sampled)
        if ok and trajectory.steps:
            # The rewards of its environment stand at its turns already.
            rewards = [at_end]
            reward += sum(step.reward for step in trajectory.steps)
        if ok and lines is not None and trajectory.purpose == "train":
            if lines.awaits(trajectory):
                return
            rewards = [*lines.settle(trajectory, passed=score.correct), at_end]
        del self._outcomes[trajectory.trajectory_id]
        arrived = RewardArrived(
            trajectory_id=trajectory.trajectory_id,
            status=score.status,
            reward=reward if ok else None,
            rewards=rewards,
            correct=score.correct if ok else None,
            parts=score.parts,
            seconds=score.seconds,
            error=score.error,
            source=score.source,
            model=score.model,
        )
        self._hub.record_event(arrived)
        self._rewarded.append(trajectory)
        if trajectory.purpose == "train":
            self._hub.monitors.scored(trajectory, arrived)
            self.spread.add(arrived.source, self._hub.account.members(trajectory.group_id))
            self._audits.add(trajectory)

    def _count(self, ask: ScoreKey, score: Score) -> None:
        """Count and report failures in a row; too many of one source end the run."""
        source, ok = ask.source, score.status == "ok"
        self._failures_in_a_row[source] = 0 if ok else self._failures_in_a_row[source] + 1
        if ok:
            return
        named = f" by {source}" if source != DEFAULT_SOURCE else ""
        self._hub.incident(
            "warning",
            "reward_failed",
            f"{_SCORED[self._sources[source].unit]} {ask.trajectory_id}: {score.status}{named} "
            f"after {score.seconds:.1f} s{': ' + score.error if score.error else ''}",
        )
        failures = self._failures_in_a_row[source]
        if failures >= self._hub.config.reward.max_consecutive_failures:
            self._hub.failed = self._hub.failed or (
                f"{failures} rewards{named} in a row failed; the last: {score.status} "
                f"({score.error or 'no reason given'})"
            )


def _of_siblings(score: Score, siblings: Sequence[Trajectory]) -> Score:
    """Return a group's score, `invalid` where its siblings are not the requested ones."""
    given = [sibling.trajectory_id for sibling in score.siblings]
    if score.status != "ok" or given == [sibling.trajectory_id for sibling in siblings]:
        return score
    error = f"{len(given)} scores, which are not those of the {len(siblings)} siblings"
    return msgspec.structs.replace(score, status="invalid", siblings=[], error=error)
