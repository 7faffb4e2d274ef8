"""Turns out, answers in: a coordinator in this process, its journal real, its peers scripted."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from coordinator.connections.message_checks import end_record
from coordinator.dispatch.message_rendering import MessageRenderer
from coordinator.persistence.state import State
from coordinator.rollouts.episodes import BRANCH_OF, branch_of
from coordinator.run import build
from headrace.protocol.messages import control as m
from headrace.protocol.messages.environments import InsertedMessage, Step, StepAsk, StepReply
from headrace.protocol.records.record_types import ChunkArrived, Incident, TrajectoryEnded
from headrace.protocol.transport.endpoints import identity_of
from headrace.trajectory.trajectories import Trajectory, issued_again
from tests.byte_tokenizer import train_tokenizer
from tests.coordinator.stage import GENERATOR, LEARNER, MONITOR, REWARD, Stage
from tests.coordinator.test_loop import run_config

WORKERS = ("environment-0", "environment-1")
ROLES: dict[str, m.Role] = {
    GENERATOR: "generator",
    LEARNER: "learner",
    REWARD: "reward",
    MONITOR: "monitor",
    **dict.fromkeys(WORKERS, "environment"),
}
MORE = Step(messages=[InsertedMessage("tool", "12")], metrics={"calls": 1.0})


class EpisodeStage(Stage):
    """Environment workers instead of reward workers; `sent` has what they were asked, by name,
    `over` the episodes that they were told to end."""

    def __init__(
        self, folder: Path, workers: tuple[str, ...] = WORKERS[:1], **options: Any
    ) -> None:
        windows = {"across_turns": options.pop("across_turns", True)}
        config = run_config(
            reward=options.pop("reward", {}),
            environment={"name": "calculator"} | options,
            schedule={"window": 4, "batch_windows": 8, "max_staleness": 1} | windows,
            evaluation={"before": False, "after": False},
            algorithm={"advantages": {"kind": "egae"}, "value": {"warmup_updates": 0}},
        )
        super().__init__(config, folder)
        self.roles = {k: v for k, v in ROLES.items() if v != "environment" or k in workers}
        self.identities = {name: identity_of(name) for name in self.roles}
        self.sent: dict[str, list[StepAsk]] = {name: [] for name in workers}
        self.items: list[m.ScoreItem] = []
        self.over: list[int] = []
        send = self.hub.router.send

        async def keep(identity: str, message: m.Message, **more: Any) -> Any:
            name = next((n for n, i in self.identities.items() if i == identity), "")
            if isinstance(message, m.StepRequest):
                self.sent[name] += message.asks
                self.over += message.ended
            if isinstance(message, m.ScoreRequest):
                self.items += message.items
            return await send(identity, message, **more)

        self.hub.router.send = keep  # type: ignore[method-assign,assignment]

    async def begin(self) -> None:
        self.coordinator.phases.record_start()
        for name, role in self.roles.items():
            await self.say(name, m.Hello(role=role, name=name, pid=1, host="here", capacity=8))
        notice = self.notice()
        assert notice is not None
        await self.say(LEARNER, notice)
        await self.say(GENERATOR, m.WeightsLoaded(version=notice.version, gap_s=0.0, load_s=0.0))

    async def answer(self, step: Step, *, name: str = WORKERS[0], **more: Any) -> StepAsk:
        """Answer the worker's oldest question."""
        ask = self.sent[name].pop(0)
        reply = StepReply(
            trajectory_id=ask.trajectory_id, turn=ask.turn, step=step,
            **({"status": "ok"} | more),
        )  # fmt: skip
        assert await self.say(name, m.StepReplies(replies=[reply]))
        return ask

    async def turn(self, trajectory: Trajectory, tokens: int, finish: str = "stop") -> None:
        """A turn of the policy arrives."""
        assert await self.say(GENERATOR, self.chunk_of(trajectory, tokens, finish))

    def first(self) -> Trajectory:
        return next(iter(self.hub.account.trajectories.values()))

    def lease(self, trajectory: Trajectory) -> m.Lease:
        """As a generator gets it."""
        return self.coordinator.parts.generation._make_lease(trajectory)

    def room(self, trajectory: Trajectory) -> int:
        """Up to where a lease may go."""
        return self.lease(trajectory).max_total

    async def limits(self) -> list[str]:
        """What has cut episodes short."""
        await self.hub.recorder.flush()
        ended = [r for r in self.store.replay() if isinstance(r, TrajectoryEnded)]
        return [r.error for r in ended if r.error]

    def states(self, trajectory: Trajectory) -> list[tuple[str, bool]]:
        return [(window.state, window.final) for window in trajectory.windows]


