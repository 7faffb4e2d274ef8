"""The self-test: before training each generator loads weights and answers a prompt, and one answer
gets its reward.

Comes in: generators that join, their first weights and answers, a score. Goes out: leases and a
score request that no run has beside these, or the first part that did not come in its time, by
name. Promises: nothing of it is in journal, ledger or SQL; a run begins to train when all is well,
or ends with the first cause; a generator that joins later gets no lease before its own test, and
ends nothing. What a reward function says of the answer is the rewards' business: here it counts
that it says something.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from msgspec.structs import replace

from coordinator.connections.message_checks import TokenLimits, arrival, chunk_problem, cut
from coordinator.connections.peers import GeneratorPeer
from coordinator.dispatch.leases import GrantedLease
from coordinator.dispatch.prompts import Prompts
from coordinator.hub import Hub
from coordinator.scoring.score_items import ScoreItems
from headrace.protocol.messages import control as m
from headrace.protocol.records.record_types import GroupIssued, TrajectoryEnded
from headrace.trajectory.account import Account
from headrace.trajectory.trajectories import Group, Trajectory

FIRST_ID = 2**52
"""Ids of groups, trajectories and leases are from here on; no run comes so far."""
TOKENS = 4
"""Of an answer, at most."""
KEY = "transport.self_test_s"


@dataclass
class GeneratorCheck:
    """Of one generator: an account that holds its answer alone, and since when it is waited for."""

    generator: GeneratorPeer
    account: Account = field(default_factory=lambda: Account(has_value=False))
    trajectory_id: int = -1
    """-1 until it has weights and is asked."""
    since: float = field(default_factory=time.monotonic)

    @property
    def trajectory(self) -> Trajectory:
        """Its answer."""
        return self.account.trajectories[self.trajectory_id]


class SelfTest:
    """See the module's docstring."""

    def __init__(self, hub: Hub, prompts: Prompts, source_of: Callable[[Group], str]) -> None:
        self._hub, self._prompts, self._source_of = hub, prompts, source_of
        self._timeout_s = hub.config.transport.self_test_s or 0.0
        self._limits = TokenLimits(TOKENS, prompts.vocabulary)
        self._checks: dict[str, GeneratorCheck] = {}
        self._group: GroupIssued | None = None
        self._next_id = FIRST_ID
        self._answered: GeneratorCheck | None = None
        """Whose answer is to get a reward."""
        self._asked: tuple[str, float] | None = None
        """The reward worker, and when."""
        skips = not hub.config.self_tests or hub.state.given > 0
        self._rewarded = skips or not hub.config.is_scored
        self._is_over = skips
        """The run has begun to train, or did before."""

    def passed(self) -> bool:
        """Whether nothing stands between the start and training."""
        if not self._checks and self._rewarded:
            self._is_over = True
        return self._is_over

    def waits(self) -> list[str]:
        """What it waits for, in words."""
        asked = [name for name, check in self._checks.items() if check.trajectory_id >= 0]
        words = [f"{name} to answer the prompt of the self-test" for name in asked]
        if self._asked is not None and not self._rewarded:
            words.append(f"{self._asked[0]} to score the answer of the self-test")
        return words

    # -- generators -------------------------------------------------------------------------------

    def join(self, name: str) -> None:
        """A generator is here."""
        generator, check = self._hub.peers.generators[name], self._checks.get(name)
        if not generator.tested and (check is None or check.generator is not generator):
            self._checks[name] = GeneratorCheck(generator)

    async def advance(self) -> None:
        """Ask who can be asked, and see who is late."""
        now = time.monotonic()
        for name, check in list(self._checks.items()):
            generator = check.generator
            has_weights, knows_weights = generator.loaded >= 0, bool(generator.noticed)
            if self._hub.peers.generators.get(name) is not generator:
                del self._checks[name]
            elif not (generator.hello.capacity and (has_weights or knows_weights)):
                check.since = now  # Its engine starts, or there are no weights yet.
            elif has_weights and check.trajectory_id < 0:
                await self._ask(name, check)
            else:
                what = "answer a prompt" if has_weights else "load its first weights"
                self._see_time(name, what, check.since, now, self._timeout_s)
        await self._ask_reward(now)

    async def _ask(self, name: str, check: GeneratorCheck) -> None:
        with self._hub.drawing_prompts():
            await self._draw_group()
        if self._group is None:
            return  # The disk takes no image now.
        config, key = self._hub.config, self._next_id
        self._next_id += 1
        group = replace(self._group, group_id=key, trajectory_ids=[key])
        check.account.apply(group)
        check.trajectory_id, check.since = key, time.monotonic()
        tokens = min(TOKENS, config.task.max_response_length)
        lease = m.Lease(
            lease_id=key,
            trajectory_id=key,
            purpose="train",
            # What an agent's policy reads is not known before the agent asks.
            prompt_ids=group.prompt_ids if group.prompt_ids.size else np.zeros(1, np.int32),
            prefix_ids=check.trajectory.tokens,
            seed=group.seeds[0],
            max_total=tokens,
            stop_at=tokens,
            window=tokens,
            next_chunk=0,
            temperature=config.generator.temperature,
            top_p=config.generator.top_p,
            top_k=config.generator.top_k,
            media=group.media,
        )
        await self._hub.send(name, m.Leases(leases=[lease]))

    async def _draw_group(self) -> None:
        """The first prompt of the run; the run itself takes it later on."""
        if self._group is None:
            skipped = self._prompts.skipped
            state = self._hub.state
            group = self._prompts.next_group(state.position, FIRST_ID, FIRST_ID, state.mixture)
            self._prompts.skipped = skipped
            await self._hub.store_images(self._prompts.media)
            self._group = replace(group, seeds=group.seeds[:1])

    def not_loaded(self, name: str, error: str) -> None:
        """A generator could not load weights. Once it has had some, that is no business of this."""
        check = self._checks.get(name)
        if check is not None and check.generator.loaded < 0:
            self._fail(name, f"{name} could not load its first weights: {cut(error)}")

    async def receive(self, name: str, message: m.Chunks) -> m.Chunks:
        """Take what belongs to the test; the rest."""
        own = [chunk for chunk in message.chunks if chunk.trajectory_id >= FIRST_ID]
        if not own:
            return message
        acked = [(chunk.trajectory_id, chunk.chunk_index) for chunk in own]
        await self._hub.send(name, m.ChunkAck(acked=acked))
        for chunk in own:
            check = self._checks.get(name)
            if check is not None and check.trajectory_id == chunk.trajectory_id:
                self._take(name, check, chunk)
        return m.Chunks(chunks=[c for c in message.chunks if c.trajectory_id < FIRST_ID])

    def _take(self, name: str, check: GeneratorCheck, chunk: m.TrajectoryChunk) -> None:
        if chunk.chunk_index < check.trajectory.next_chunk:
            return  # It was sent again.
        lease = GrantedLease(chunk.lease_id, name, training=True)
        problem = chunk.error if chunk.finish == "failed" else None
        problem = problem or chunk_problem(
            chunk, check.trajectory, lease, name, self._limits, self._hub.state.versions
        )
        if problem:
            self._fail(name, f"{name} could not answer a prompt: {cut(problem)}")
            return
        check.account.apply(arrival(name, chunk))
        if chunk.finish is not None:
            check.account.apply(
                TrajectoryEnded(
                    trajectory_id=check.trajectory_id,
                    status="finished" if chunk.finish == "stop" else "truncated",
                    length=check.trajectory.length,
                )
            )
            del self._checks[name]
            check.generator.passed()
            self._answered = self._answered or check

    # -- the reward -------------------------------------------------------------------------------

    async def _ask_reward(self, now: float) -> None:
        """Ask a worker for the reward of the first answer; another one where that one is lost."""
        if self._rewarded or self._answered is None:
            return
        workers = self._hub.peers.rewards
        if self._asked is not None and self._asked[0] in workers:
            name, asked_at = self._asked
            self._see_time(name, "score an answer", asked_at, now, self._timeout_s)
        elif workers:
            name = min(workers)
            self._asked = name, now
            await self._hub.send(name, m.ScoreRequest(items=[self._item(self._answered)]))

    def _item(self, check: GeneratorCheck) -> m.ScoreItem:
        reward, answer = self._hub.config.reward, check.trajectory
        source = self._source_of(check.account.groups[answer.group_id])
        items = ScoreItems(reward, check.account, self._prompts)
        if reward.each()[source].unit == "group":
            return items.group([answer] * self._hub.config.schedule.num_generations, source)
        return items.whole(answer, source)

    def scored(self, message: m.Scores) -> m.Scores:
        """Take what belongs to the test; the rest."""
        own = [score for score in message.scores if score.trajectory_id >= FIRST_ID]
        if not own:
            return message
        for score in own:
            if not self._rewarded and score.status != "ok":
                text = f"the answer of the self-test: {score.status}: {cut(score.error) or ''}"
                self._hub.incident("warning", "reward_failed", text)
            self._rewarded = True
        return m.Scores(scores=[s for s in message.scores if s.trajectory_id < FIRST_ID])

    # -- the first cause --------------------------------------------------------------------------

    def _see_time(self, name: str, what: str, since: float, now: float, limit_s: float) -> None:
        if now - since > limit_s:
            self._fail(name, f"{name} did not {what} within {limit_s:g} s ({KEY})")

    def _fail(self, name: str, text: str) -> None:
        """The run ends, or goes on without a generator that joined late."""
        self._checks.pop(name, None)
        text = f"self-test: {text}"
        if self._is_over:
            self._hub.incident("error", "self_test_failed", text)
        else:
            self._hub.failed = self._hub.failed or text
