"""A source that asks a judge: real scoring children, a real server of the test's own."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from aiohttp import web

from headrace.config.sections.reward import RewardConfig
from headrace.data.media import MediaStore
from headrace.protocol.messages.control import Score
from rewards.judging.readings import two_token
from tests.rewards.items import item
from tests.rewards.judging.scripted import (
    KEY,
    Body,
    DropError,
    ScriptedJudge,
    failing,
    gathering,
    in_turn,
    said,
    scripted_judge,
    yes,
)
from tests.rewards.worker.test_pool import gone, running, score_all


def source(judge: ScriptedJudge, *, keys: dict[str, Any] | None = None, **options: Any) -> Any:
    told = {"url": judge.url, "model": "judge", "backoff_s": 0.01, "prompt": "{response}"}
    return RewardConfig.model_validate(
        {"kind": "judge", "timeout_s": 30.0, "options": {**told, **options}, **(keys or {})}
    )


async def scored(config: RewardConfig, *texts: str) -> list[Score]:
    async with running(config) as pool:
        scores = await score_all(pool, [item(t, trajectory_id=i) for i, t in enumerate(texts)])
        assert pool.restarts == 0
        return [scores[i] for i in range(len(texts))]


def shown(body: Body) -> str:
    text = body["messages"][-1]["content"]
    assert isinstance(text, str)
    return text


async def test_32_questions_are_open_at_a_time() -> None:
    """The server answers nobody before 32 have asked: one after the other none would be answered,
    so 32 responses take the time of one."""
    async with scripted_judge(gathering(32, yes)) as judge:
        scores = await scored(source(judge), *(f"text {i}" for i in range(64)))
        assert {score.status for score in scores} == {"ok"}
        assert judge.most == 32
        few = source(judge, keys={"concurrency": 5, "timeout_s": 1.0})
        assert {s.status for s in await scored(few, *"abcde")} == {"timeout"}


async def test_a_score_with_its_parts() -> None:
    async with scripted_judge(yes) as judge:
        pay = {"correct_reward": 3.0, "wrong_reward": 1.0}
        config = source(judge, keys=pay, price_in=1.0, price_out=1.0)
        first, second = (await scored(config, "a"))[0], (await scored(config, "a", "a"))[1]
    expected = two_token(-0.1, -2.4)
    assert (first.status, first.correct) == ("ok", True)
    assert first.reward == pytest.approx(1.0 + 2.0 * expected)
    assert first.parts == {
        "correct": 1.0,
        "judge": pytest.approx(expected),
        "judge_requests": 1.0,
        "judge_tokens_in": 10.0,
        "judge_tokens_out": 1.0,
        "judge_cost": pytest.approx(11e-6),
        "judge_cached": 0.0,
    }
    assert second.reward == first.reward


async def test_what_is_right_is_said_by_the_threshold() -> None:
    async with scripted_judge(yes) as judge:
        (score,) = await scored(source(judge, keys={"correct_threshold": 0.95}), "a")
    assert (score.status, score.correct, score.parts["correct"]) == ("ok", False, 0.0)


async def test_scores_of_a_judge_may_be_put_on_another_scale() -> None:
    """Right is what the judge says on its own scale."""
    async with scripted_judge(yes) as judge:
        keys = {"score_range": [0.5, 1.0], "correct_threshold": 0.75, "correct_reward": 2.0}
        (score,) = await scored(source(judge, keys=keys), "a")
    own = two_token(-0.1, -2.4)
    assert score.reward == pytest.approx(2.0 * (own - 0.5) / 0.5)
    assert score.correct == (own >= 0.75)
    assert (score.parts["score"], score.parts["judge"]) == (own, own)


async def test_a_judge_audits_a_verifier_and_its_failures_stop_nothing() -> None:
    """Its audits are in flight together, and a failure of them is none of the worker's."""

    async def script(body: Body) -> web.StreamResponse:
        return failing(400)() if shown(body) == "8" else await yes(body)

    async with scripted_judge(gathering(4, script)) as judge:
        of_judge = source(judge).each()["default"].model_dump()
        config = RewardConfig.model_validate(
            {
                "sources": {"math": {"kind": "exact"}, "judge": of_judge},
                "route": {"default": "math"},
                "audit": {"source": "judge"},
                "max_consecutive_failures": 1,
            }
        )
        audits = [
            msgspec.structs.replace(item(t, trajectory_id=i, source="judge"), audit=True)
            for i, t in enumerate("7898")
        ]
        async with running(config) as pool:
            trained = item("7", trajectory_id=9, source="math")
            scores = await score_all(pool, [*audits, trained])
            assert pool.restarts == 0
        assert judge.most == 4
    assert [scores[i].status for i in range(4)] == ["ok", "crashed", "ok", "crashed"]
    assert (scores[9].status, scores[9].source, scores[9].audit) == ("ok", "math", False)
    assert {(scores[i].source, scores[i].audit) for i in range(4)} == {("judge", True)}
    assert scores[0].reward == scores[2].reward == pytest.approx(two_token(-0.1, -2.4))