def play(folder: Path, story: Any, **options: Any) -> None:
    async def whole() -> None:
        stage = EpisodeStage(folder, **options)
        recorder = asyncio.create_task(stage.hub.recorder.run())
        try:
            await stage.begin()
            await story(stage)
            await stage.hub.recorder.flush()
        finally:
            recorder.cancel()
            stage.hub.router.close()
            stage.store.close()

    asyncio.run(whole())


def test_a_window_that_ends_with_a_turn_waits_for_what_the_turn_earned(tmp_path: Path) -> None:
    async def story(stage: EpisodeStage) -> None:
        first = stage.first()
        assert first.paused
        assert stage.hub.leases.of(first.trajectory_id) is None
        ask = await stage.answer(Step())
        assert (ask.turn, ask.turns, json.loads(ask.row)["prompt"][-1]) == (0, [], "=")
        await stage.turn(first, 4)
        assert stage.states(first) == [("closed", False)]
        assert stage.hub.leases.of(first.trajectory_id) is None
        stage.sent[WORKERS[0]].sort(key=lambda ask: (-ask.turn, ask.trajectory_id))
        ask = await stage.answer(MORE)
        assert (ask.turn, ask.turns[-1].tokens, ask.known) == (1, 4, [])
        assert stage.states(first) == [("ready", False)]
        assert (first.length, first.sampled, first.pieces[-1].source) == (6, 4, "tool")
        assert stage.hub.leases.of(first.trajectory_id) is not None
        await stage.turn(first, 4)
        assert stage.states(first) == [("ready", False), ("closed", False)]
        stage.sent[WORKERS[0]].sort(key=lambda ask: (-ask.turn, ask.trajectory_id))
        await stage.answer(Step(reward=2.0, done=True))
        assert stage.states(first) == [("ready", False), ("ready", True)]
        assert (first.status, first.reward, first.correct) == ("finished", 2.0, True)
        earned = {r.position: r.value for r in first.rewards if r.value}
        assert earned == {9: 2.0}, "the last sampled token, not an inserted one"
        assert stage.hub.account.ledger.inserted == 2

    play(tmp_path / "run-1", story)


def test_limits_end_an_episode_with_what_it_has_earned(tmp_path: Path) -> None:
    async def story(stage: EpisodeStage) -> None:
        first = stage.first()
        await stage.answer(Step())
        lease = stage.hub.leases.of(first.trajectory_id)
        assert lease is not None
        await stage.turn(first, 2)
        stage.sent[WORKERS[0]].sort(key=lambda ask: (-ask.turn, ask.trajectory_id))
        await stage.answer(Step(messages=MORE.messages, reward=0.25))
        assert (first.status, first.reward, first.correct) == ("truncated", 0.25, True)
        assert await stage.limits() == ["environment.max_turns"]
        other = next(t for t in stage.hub.account.trajectories.values() if t.paused and not t.steps)
        stage.sent[WORKERS[0]].sort(key=lambda ask: ask.trajectory_id != other.trajectory_id)
        await stage.answer(Step())
        await stage.turn(other, 3, "length")
        assert (other.status, other.reward, other.reward_status) == ("truncated", 0.0, "ok")
        assert len(await stage.limits()) == 1, "only what the coordinator saw has a name"

    play(tmp_path / "run-1", story, max_turns=1)


