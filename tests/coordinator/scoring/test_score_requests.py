"""What a reward worker is asked, by which source, and what comes of its answers."""

import asyncio
import json
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from coordinator.connections.peers import RewardPeer, ScoreKey
from coordinator.connections.ranker_versions import RankerVersions
from coordinator.connections.rejections import RejectionLog
from coordinator.incidents.reward_monitors import RewardMonitors
from coordinator.scoring.score_requests import Scoring
from headrace.errors import ProtocolError, UserError
from headrace.protocol.messages.control import (
    Hello,
    ModelVersion,
    Score,
    ScoreItem,
    ScoreRequest,
    Scores,
)
from headrace.protocol.records.record_types import GroupIssued, Record, RewardArrived
from headrace.protocol.token_spans import MediaRun
from headrace.trajectory.trajectories import Trajectory
from tests.coordinator.world import World, make_config

CHAT = '[{"role": "user", "content": "p"}]'
FRAMED = '"p"'
"""A plain prompt in the policy's chat template."""


class Front:
    """A hub with one worker; keeps what is sent."""

    def __init__(self, learner: dict[str, Any] | None = None, **reward: Any) -> None:
        more = {"learner": learner} if learner else {}
        self.world = World(make_config(reward=reward, schedule={"num_generations": 1}, **more))
        hello = Hello(role="reward", name="reward-0", pid=1, host="here")
        self.config, self.account = self.world.config, self.world.account
        self.peers = SimpleNamespace(rewards={"reward-0": RewardPeer(hello)})
        self.sent: list[ScoreItem] = []
        self.failed: Any = None
        self.incidents: list[str] = []
        self.monitors = RewardMonitors(self.config.reward, lambda kind, text: None)
        self.rejections: Any = RejectionLog(lambda kind, text: None)
        self.lines = None
        self.rankers = RankerVersions(self.config, "/run")
        prompts: Any = SimpleNamespace(
            decode=lambda ids: "".join(map(str, ids)), media_folder="/run/media"
        )
        hub: Any = self
        self.scoring = Scoring(hub, prompts)

    def record_event(self, record: Record) -> None:
        self.world.note(record)

    def incident(self, level: str, kind: str, text: str) -> None:
        assert level == "warning"
        self.incidents.append(kind)

    def settle_windows(self, trajectories: list[Trajectory]) -> None:
        self.world.settle(trajectories)

    def progress(self, mover: str) -> None:
        pass

    def score(self, trajectory_id: int, status: Any) -> None:
        """The worker answers."""
        asked = self.peers.rewards["reward-0"].scoring
        (source,) = [ask.source for ask in asked if ask.trajectory_id == trajectory_id]
        score = Score(trajectory_id=trajectory_id, status=status, reward=1.0, source=source)
        scores = Scores(scores=[score])
        assert len(self.scoring.receive("reward-0", scores)) == 1

    async def send(self, name: str, message: ScoreRequest) -> None:
        self.sent += message.items

    def finish(
        self, *, info: str = "{}", messages: str = CHAT, media: Sequence[MediaRun] = ()
    ) -> None:
        """One more trajectory ends and waits for its score."""
        state = self.world.state
        number = state.next_trajectory
        self.world.note(
            GroupIssued(
                at=time.time(), group_id=state.next_group, prompt_id="p", position=state.position,
                purpose="train", prompt="user: p", answer="a", info=info, messages=messages,
                prompt_ids=np.array([1, 2], np.int32), trajectory_ids=[number], seeds=[number],
                media=list(media),
            )
        )  # fmt: skip
        trajectory = self.account.trajectories[number]
        self.world.lease(trajectory)
        self.world.chunk(trajectory, 3, finish="stop")
        self.scoring.add(trajectory)

    def dispatch(self) -> list[ScoreItem]:
        """What goes out now."""
        self.sent = []
        asyncio.run(self.scoring.dispatch())
        return self.sent


def test_an_item_says_where_the_images_of_its_messages_are() -> None:
    image = [MediaRun("0" * 64, 0, 1)]
    judge = Front(kind="judge", options={"url": "http://localhost/v1", "model": "m"})
    judge.finish(media=image)
    judge.finish()
    assert [item.media for item in judge.dispatch()] == ["/run/media", ""]
    box = Front(kind="box")
    box.finish(media=image)
    assert [item.media for item in box.dispatch()] == [""]


