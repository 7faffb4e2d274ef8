"""Episodes of environments: turns out, answers in.

In: trajectories whose turn ended, StepReplies. Out: StepRequests; an environment's answer as a
chunk of its own, then the end of the episode and its reward where it is over. Promises: nothing
follows from an answer before it is recorded; an answer counts once, even if it is requested again;
a worker that is lost costs only time, because another one rebuilds its episodes from their seeds
and turns and has to answer the same; a turn that cannot be answered ends its episode as failed,
with the reason, and never as a reward of 0.
"""

import json
import math
from collections import deque

import numpy as np

from coordinator.connections.message_checks import LARGEST_REWARD, end_record
from coordinator.connections.peers import EnvironmentPeer
from coordinator.dispatch.message_rendering import MessageRenderer, RenderedMessages
from coordinator.dispatch.prompts import Prompts
from coordinator.hub import Hub
from coordinator.rollouts.limits import limit_of_episode
from headrace.config.sections.reward import DEFAULT_SOURCE
from headrace.errors import UserError
from headrace.protocol.messages.control import Hello, StepReplies, StepRequest
from headrace.protocol.messages.environments import PolicyTurn, Step, StepAsk, StepReply
from headrace.protocol.records import record_types as r
from headrace.protocol.token_spans import EnvironmentStep, Piece, Reward, Streams
from headrace.protocol.transport.codec import in_parts
from headrace.trajectory.trajectories import Trajectory, issued_again

NO_LEASE = -1
BRANCH_OF = "environment.branch_of"
"""Key in the info of a group that is a branch, for the trajectory that it left."""
NOTHING = RenderedMessages(np.zeros(0, np.int32), 0, [])
MOST_OUT = 64
"""Maximum number of episodes that one worker is asked about at a time."""


def branch_of(group: r.GroupIssued) -> int:
    """Return the trajectory that this group's is a branch of; -1: it is none."""
    # Rows that were exported name the key, too; a branch alone has no position.
    return int(json.loads(group.info)[BRANCH_OF]) if group.position < 0 else -1