def test_an_episode_ends_where_there_is_no_room_for_an_answer(tmp_path: Path) -> None:
    async def story(stage: EpisodeStage) -> None:
        first = stage.first()
        await stage.answer(Step())
        await stage.turn(first, 2)
        stage.sent[WORKERS[0]].sort(key=lambda ask: (-ask.turn, ask.trajectory_id))
        await stage.answer(Step(messages=[InsertedMessage("tool", "12345")]))
        assert (first.status, first.length) == ("running", 2 + 3), "cut to what is left"
        await stage.turn(first, 2)
        stage.sent[WORKERS[0]].sort(key=lambda ask: (-ask.turn, ask.trajectory_id))
        await stage.answer(Step(messages=MORE.messages, reward=0.5))
        assert (first.status, first.length, first.reward) == ("truncated", 7, 0.5)
        assert await stage.limits() == ["environment.max_inserted"]

    play(tmp_path / "run-1", story, max_inserted=3)


def test_a_context_bounds_prompt_turns_and_what_is_inserted(tmp_path: Path) -> None:
    async def story(stage: EpisodeStage) -> None:
        first = stage.first()
        await stage.answer(Step())
        room = 80 + 6 - first.opening.size
        assert stage.room(first) == min(room, 12)
        await stage.turn(first, 4)
        stage.sent[WORKERS[0]].sort(key=lambda ask: (-ask.turn, ask.trajectory_id))
        await stage.answer(Step(messages=[InsertedMessage("tool", "9" * 200)], reward=0.5))
        assert first.length == room - 1, "one is left for the policy"
        assert stage.room(first) == room
        await stage.turn(first, 1, "held")
        assert (first.status, first.reward) == ("truncated", 0.5)
        assert await stage.limits() == ["environment.max_context"]

    play(tmp_path / "run-1", story, max_context=86)


def test_each_turn_has_as_many_tokens_and_one_that_needs_more_ends_the_episode(
    tmp_path: Path,
) -> None:
    async def story(stage: EpisodeStage) -> None:
        first = stage.first()
        await stage.answer(Step())
        assert stage.room(first) == 3
        await stage.turn(first, 2)
        stage.sent[WORKERS[0]].sort(key=lambda ask: (-ask.turn, ask.trajectory_id))
        await stage.answer(MORE)
        assert (first.length, stage.room(first)) == (4, 4 + 3), "the next turn begins anew"
        await stage.turn(first, 1, "held")
        assert stage.room(first) == 4 + 3, "and its first token counts"
        await stage.turn(first, 2, "length")
        assert (first.status, first.sampled, first.reward) == ("truncated", 5, 0.0)
        assert await stage.limits() == ["environment.max_turn_tokens"]

    play(tmp_path / "run-1", story, max_turn_tokens=3)


def test_an_episode_that_is_over_before_it_begins_is_scored_as_nothing(tmp_path: Path) -> None:
    async def story(stage: EpisodeStage) -> None:
        first = stage.first()
        await stage.answer(Step(done=True))
        (item,) = stage.items
        assert (first.status, item.text, item.num_tokens) == ("finished", "", 0)
        score = m.Score(trajectory_id=first.trajectory_id, status="ok", reward=0.5, seconds=0.0)
        await stage.say(REWARD, m.Scores(scores=[score]))
        assert (first.reward, first.windows) == (0.5, [])

    play(tmp_path / "run-1", story, scored=True)


def test_an_environment_pays_alone_whatever_sources_the_recipe_names(tmp_path: Path) -> None:
    async def story(stage: EpisodeStage) -> None:
        first = stage.first()
        await stage.answer(Step(done=True))
        assert (first.reward_status, first.reward) == ("ok", 0.0)
        assert stage.hub.monitors.at_commit()["rewards/default/count"] == 1.0

    named = {"sources": {"sums": {"kind": "exact"}}, "route": {"default": "sums"}}
    play(tmp_path / "run-1", story, reward=named)