async def test_a_verifier_audits_a_judge() -> None:
    async with scripted_judge(yes) as judge:
        of_judge = source(judge).each()["default"].model_dump()
        config = RewardConfig.model_validate(
            {
                "sources": {"judge": of_judge, "math": {"kind": "exact"}},
                "route": {"default": "judge"},
                "audit": {"source": "math"},
            }
        )
        async with running(config) as pool:
            paid = await score_all(pool, [item("8", source="judge")])
            truth = msgspec.structs.replace(item("8", source="math"), audit=True)
            audited = await score_all(pool, [truth])
    assert (paid[0].correct, paid[0].audit) == (True, False)
    assert (audited[0].correct, audited[0].audit) == (False, True)


async def test_both_orders_are_asked_for_a_pair() -> None:
    async def prefers_the_first(body: Body) -> web.StreamResponse:
        return said("yes", {"yes": -0.1, "no": -2.3})

    async with scripted_judge(prefers_the_first) as judge:
        config = source(judge, mode="pairwise", prompt=None)
        (score,) = await scored(config, "8")
        assert len(judge.asked) == 2
    assert score.reward == pytest.approx(0.5)
    assert score.parts["position_bias"] == pytest.approx(2 * two_token(-0.1, -2.3) - 1)
    assert score.parts["judge_requests"] == 2.0


async def test_one_question_that_hangs_holds_no_other_up() -> None:
    async def script(body: Body) -> web.StreamResponse:
        if shown(body) == "hang":
            await asyncio.Event().wait()
        return await yes(body)

    async with scripted_judge(script) as judge:
        config = source(judge, keys={"concurrency": 2, "timeout_s": 2.0})
        scores = await scored(config, "hang", *map(str, range(20)))
    assert [score.status for score in scores] == ["timeout"] + ["ok"] * 20


async def test_what_a_judge_took_before_a_deadline_is_counted() -> None:
    left = 1

    async def script(body: Body) -> web.StreamResponse:
        nonlocal left
        left -= 1
        if left < 0:
            await asyncio.Event().wait()
        return await yes(body)

    async with scripted_judge(script) as judge:
        config = source(judge, keys={"timeout_s": 2.0}, mode="pairwise", prompt=None)
        (score,) = await scored(config, "8")
    assert score.status == "timeout"
    assert (score.parts["judge_requests"], score.parts["judge_tokens_in"]) == (2.0, 10.0)


async def test_no_answer_is_a_status_and_says_why() -> None:
    async def script(body: Body) -> web.StreamResponse:
        match shown(body):
            case "mute":
                return said("I would rather not")
            case "refused":
                return failing(400)()
            case "down":
                return failing(503)()
            case "cut":
                raise DropError
        return await yes(body)

    texts = ("mute", "refused", "down", "cut", "fine")
    async with scripted_judge(script) as judge:
        config = source(judge, keys={"timeout_s": 2.0}, attempts=1000)
        scores = await scored(config, *texts)
    found = dict(zip(texts, scores, strict=True))
    assert [score.status for score in scores] == [
        "invalid", "crashed", "timeout", "timeout", "ok"
    ]  # fmt: skip
    assert {score.reward for score in scores[:4]} == {0.0}
    assert "neither 'yes' nor 'no': 'I would rather not'" in str(found["mute"].error)
    assert found["mute"].parts["judge_tokens_in"] == 10.0
    assert "400, trouble 400" in str(found["refused"].error)
    assert "no result within 2 s; " in str(found["down"].error)
    assert "503, trouble 503" in str(found["down"].error)
    assert "does not answer" in str(found["cut"].error)