@pytest.mark.parametrize(
    ("reward", "messages", "ids"),
    [
        ({}, "", None),
        ({"kind": "function", "function": "m:f"}, CHAT, None),
        ({"kind": "judge", "options": {"url": "http://localhost/v1", "model": "m"}}, CHAT, None),
        ({"kind": "function", "function": "m:f", "token_ids": True}, CHAT, [1, 2]),
    ],
)
def test_an_item_holds_what_its_function_asks_for(
    reward: dict[str, Any], messages: str, ids: list[int] | None
) -> None:
    front = Front(**reward)
    front.finish()
    (item,) = front.dispatch()
    assert (item.prompt, item.answer, item.finished) == ("user: p", "a", True)
    assert item.messages == messages
    if ids is None:
        assert item.prompt_ids is item.completion_ids is None
    else:
        assert item.prompt_ids is not None
        assert item.completion_ids is not None
        assert item.prompt_ids.tolist() == ids
        assert item.text == "".join(map(str, item.completion_ids))


@pytest.mark.parametrize("kind", ["pairwise", "bradley_terry", "exact"])
def test_a_model_judges_a_framed_prompt_as_its_row_has_it(kind: str) -> None:
    """Its own template frames the text: the policy's would do so twice."""
    front = Front(kind=kind)
    front.finish(messages=FRAMED)
    (item,) = front.dispatch()
    assert item.prompt == "user: p"
    assert item.messages == ("" if kind == "exact" else FRAMED)


SOURCES = {
    "sums": {"kind": "exact"},
    "style": {"kind": "function", "function": "m:f", "children": 2},
}


def routed(**route: Any) -> Front:
    return Front(sources=SOURCES, route={"column": "of", **route}, batch=2)


def test_a_prompt_goes_to_the_source_that_its_row_names() -> None:
    front = routed(values={"maths": "sums"}, default="style")
    for info in ('{"of": "maths"}', "{}", '{"of": "other"}'):
        front.finish(info=info)
    items = front.dispatch()
    assert {item.trajectory_id: item.source for item in items} == {
        0: "sums",
        1: "style",
        2: "style",
    }
    # Only a function is shown the chat.
    assert [item.messages for item in items if item.source == "sums"] == [""]
    assert {item.messages for item in items if item.source == "style"} == {CHAT}
    assert front.scoring.waiting() == 3


def test_an_item_longer_than_any_message_gets_no_score_and_the_run_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    front, send = Front(), Front.send

    async def sending(name: str, message: ScoreRequest) -> None:
        if any(len(item.info) > 1 << 20 for item in message.items):
            raise ProtocolError("ScoreRequest of 9 bytes is over the limit of 8")
        await send(front, name, message)

    monkeypatch.setattr(front, "send", sending)
    front.finish()
    front.finish(info=json.dumps({"tests": "x" * (9 << 20)}))
    front.finish()
    assert [item.trajectory_id for item in front.dispatch()] == [0, 2]
    assert front.account.trajectories[1].reward_status == "invalid"
    assert front.incidents == ["reward_failed"]
    assert [t.trajectory_id for t in front.scoring.expire()] == [1]
    front.score(0, "ok")
    assert front.scoring.waiting() == 1
    assert not front.failed


def test_a_source_with_a_full_queue_leaves_room_for_the_others() -> None:
    front = routed(default="style")
    for _ in range(20):
        front.finish(info='{"of": "style"}')
    first = [item.source for _ in range(8) for item in front.dispatch()]
    assert first == ["style"] * 8  # two batches of two for each of two children
    front.finish(info='{"of": "sums"}')
    assert [item.source for item in front.dispatch()] == ["sums"]
    assert front.scoring.waiting() == 21


def test_answers_that_end_together_are_shared_by_the_workers() -> None:
    front = Front()
    workers = front.peers.rewards
    workers["reward-1"] = RewardPeer(Hello(role="reward", name="reward-1", pid=2, host="here"))
    for _ in range(5):
        front.finish()
    assert len(front.dispatch()) == 5
    assert [len(worker.scoring) for worker in workers.values()] == [3, 2]