def test_windows_end_with_turns_where_they_do_not_go_across(tmp_path: Path) -> None:
    async def story(stage: EpisodeStage) -> None:
        first = stage.first()
        await stage.answer(Step())
        await stage.turn(first, 2)
        assert stage.states(first) == [("closed", False)], "of the turn, and it waits"
        stage.sent[WORKERS[0]].sort(key=lambda ask: (-ask.turn, ask.trajectory_id))
        await stage.answer(MORE)
        assert stage.states(first) == [("ready", False)]
        assert stage.lease(first).next_border == first.length + 4, "the next one begins anew"
        await stage.turn(first, 3)
        stage.sent[WORKERS[0]].sort(key=lambda ask: (-ask.turn, ask.trajectory_id))
        await stage.answer(Step(reward=1.0, done=True))
        assert stage.states(first) == [("ready", False), ("ready", True)]
        assert [w.tokens for w in first.windows] == [2, 3]

    play(tmp_path / "run-1", story, across_turns=False)


def test_a_later_turn_goes_where_the_earlier_ones_are_cached(tmp_path: Path) -> None:
    async def story(stage: EpisodeStage) -> None:
        first, other = list(stage.hub.account.trajectories.values())[:2]
        await stage.answer(Step())
        assert stage.lease(first).cache_version == -1, "nothing is cached before the first turn"
        hello = m.Hello(role="generator", name="generator-1", pid=2, host="there", capacity=20)
        stage.identities["generator-1"] = identity_of("generator-1")
        await stage.say("generator-1", hello)
        loaded = m.WeightsLoaded(version=0, gap_s=0.0, load_s=0.0)
        await stage.say("generator-1", loaded)
        await stage.answer(Step())
        holders = [stage.hub.leases.of(t.trajectory_id) for t in (first, other)]
        assert [h and h.generator for h in holders] == [GENERATOR, "generator-1"], "most room"
        await stage.turn(first, 3)
        stage.sent[WORKERS[0]].sort(key=lambda ask: (-ask.turn, ask.trajectory_id))
        await stage.answer(MORE)
        again = stage.hub.leases.of(first.trajectory_id)
        assert again is not None
        assert again.generator == GENERATOR
        assert stage.lease(first).cache_version == 0, "the weights of its first turn"

    play(tmp_path / "run-1", story)


def test_an_environment_has_so_much_time_for_an_episode(tmp_path: Path) -> None:
    async def story(stage: EpisodeStage) -> None:
        first = stage.first()
        await stage.answer(Step(), seconds=3.0)
        await stage.turn(first, 2)
        stage.sent[WORKERS[0]].sort(key=lambda ask: (-ask.turn, ask.trajectory_id))
        await stage.answer(MORE, seconds=2.0)
        assert first.status == "truncated"
        assert await stage.limits() == ["environment.episode_timeout_s"]

    play(tmp_path / "run-1", story, episode_timeout_s=4.5)


def test_the_last_turn_is_scored_and_what_turns_have_paid_is_added(tmp_path: Path) -> None:
    async def story(stage: EpisodeStage) -> None:
        first = stage.first()
        await stage.answer(Step())
        await stage.turn(first, 4)
        stage.sent[WORKERS[0]].sort(key=lambda ask: (-ask.turn, ask.trajectory_id))
        await stage.answer(Step(messages=MORE.messages, reward=0.25))
        await stage.turn(first, 3)
        stage.sent[WORKERS[0]].sort(key=lambda ask: (-ask.turn, ask.trajectory_id))
        await stage.answer(Step(done=True))
        assert (first.status, first.reward_status) == ("finished", None)
        assert stage.states(first)[-1] == ("closed", True), "it waits for its score"
        (item,) = stage.items
        assert item.num_tokens == 3, "of the last turn"
        score = m.Score(
            trajectory_id=first.trajectory_id, status="ok", reward=1.0, correct=True, seconds=0.0
        )
        await stage.say(REWARD, m.Scores(scores=[score]))
        assert (first.reward, first.correct) == (1.25, True)
        assert {r.position: r.value for r in first.rewards} == {3: 0.25, 8: 1.0}
        assert stage.states(first)[-1] == ("ready", True)

    play(tmp_path / "run-1", story, scored=True)


