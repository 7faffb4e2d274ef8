"""Self-test before training: weights and an answer per generator, and one reward.

In: generators that join, their first weights and answers, a score. Out: leases and a score request
of the test's own, or the name of the first process that missed its deadline. Promises: journal
and SQL have incidents of it and nothing else, the ledger nothing; a run begins to train when all is
well, or ends with the first cause; a generator that joins later gets no lease before its own test,
and its failure does not end the run. The reward may have any value, or fail: the test only needs
some answer of the reward worker.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from msgspec.structs import replace

from coordinator.connections.message_checks import (
    TokenLimits,
    arrival,
    chunk_problem,
    cut,
    end_record,
)
from coordinator.connections.peers import GeneratorPeer, RewardPeer
from coordinator.dispatch.leases import GrantedLease
from coordinator.dispatch.prompts import Prompts
from coordinator.hub import Hub
from coordinator.scoring.score_items import ScoreItems
from headrace.protocol.messages import control as m
from headrace.protocol.records.record_types import GroupIssued, TrajectoryStatus
from headrace.trajectory.account import Account
from headrace.trajectory.trajectories import Trajectory

FIRST_ID = 2**52
"""First id of the test's groups, trajectories and leases; no run comes so far."""
TOKENS = 4
"""Maximum number of tokens of an answer."""
KEY = "transport.self_test_s"
FEW, RESTS = 32, 20
"""With more generators than the first, rest the second times as long as the last look at them took:
one at every message of a thousand that join would cost minutes."""


@dataclass
class GeneratorCheck:
    """Test of one generator: an account of its answer, and the time of its request."""

    generator: GeneratorPeer
    account: Account = field(default_factory=lambda: Account(has_value=False))
    trajectory_id: int = -1
    """Id of the answer; -1 until the generator has weights and a lease."""
    since: float = field(default_factory=time.monotonic)

    @property
    def trajectory(self) -> Trajectory:
        """The generator's answer."""
        return self.account.trajectories[self.trajectory_id]


class SelfTest:
    """See the module's docstring."""

    def __init__(self, hub: Hub, prompts: Prompts, source_of: Callable[[GroupIssued], str]) -> None:
        self._hub, self._prompts, self._source_of = hub, prompts, source_of
        self._timeout_s = hub.config.transport.self_test_s or 0.0
        self._limits = TokenLimits(TOKENS, prompts.vocabulary)
        self._checks: dict[str, GeneratorCheck] = {}
        self._group: GroupIssued | None = None
        self._next_id, self._next_look = FIRST_ID, 0.0
        self._answered: GeneratorCheck | None = None
        """Test whose answer is to get a reward."""
        self._asked: tuple[str, RewardPeer, float] | None = None
        """Name and process of the reward worker that was asked, and the time."""
        skips = not hub.config.self_tests or hub.state.given > 0
        self._rewarded = skips or not hub.config.is_scored
        self.is_over = skips
        """True once the run has begun to train, or where it did before."""

    def passed(self) -> bool:
        """Return whether training may begin."""
        if not self._checks and self._rewarded:
            self.is_over = True
        return self.is_over

    def waits(self) -> list[str]:
        """Return its waits, in words, those for generators that failed late included."""
        generators = self._hub.peers.generators.items()
        asked = [name for name, one in generators if one.loaded >= 0 and not one.tested]
        words = [f"{name} to answer the prompt of the self-test" for name in asked]
        if self._asked is not None and not self._rewarded:
            words.append(f"{self._asked[0]} to score the answer of the self-test")
        return words

    # -- generators -------------------------------------------------------------------------------

    def join(self, name: str) -> None:
        """Begin the test of a new generator."""
        generator, check = self._hub.peers.generators[name], self._checks.get(name)
        if not generator.tested and (check is None or check.generator is not generator):
            self._checks[name] = GeneratorCheck(generator)

    async def advance(self) -> None:
        """Send the requests that can be sent, and fail processes that are late."""
        now = time.monotonic()
        if len(self._checks) <= FEW or now >= self._next_look:
            await self._look(now)
            self._next_look = now + RESTS * (time.monotonic() - now)
        await self._ask_reward(now)

    async def _look(self, now: float) -> None:
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
                self._check_deadline(name, what, check.since, now)

    async def _ask(self, name: str, check: GeneratorCheck) -> None:
        with self._hub.drawing_prompts():
            await self._draw_group()
        if self._group is None:
            return  # No image comes, or the disk takes none, now.
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
            # The prompt of an agent's policy is not known before the agent asks.
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
        """Draw the first prompt of the run, which the run itself takes later on."""
        if self._group is None:
            skipped, state = self._prompts.skipped, self._hub.state
            try:
                group = self._prompts.next_group(state.position, FIRST_ID, FIRST_ID, state.mixture)
            finally:
                self._prompts.skipped = skipped
            await self._hub.store_images(self._prompts.media)
            self._group = replace(group, seeds=group.seeds[:1])

    def not_loaded(self, name: str, error: str) -> None:
        """Fail a generator that could not load its first weights.

        One that joined late tries again: the learner that published them may be gone."""
        check = self._checks.get(name)
        if check is not None and check.generator.loaded < 0 and not self.is_over:
            self._fail(name, f"{name} could not load its first weights: {cut(error)}")

    async def receive(self, name: str, message: m.Chunks) -> m.Chunks:
        """Take the test's chunks, and return the rest."""
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
            status: TrajectoryStatus = "finished" if chunk.finish == "stop" else "truncated"
            check.account.apply(end_record(check.trajectory, status))
            del self._checks[name]
            check.generator.passed()
            self._answered = self._answered or check

    # -- the reward -------------------------------------------------------------------------------

    async def _ask_reward(self, now: float) -> None:
        """Request the reward of the first answer, from another worker where one is lost."""
        if self._rewarded or self._answered is None:
            return
        workers = self._hub.peers.rewards
        if self._asked is not None and workers.get(self._asked[0]) is self._asked[1]:
            name, _, asked_at = self._asked
            self._check_deadline(name, "score an answer", asked_at, now)
        elif workers:
            name = min(workers)
            self._asked = name, workers[name], now
            await self._hub.send(name, m.ScoreRequest(items=[self._item(self._answered)]))

    def _item(self, check: GeneratorCheck) -> m.ScoreItem:
        reward, answer = self._hub.config.reward, check.trajectory
        source = self._source_of(check.account.groups[answer.group_id])
        items = ScoreItems(reward, check.account, self._prompts)
        if reward.each()[source].unit == "group":
            return items.group([answer] * self._hub.config.schedule.num_generations, source)
        return items.whole(answer, source)

    def scored(self, message: m.Scores) -> m.Scores:
        """Take the test's scores, and return the rest."""
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

    def _check_deadline(self, name: str, what: str, since: float, now: float) -> None:
        if now - since > self._timeout_s:
            self._fail(name, f"{name} did not {what} within {self._timeout_s:g} s ({KEY})")

    def _fail(self, name: str, text: str) -> None:
        """End the run, or go on without a generator that joined late."""
        self._checks.pop(name, None)
        text = f"self-test: {text}"
        if self.is_over:
            self._hub.incident("error", "self_test_failed", text)
        else:
            self._hub.failed = self._hub.failed or text