class EpisodeManager:
    """Step requests to environment workers, and the records of their answers."""

    def __init__(self, hub: Hub, prompts: Prompts) -> None:
        assert hub.config.environment is not None
        self._hub, self._prompts, self._config = hub, prompts, hub.config.environment
        self._rendering: dict[bool, MessageRenderer] = {}
        self._queue: deque[int] = deque()
        self._workers = hub.peers.environments
        self._branches: dict[int, list[int]] = {}
        """Branches by trajectory, where its agent has rewritten its history."""
        self._failures = self._next_loss = 0
        """Episodes in a row that failed; the first trajectory whose loss counts among them."""
        hub.on_record = self._follow

    # -- workers ----------------------------------------------------------------------------------

    def join(self, hello: Hello) -> None:
        """Add a worker; the same process may say Hello again and keeps its requests."""
        known = self._workers.get(hello.name)
        if known is None or known.hello.pid != hello.pid:
            self.forget_worker(hello.name)
            self._workers[hello.name] = EnvironmentPeer(hello)

    def forget_worker(self, name: str) -> None:
        """Remove a worker that is gone, and give its unanswered requests to others."""
        worker = self._workers.pop(name, None)
        if worker is not None:
            self._queue.extendleft(reversed(worker.asked))

    # -- out --------------------------------------------------------------------------------------

    def _follow(self, record: r.Record) -> None:
        """Queue trajectories that begin, or have ended a turn, for the environment."""
        match record:
            case r.GroupIssued(trajectory_ids=keys, group_id=group_id):
                self._queue.extend(keys)
                self._count(self._hub.account.groups[group_id])
            case r.ChunkArrived(trajectory_id=key, finish="stop"):
                self._queue.append(key)
            case r.TrajectoryEnded(trajectory_id=key):
                self._branches.pop(key, None)
                if not any(key in worker.knows for worker in self._workers.values()):
                    # Where its origin alone was asked about, an agent waits for it.
                    account = self._hub.account
                    key = branch_of(account.groups[account.trajectories[key].group_id])
                self._forget(key)

    def _forget(self, trajectory_id: int) -> None:
        """Have the worker that knows an episode end it."""
        for worker in self._workers.values():
            if trajectory_id in worker.knows:
                worker.knows.discard(trajectory_id)
                worker.ended.append(trajectory_id)

    def restore(self) -> None:
        """After a restart, repeat unanswered requests, and end episodes that are over."""
        for group in self._hub.account.groups.values():
            self._count(group)
        for trajectory in list(self._hub.account.trajectories.values()):
            if trajectory.paused and not trajectory.ended:
                self._queue.append(trajectory.trajectory_id)
            if not trajectory.ended and not trajectory.paused and trajectory.steps:
                self._end_if_over(trajectory)
            elif trajectory.complete and trajectory.reward_status is None:
                self._reward(trajectory)

    def waiting(self) -> int:
        """Return the number of trajectories that wait for an environment."""
        return len(self._queue) + sum(len(worker.asked) for worker in self._workers.values())

    async def dispatch(self) -> None:
        """Send the queue to workers, each episode to the one that has it, if it has room."""
        out: dict[str, list[StepAsk]] = {}
        known, early = self._hub.account.trajectories, list[int]()
        while self._queue and (free := self._with_room()):
            key = self._queue.popleft()
            trajectory = known.get(key)
            if trajectory is None or trajectory.ended or not trajectory.paused:
                continue
            name = next((n for n in free if key in self._workers[n].knows), free[0])
            name = self._home(trajectory) or name
            worker = self._workers[name]
            origin = known.get(first := branch_of(self._hub.account.groups[trajectory.group_id]))
            if origin and not (origin.ended or origin.paused or first in worker.knows):
                early.append(key)  # Its origin's agent answers, which plays when that is asked.
                continue
            if key not in worker.knows:
                self._forget(key)
            out.setdefault(name, []).append(self._ask(trajectory, fresh=key not in worker.knows))
            worker.asked[key] = len(trajectory.steps)
            worker.knows.add(key)
        self._queue.extend(early)
        for name, worker in self._workers.items():
            asks, ended = out.get(name, []), worker.ended
            if asks or ended:
                worker.ended = []
                most = self._hub.config.transport.request_bytes
                for part in in_parts(asks, most) if asks else [[]]:
                    await self._hub.send(name, StepRequest(asks=part, ended=ended))
                    ended = []

    def _with_room(self) -> list[str]:
        """Return workers with room, the idlest first; waits for branches take no room."""
        asked = {
            name: len(worker.asked.keys() - self._branches.keys())
            for name, worker in self._workers.items()
        }
        return sorted((n for n, out in asked.items() if out < MOST_OUT), key=asked.__getitem__)

    def _home(self, trajectory: Trajectory) -> str | None:
        """Return the worker of a trajectory's branches or origin, whose agent plays all."""
        first = branch_of(self._hub.account.groups[trajectory.group_id])
        first = trajectory.trajectory_id if first < 0 else first
        family = {first, *self._branches.get(first, ())}
        if len(family) == 1:
            return None
        return next((n for n, w in self._workers.items() if not w.knows.isdisjoint(family)), None)

    def _ask(self, trajectory: Trajectory, *, fresh: bool) -> StepAsk:
        account, count = self._hub.account, len(trajectory.steps)
        group, is_agent = account.groups[trajectory.group_id], self._config.is_agent
        begun = map(account.trajectories.get, self._branches.get(trajectory.trajectory_id, ()))
        said = json.loads(group.messages) if is_agent and group.messages else group.prompt
        row = {"id": group.prompt_id, "prompt": said, "answer": group.answer}
        if group.messages.startswith("[") and not is_agent:
            row["messages"] = json.loads(group.messages)
        return StepAsk(
            trajectory_id=trajectory.trajectory_id,
            turn=count,
            turns=[
                self._turn(trajectory, number, whole=is_agent)
                for number in range(0 if fresh else max(0, count - 1), count)
            ],
            known=[step.digest for step in trajectory.steps] if fresh else [],
            row=json.dumps(json.loads(group.info) | row),
            seed=account.members(trajectory.group_id)[0].seed,
            branch_of=branch_of(group),
            # Played again, an agent would wait for the turns of one that has ended.
            branches=[one.trajectory_id for one in begun if one and not one.ended],
        )

    def _turn(self, trajectory: Trajectory, number: int, *, whole: bool) -> PolicyTurn:
        places = trajectory.turn_positions(number)
        ids = trajectory.tokens[places]
        text = self._prompts.decode(ids)
        if not whole:
            return PolicyTurn(text, ids.size)
        before = trajectory.opening.size + int(places[0] if places.size else trajectory.length)
        logprobs = trajectory.logprobs[places].tolist()
        return PolicyTurn(text, ids.size, ids.tolist(), logprobs, before)

    # -- in ---------------------------------------------------------------------------------------

    def receive(self, name: str, message: StepReplies) -> list[Trajectory]:
        """Record answers, and return the trajectories that ended by them."""
        worker, touched = self._workers[name], []
        for reply in message.replies:
            trajectory = self._hub.account.trajectories.get(reply.trajectory_id)
            if worker.asked.get(reply.trajectory_id) != reply.turn:
                text = f"turn {reply.turn} of trajectory {reply.trajectory_id} was not asked for"
                self._hub.rejections.add(name, "not_asked", text)
                continue
            del worker.asked[reply.trajectory_id]
            if trajectory is None or trajectory.ended or not trajectory.paused:
                self._forget(reply.trajectory_id)  # Its evaluation may be over.
                continue
            if reply.status == "branched":
                self._branch(trajectory)
            elif len(trajectory.steps) == reply.turn:
                self._take(name, trajectory, reply)
                touched.append(trajectory)
        self._hub.settle_windows(touched)
        if touched:
            self._hub.progress("environments")
        return [trajectory for trajectory in touched if trajectory.ended]

    def _branch(self, trajectory: Trajectory) -> None:
        """Begin a branch, where the agent has rewritten its history.

        It is a trajectory in a group of its own, and the same agent is asked about both."""
        state, group = self._hub.state, self._hub.account.groups[trajectory.group_id]
        info = json.loads(group.info) | {BRANCH_OF: trajectory.trajectory_id}
        key = state.next_trajectory
        self._queue.append(trajectory.trajectory_id)
        record = issued_again(
            group, group_id=state.next_group, position=-1, info=json.dumps(info),
            prompt_ids=trajectory.opening, trajectory_ids=[key],
            seeds=[(trajectory.seed + key) % 2**31],
        )  # fmt: skip
        self._hub.record_event(record)

    def _count(self, group: r.GroupIssued) -> None:
        """Count a branch as in play at once, because its origin waits for it."""
        if (first := branch_of(group)) >= 0:
            self._branches.setdefault(first, []).extend(group.trajectory_ids)
            own = self._hub.account.members(group.group_id)
            self._hub.scheduler.issued(t for t in own if t.purpose == "train" and not t.ended)

    def _take(self, name: str, trajectory: Trajectory, reply: StepReply) -> None:
        step, problem = reply.step, None
        is_chat = self._prompts.is_chat(self._hub.account.groups[trajectory.group_id].messages)
        if reply.status != "ok":
            problem = f"environment_{reply.status}: {reply.error}"
        elif not (math.isfinite(step.reward) and abs(step.reward) <= LARGEST_REWARD):
            problem = f"environment_invalid: the reward is {step.reward:g}"
        elif not all(map(math.isfinite, step.metrics.values())):
            problem = "environment_invalid: a metric is not finite"
        elif not (step.done or reply.turn == 0 or any(is_chat or m.content for m in step.messages)):
            problem = "environment_invalid: the episode goes on, and nothing was said"
        said = NOTHING
        if problem is None and not step.done:
            try:
                said = self._render(trajectory, step, is_chat=is_chat)
            except UserError as error:
                problem = f"environment_invalid: {error}"
        if problem is not None:
            # A dead process loses all its episodes at once: of those in play then, one counts.
            first = self._next_loss if reply.status in ("lost", "diverged") else 0
            if trajectory.trajectory_id >= first:
                self._failures += 1
                self._next_loss = self._hub.state.next_trajectory
            self._fail(trajectory, problem)
            return
        self._record(name, trajectory, reply, said)
        self._end_if_over(trajectory)

    def _render(self, trajectory: Trajectory, step: Step, *, is_chat: bool) -> RenderedMessages:
        """Render the messages behind a turn, or at first the prompt.

        In a chat the frame alone is read, too: of a silent reset, or a tool's empty result."""
        is_first, is_agent = not trajectory.steps, self._config.is_agent
        if not step.messages and not (is_chat and is_first):
            return NOTHING
        if is_chat not in self._rendering:
            self._rendering[is_chat] = self._prompts.rendering(is_chat=is_chat)
        room = self._config.max_inserted - (trajectory.length - trajectory.sampled)
        if self._config.max_context is not None:
            used = trajectory.opening.size + trajectory.length
            room = min(room, self._config.max_context - used - 1)
        found = self._rendering[is_chat].ids(
            step.messages, most=max(0, room), is_first=is_first,
            whole=is_first and is_agent, tools=step.tools,
            behind=-1 if is_first else int(trajectory.tokens[-1]),
        )  # fmt: skip
        if found is None or found.cut:
            text = f"trajectory {trajectory.trajectory_id}: its environment says more than that"
            limits = "environment.max_inserted, environment.max_context"
            self._hub.incident("info", "environment_cut", f"{text} ({limits})")
            found = NOTHING if is_agent else found  # An agent's request is not answered in part.
        return found or NOTHING

    def _record(
        self, name: str, trajectory: Trajectory, reply: StepReply, said: RenderedMessages
    ) -> None:
        """Record an answer with all its data as one chunk."""
        step, start = reply.step, trajectory.length
        pieces, at = [], start
        for source, role, size in said.pieces:
            pieces.append(Piece(source, role, reply.turn, at, at := at + size))
        paid = step.reward and trajectory.spans
        self._hub.record_event(
            r.ChunkArrived(
                trajectory_id=trajectory.trajectory_id,
                lease_id=NO_LEASE,
                chunk_index=trajectory.next_chunk,
                generator=name,
                start=start,
                token_ids=said.ids,
                logprobs=np.zeros(said.ids.size, np.float32),
                spans=[],
                streams=Streams(
                    pieces=pieces,
                    rewards=[Reward(step.reward, trajectory.last_sampled)] if paid else [],
                    step=EnvironmentStep(
                        turn=reply.turn,
                        digest=step.digest,
                        reward=step.reward,
                        done=step.done,
                        success=step.success,
                        metrics=step.metrics,
                        act=step.act,
                        seconds=reply.seconds,
                        tools=step.tools,
                    ),
                ),
            )
        )

    # -- the end of an episode --------------------------------------------------------------------

    def _end_if_over(self, trajectory: Trajectory) -> None:
        """End an episode where its environment does, or a limit: before a first turn it failed."""
        if trajectory.steps[-1].done:
            self._end(trajectory, "finished")
        elif (limit := limit_of_episode(trajectory, self._hub.config)) is not None:
            if trajectory.sampled:
                self._end(trajectory, "truncated", limit)
            else:
                self._failures += 1
                self._fail(trajectory, f"{limit}: it leaves no room for a turn")

    def end(self, trajectories: list[Trajectory]) -> None:
        """Note trajectories that a limit of tokens or a failure ended.

        Those that were cut short have the reward that they had earned so far."""
        cut_short = [trajectory for trajectory in trajectories if trajectory.complete]
        for trajectory in cut_short:
            self._reward(trajectory)
        self._hub.settle_windows(cut_short)

    def _end(self, trajectory: Trajectory, status: r.TrajectoryStatus, error: str = "") -> None:
        self._hub.record_event(end_record(trajectory, status, error or None))
        if status != "failed":
            self._reward(trajectory)

    def _fail(self, trajectory: Trajectory, problem: str) -> None:
        hub, text = self._hub, f"trajectory {trajectory.trajectory_id}: {problem}"
        hub.incident("warning", "environment_failed", text)
        self._end(trajectory, "failed", problem)
        if (count := self._failures) >= hub.config.reward.max_consecutive_failures:
            hub.failed = hub.failed or f"{count} episodes in a row failed; the last: {problem}"

    def _reward(self, trajectory: Trajectory) -> None:
        """Record the sum of an episode's rewards, paid at its turns, unless it is scored."""
        self._failures = 0
        if self._config.scored:
            return
        total = sum(step.reward for step in trajectory.steps)
        told = trajectory.steps[-1].success if trajectory.steps else None
        arrived = r.RewardArrived(
            trajectory_id=trajectory.trajectory_id,
            status="ok",
            reward=total,
            rewards=[Reward(0.0, trajectory.last_sampled)],
            correct=total > 0 if told is None else told,
            seconds=sum(step.seconds for step in trajectory.steps),
            source=DEFAULT_SOURCE,
        )
        self._hub.record_event(arrived)
        if trajectory.purpose == "train":
            self._hub.monitors.scored(trajectory, arrived)