@pytest.mark.parametrize(
    ("step", "more", "words"),
    [
        (Step(), {"status": "timeout", "error": "slow"}, "environment_timeout: slow"),
        (Step(), {"status": "diverged", "error": "x"}, "environment_diverged"),
        (Step(reward=float("nan"), done=True), {}, "the reward is nan"),
        (Step(metrics={"a": float("inf")}, done=True), {}, "a metric is not finite"),
        (Step(), {}, "nothing was said"),
    ],
)
def test_what_cannot_be_answered_fails_and_earns_nothing(
    tmp_path: Path, step: Step, more: dict[str, Any], words: str
) -> None:
    async def story(stage: EpisodeStage) -> None:
        first = stage.first()
        await stage.answer(Step())
        await stage.turn(first, 4)
        stage.sent[WORKERS[0]].sort(key=lambda ask: (-ask.turn, ask.trajectory_id))
        await stage.answer(step, **more)
        assert (first.status, first.reward, first.reward_status) == ("failed", None, None)
        assert stage.states(first) == [("dropped", False)]
        await stage.hub.recorder.flush()
        told = [r.text for r in stage.store.replay() if isinstance(r, Incident)]
        assert any(words in text for text in told), told

    play(tmp_path / "run-1", story)


def test_an_environment_that_fails_every_episode_ends_the_run(tmp_path: Path) -> None:
    async def story(stage: EpisodeStage) -> None:
        broken: dict[str, Any] = {"status": "crashed", "error": "no port"}
        await stage.answer(Step(), **broken)
        await stage.answer(Step(done=True))
        await stage.answer(Step(), **broken)
        assert stage.hub.failed is None, "one that ends well lies between"
        await stage.answer(Step(), **broken)
        told = "2 episodes in a row failed; the last: environment_crashed: no port"
        assert stage.hub.failed == told

    play(tmp_path / "run-1", story, reward={"max_consecutive_failures": 2})


def test_episodes_without_room_for_a_turn_end_the_run(tmp_path: Path) -> None:
    """An agent's first request does not fit: nothing would ever be sampled, or trained."""

    async def story(stage: EpisodeStage) -> None:
        first, opening = stage.first(), Step(messages=[InsertedMessage("user", "12345")])
        for _ in range(2):
            assert stage.hub.failed is None
            await stage.answer(opening)
        assert (first.status, first.reward) == ("failed", None)
        told = "environment.max_inserted: it leaves no room for a turn"
        assert stage.hub.failed == f"2 episodes in a row failed; the last: {told}"

    agent = {"name": "agent:any.py:play", "max_inserted": 3}
    play(tmp_path / "run-1", story, reward={"max_consecutive_failures": 2}, **agent)


@pytest.mark.parametrize("later", ["lost", "diverged", "crashed"])
def test_the_episodes_of_a_process_that_died_are_one_failure(tmp_path: Path, later: str) -> None:
    """It had hundreds of them, and they fail in a row; one that began after that counts again."""

    async def story(stage: EpisodeStage) -> None:
        asks = stage.sent[WORKERS[0]]
        known = max(ask.trajectory_id for ask in asks)
        for status in ("lost", "diverged", "lost"):
            await stage.answer(Step(), status=status, error="its process ended")
        assert stage.hub.failed is None
        asks.sort(key=lambda ask: -ask.trajectory_id)
        assert asks[0].trajectory_id > known
        await stage.answer(Step(), status=later, error="its process ended")
        told = f"2 episodes in a row failed; the last: environment_{later}: its process ended"
        assert stage.hub.failed == told

    play(tmp_path / "run-1", story, reward={"max_consecutive_failures": 2})