def test_what_a_lost_worker_had_goes_back_to_its_source_in_order() -> None:
    front = routed(default="style")
    for of in ("style", "sums", "style", "sums"):
        front.finish(info=f'{{"of": "{of}"}}')
    assert len(front.dispatch()) == 4
    worker = front.peers.rewards["reward-0"]
    front.scoring.forget_worker("reward-0")
    front.peers.rewards["reward-0"] = RewardPeer(worker.hello)
    assert [(item.trajectory_id, item.source) for item in front.dispatch()] == [
        (1, "sums"), (3, "sums"), (0, "style"), (2, "style"),
    ]  # fmt: skip


def test_the_record_says_who_scored_and_failures_are_counted_by_source() -> None:
    front = Front(sources=SOURCES, route={"column": "of"}, batch=8, max_consecutive_failures=2)
    for of in ("style", "sums", "style"):
        front.finish(info=f'{{"of": "{of}"}}')
    front.dispatch()
    front.score(0, "crashed")
    front.score(1, "ok")
    assert not front.failed
    front.score(2, "timeout")
    assert front.failed == "2 rewards by style in a row failed; the last: timeout (no reason given)"
    arrived = [r for r in front.world.records if isinstance(r, RewardArrived)]
    assert [(r.trajectory_id, r.source, r.status) for r in arrived] == [
        (0, "style", "crashed"), (1, "sums", "ok"), (2, "style", "timeout"),
    ]  # fmt: skip


def test_a_prompt_without_a_source_ends_the_run_in_one_line() -> None:
    front = routed()
    with pytest.raises(UserError, match="leaves prompt p without a source"):
        front.finish(info='{"of": "art"}')


def version(number: int) -> ModelVersion:
    return ModelVersion(version=number, path=f"/run/rankers/v{number}", digest=f"{number:016x}")


def ranked(max_staleness: int = 1) -> Front:
    """A run whose ranker is trained along."""
    learner = {"ranker": {"max_staleness": max_staleness}}
    return Front(learner, kind="ranker", options={"model": "m"})


def test_a_ranker_that_is_trained_along_scores_by_its_newest_version() -> None:
    front = ranked()
    front.finish()
    assert not front.dispatch(), "there is no version yet"
    front.rankers.published(version(3))
    front.rankers.published(None)
    (item,) = front.dispatch()
    assert item.model == version(3)
    score = Score(trajectory_id=0, status="ok", reward=0.5, model=version(3).named)
    assert front.scoring.receive("reward-0", Scores(scores=[score]))
    assert front.account.trajectories[0].reward_model == version(3).named


@pytest.mark.parametrize("status", ["ok", "crashed"])
def test_a_score_by_a_version_that_is_too_old_is_asked_for_again(status: Any) -> None:
    front = ranked(max_staleness=1)
    front.rankers.published(version(3))
    front.finish()
    assert front.dispatch()[0].model == version(3)
    front.rankers.published(version(4))
    front.rankers.published(version(5))
    late = Score(trajectory_id=0, status=status, reward=0.5, model=version(3).named)
    assert not front.scoring.receive("reward-0", Scores(scores=[late]))
    assert front.rejections.counts["score_outdated"] == 1
    assert front.account.trajectories[0].reward_status is None
    assert not front.incidents, "the folder may be gone by then"
    assert front.dispatch()[0].model == version(5)
    front.rankers.published(version(6))
    good = Score(trajectory_id=0, status="ok", reward=0.25, model=version(5).named)
    assert front.scoring.receive("reward-0", Scores(scores=[good])), "one behind is allowed"
    assert front.account.trajectories[0].reward == 0.25


def test_what_has_scored_a_part_of_a_group_scores_the_rest() -> None:
    front = ranked(max_staleness=0)
    front.rankers.published(version(9))
    front.finish()
    front.account.trajectories[0].reward_model = version(4).named
    ask = ScoreKey(0, "default")
    asked = front.rankers.choose(ask, [front.account.trajectories[0]])
    assert asked == version(4), "its folder is known by its number, its weights by the digest"


def test_a_ranker_that_stays_as_it_is_needs_no_version() -> None:
    front = Front(kind="ranker", options={"model": "m"})
    front.finish()
    (item,) = front.dispatch()
    assert item.model is None