async def test_a_server_that_comes_back_costs_nothing() -> None:
    down = 10

    async def script(body: Body) -> web.StreamResponse:
        nonlocal down
        down -= 1
        if down >= 0:
            raise DropError
        return await yes(body)

    async with scripted_judge(script) as judge:
        scores = await scored(source(judge), *map(str, range(8)))
        assert {score.status for score in scores} == {"ok"}
        assert len(judge.asked) == 18
        assert sum(score.parts["judge_requests"] for score in scores) == 18


async def test_equal_responses_are_asked_about_once() -> None:
    async with scripted_judge(yes) as judge:
        scores = await scored(source(judge, keys={"concurrency": 1}), "a", "b", "a", "a")
        assert len(judge.asked) == 2
    assert [score.parts["judge_cached"] for score in scores] == [0.0, 0.0, 1.0, 1.0]
    assert [score.parts["judge_tokens_in"] for score in scores] == [10.0, 10.0, 0.0, 0.0]


async def test_a_child_killed_in_the_middle_costs_what_was_being_judged() -> None:
    everyone = asyncio.Event()
    open_now = asyncio.Event()

    async def script(body: Body) -> web.StreamResponse:
        if judge.now == 4:
            open_now.set()
        await everyone.wait()
        return await yes(body)

    here = psutil.Process(os.getpid())
    others = set(here.children())
    async with (
        scripted_judge(script) as judge,
        running(source(judge, keys={"concurrency": 4})) as pool,
    ):
        await pool.submit([item(str(i), trajectory_id=i) for i in range(10)])
        await open_now.wait()
        (child,) = set(here.children()) - others
        child.kill()
        await gone(child.pid)
        everyone.set()
        scores = [await pool.scores.get() for _ in range(10)]
        assert pool.restarts == 1
    by_item = {score.trajectory_id: score.status for score in scores}
    assert [by_item[i] for i in range(10)] == ["crashed"] * 4 + ["ok"] * 6


async def test_unfinished_responses_are_not_asked_about() -> None:
    async with scripted_judge(yes) as judge:
        async with running(source(judge)) as pool:
            scores = await score_all(pool, [item("cut", finished=False)])
        assert judge.asked == []
    assert (scores[0].status, scores[0].reward, scores[0].correct) == ("ok", 0.0, False)


async def test_the_key_is_in_no_error(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JUDGE_KEY", KEY)
    async with scripted_judge(in_turn(failing(403))) as judge:
        config = source(judge, api_key_env="JUDGE_KEY")
        (score,) = await scored(config, "a")
        assert judge.keys == [f"Bearer {KEY}"]
    assert "403, trouble 403 (key ***)" in str(score.error)
    assert KEY not in json.dumps(config.model_dump()) + "".join(capfd.readouterr())


async def test_a_judge_sees_images_where_it_is_to(tmp_path: Path) -> None:
    """With the option the question has the file as a data URL, else words alone."""
    digest = MediaStore(tmp_path).put(b"\x89PNG")
    parts = [{"type": "image", "image": digest}, {"type": "text", "text": "How many?"}]
    messages = json.dumps([{"role": "user", "content": parts}])
    there = msgspec.structs.replace(item("7"), messages=messages, media=str(tmp_path))
    gone = msgspec.structs.replace(there, trajectory_id=1, media=str(tmp_path / "none"))
    async with scripted_judge(yes) as judge:
        async with running(source(judge, images=True)) as pool:
            scores = await score_all(pool, [there, gone])
        async with running(source(judge)) as pool:
            await score_all(pool, [there])
    assert (scores[0].status, scores[1].status) == ("ok", "invalid")
    assert "cannot be read" in str(scores[1].error)
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}}
    contents = [body["messages"][-1]["content"] for body in judge.asked]
    assert contents == [[image, {"type": "text", "text": "7"}], "7"]