def test_a_tool_that_prints_nothing_has_answered_in_a_chat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The template says whose answer it was, and that the policy goes on."""
    tokenizer = train_tokenizer(iter(["a few words"]), vocab_size=300, max_length=512)
    tokenizer.chat_template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"

    async def story(stage: EpisodeStage) -> None:
        first, episodes = stage.first(), stage.coordinator.parts.episodes
        assert episodes is not None
        await stage.answer(Step())
        await stage.turn(first, 2)
        monkeypatch.setattr(episodes._prompts, "is_chat", lambda _messages: True)
        episodes._rendering[True] = MessageRenderer(tokenizer, is_chat=True)
        stage.sent[WORKERS[0]].sort(key=lambda ask: (-ask.turn, ask.trajectory_id))
        await stage.answer(Step(messages=[InsertedMessage("tool", "")]))
        assert (first.status, first.paused) == ("running", False)
        assert [(p.source, p.turn) for p in first.pieces] == [("policy", 0), ("template", 1)]

    play(tmp_path / "run-1", story)


def test_an_answer_counts_once_and_none_that_was_not_asked_for(tmp_path: Path) -> None:
    async def story(stage: EpisodeStage) -> None:
        first = stage.first()
        ask = await stage.answer(Step())
        replies = [
            StepReply(trajectory_id=ask.trajectory_id, turn=turn, status="ok", step=MORE)
            for turn in (0, 1)
        ]
        await stage.say(WORKERS[0], m.StepReplies(replies=replies))
        assert (len(first.steps), first.length) == (1, 0)

    play(tmp_path / "run-1", story)


def test_another_worker_is_given_all_turns_and_what_was_said(tmp_path: Path) -> None:
    async def story(stage: EpisodeStage) -> None:
        first = stage.first()
        name = next(n for n in WORKERS if any(not a.trajectory_id for a in stage.sent[n]))
        stage.sent[name].sort(key=lambda ask: ask.trajectory_id)
        await stage.answer(Step(), name=name)
        await stage.turn(first, 2)
        stage.sent[name].sort(key=lambda ask: (-ask.turn, ask.trajectory_id))
        await stage.answer(MORE, name=name)
        await stage.turn(first, 3)
        await stage.say(name, m.Goodbye())
        (other,) = set(WORKERS) - {name}
        ask = next(a for a in stage.sent[other] if a.trajectory_id == first.trajectory_id)
        assert ask.turn == 2
        assert [turn.tokens for turn in ask.turns] == [2, 3]
        assert ask.known == [Step().digest, MORE.digest]

    play(tmp_path / "run-1", story, workers=WORKERS)


def test_a_coordinator_that_takes_over_asks_again(tmp_path: Path) -> None:
    run_dir = tmp_path / "run-1"
    seen: dict[int, tuple[bool, int, int]] = {}

    async def story(stage: EpisodeStage) -> None:
        for _ in range(3):
            await stage.answer(Step())
        running = [t for t in stage.hub.account.trajectories.values() if t.steps]
        await stage.turn(running[0], 4)
        stage.sent[WORKERS[0]].sort(key=lambda ask: (-ask.turn, ask.trajectory_id))
        await stage.answer(MORE)
        await stage.turn(running[1], 2)
        for t in stage.hub.account.trajectories.values():
            seen[t.trajectory_id] = t.paused, len(t.steps), t.length

    play(run_dir, story)
    config = run_config(
        environment={"name": "calculator"},
        evaluation={"before": False, "after": False},
        algorithm={"advantages": {"kind": "egae"}, "value": {"warmup_updates": 0}},
    )
    coordinator, store = build(config, run_dir, resume=True)
    try:
        state: State = coordinator.hub.state
        found = {
            t.trajectory_id: (t.paused, len(t.steps), t.length)
            for t in state.account.trajectories.values()
        }
        assert found == seen
        assert coordinator.parts.episodes is not None
        assert coordinator.parts.episodes.waiting() == sum(paused for paused, _, _ in seen.values())
    finally:
        store.close()
        coordinator.hub.router.close()


def test_a_branch_is_a_trajectory_that_the_same_agent_plays_and_that_is_paid_the_same(
    tmp_path: Path,
) -> None:
    async def story(stage: EpisodeStage) -> None:
        first = stage.first()
        name = next(n for n in WORKERS if stage.sent[n][:1] and stage.sent[n][0].turn == 0
                    and stage.sent[n][0].trajectory_id == first.trajectory_id)  # fmt: skip
        await stage.answer(MORE, name=name)
        await stage.turn(first, 4)
        stage.sent[name].sort(key=lambda ask: -ask.turn)
        await stage.answer(Step(), name=name, status="branched")
        key = max(stage.hub.account.trajectories)
        branch = stage.hub.account.trajectories[key]
        group = stage.hub.account.groups[branch.group_id]
        assert (group.trajectory_ids, branch_of(group)) == ([key], first.trajectory_id)
        asks = {ask.trajectory_id: ask for ask in stage.sent[name]}
        assert (asks[key].turn, asks[key].branch_of) == (0, first.trajectory_id)
        again = asks[first.trajectory_id]
        assert (again.turn, again.branches, again.branch_of) == (1, [key], -1)
        assert key in stage.hub.leases.open
        await asyncio.sleep(0)
        stage.sent[name].sort(key=lambda ask: -ask.trajectory_id)
        await stage.answer(MORE, name=name)
        assert not branch.paused
        await stage.turn(branch, 3)
        for one in (first, branch):
            stage.sent[name].sort(key=lambda ask: ask.trajectory_id != one.trajectory_id)
            await stage.answer(Step(reward=0.5, done=True), name=name)
        assert [t.reward for t in (first, branch)] == [0.5, 0.5]
        assert stage.states(branch) == [("ready", True)]

    play(tmp_path / "run", story, workers=WORKERS)


def test_a_branch_waits_for_its_origin_at_another_worker(tmp_path: Path) -> None:
    """Its agent plays again when the origin is asked; until then it would be given up as lost."""

    async def story(stage: EpisodeStage) -> None:
        first = stage.first()
        keys = {n: [ask.trajectory_id for ask in stage.sent[n]] for n in WORKERS}
        name, other = sorted(WORKERS, key=lambda n: first.trajectory_id not in keys[n])

        async def answer_first(**more: Any) -> None:
            stage.sent[name].sort(key=lambda ask: ask.trajectory_id != first.trajectory_id)
            await stage.answer(MORE, name=name, **more)

        await answer_first()
        await stage.turn(first, 2)
        await answer_first(status="branched")
        branch = max(stage.hub.account.trajectories)
        await answer_first()
        assert not first.paused
        await stage.say(name, m.Goodbye())
        assert branch not in [ask.trajectory_id for ask in stage.sent[other]]
        await stage.turn(first, 2)
        asks = {ask.trajectory_id: ask for ask in stage.sent[other]}
        assert asks[first.trajectory_id].branches == [branch]
        assert asks[branch].branch_of == first.trajectory_id

    play(tmp_path / "run-1", story, workers=WORKERS)


def test_a_worker_hears_at_once_of_a_branch_that_met_a_limit(tmp_path: Path) -> None:
    """Its origin waits there for the agent, which waits for the branch: nothing else may be asked
    any more, as at the end of an evaluation."""

    async def story(stage: EpisodeStage) -> None:
        first = stage.first()
        keys = {n: [ask.trajectory_id for ask in stage.sent[n]] for n in WORKERS}
        name, other = sorted(WORKERS, key=lambda n: first.trajectory_id not in keys[n])
        asks, worker = stage.sent[name], stage.hub.peers.environments[name]
        asks.sort(key=lambda ask: ask.trajectory_id != first.trajectory_id)
        await stage.answer(MORE, name=name)
        await stage.turn(first, 2)
        asks.sort(key=lambda ask: ask.trajectory_id != first.trajectory_id)
        await stage.answer(MORE, name=name, status="branched")
        (key,) = [ask.trajectory_id for ask in asks if ask.branch_of == first.trajectory_id]
        branch = stage.hub.account.trajectories[key]
        asks.sort(key=lambda ask: ask.trajectory_id != key)
        await stage.answer(MORE, name=name)
        stage.coordinator.parts.generation.draining = True
        await stage.turn(branch, 3, "length")
        assert (branch.status, first.status, first.paused) == ("truncated", "running", True)
        assert (key in worker.knows, worker.ended) == (False, [])
        await stage.say(name, m.Goodbye())
        (again,) = [a for a in stage.sent[other] if a.trajectory_id == first.trajectory_id]
        assert (again.turn, again.branches) == (1, []), "nobody would ask for its turns"

    play(tmp_path / "run-1", story, workers=WORKERS)


def test_an_agent_ends_with_a_branch_that_its_worker_was_not_asked_about(tmp_path: Path) -> None:
    """Another worker was, and is gone: the origin was asked about again, where the agent waits."""

    async def story(stage: EpisodeStage) -> None:
        first = stage.first()
        keys = {n: [ask.trajectory_id for ask in stage.sent[n]] for n in WORKERS}
        name, other = sorted(WORKERS, key=lambda n: first.trajectory_id not in keys[n])
        asks = stage.sent[name]

        async def answer(key: int, **more: Any) -> None:
            asks.sort(key=lambda ask: ask.trajectory_id != key)
            await stage.answer(MORE, name=name, **more)

        await answer(first.trajectory_id)
        await stage.turn(first, 2)
        await answer(first.trajectory_id, status="branched")
        (key,) = [ask.trajectory_id for ask in asks if ask.branch_of == first.trajectory_id]
        await answer(key)
        await stage.say(name, m.Goodbye())
        (again,) = [a for a in stage.sent[other] if a.trajectory_id == first.trajectory_id]
        assert (again.branches, first.trajectory_id in stage.over) == ([key], False)
        await stage.turn(stage.hub.account.trajectories[key], 3, "length")
        assert first.trajectory_id in stage.over

    play(tmp_path / "run-1", story, workers=WORKERS)


def test_tools_that_an_agent_offers_are_in_the_journal_alone(tmp_path: Path) -> None:
    """They may be long, and a snapshot has every step of the episodes in play."""
    tools = [{"type": "function", "function": {"name": "double"}}]

    async def story(stage: EpisodeStage) -> None:
        await stage.answer(Step(tools=tools))
        await stage.hub.recorder.flush()
        said = [r.streams for r in stage.store.replay() if isinstance(r, ChunkArrived)]
        assert [streams.step.tools for streams in said if streams and streams.step] == [tools]
        assert [step.tools for step in stage.first().steps] == [[]]

    play(tmp_path / "run-1", story)


def test_an_episode_that_is_given_up_ends_at_its_worker_too(tmp_path: Path) -> None:
    """Its environment and an agent's session would stay open for the rest of the run."""

    async def story(stage: EpisodeStage) -> None:
        first = stage.first()
        await stage.answer(Step())
        worker = stage.hub.peers.environments[WORKERS[0]]
        assert first.trajectory_id in worker.knows
        stage.hub.record_event(end_record(first, "aborted"))
        assert first.trajectory_id not in worker.knows
        assert worker.ended == [first.trajectory_id]

    play(tmp_path / "run-1", story)


def test_a_row_that_was_a_branch_in_another_run_is_none(tmp_path: Path) -> None:
    """An export keeps what the journal says of a branch: as text in its column `info`, which reward
    functions see as columns."""

    async def story(stage: EpisodeStage) -> None:
        group = stage.hub.account.groups[stage.first().group_id]
        for row in ({"info": json.dumps({BRANCH_OF: 3})}, {BRANCH_OF: 3}):
            again = issued_again(
                group, group_id=stage.hub.state.next_group, info=json.dumps(row),
                trajectory_ids=[stage.hub.state.next_trajectory], seeds=[0],
            )  # fmt: skip
            stage.hub.record_event(again)
            assert branch_of(stage.hub.account.groups[again.group_id]) == -1

    play(tmp_path / "run-1", story)
