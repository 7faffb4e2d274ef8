"""Asking a server that fails in all ways."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from rewards.judging.options import Options
from rewards.judging.server import JudgeError, JudgeServer, JudgeUsage, address_lookup
from tests.rewards.judging.scripted import (
    KEY,
    Body,
    DropError,
    ScriptedJudge,
    failing,
    garbage,
    in_turn,
    said,
    scripted_judge,
    yes,
)


@contextlib.asynccontextmanager
async def of(judge: ScriptedJudge, **more: Any) -> AsyncIterator[JudgeServer]:
    told = {"url": judge.url, "model": "judge", "backoff_s": 0.001, **more}
    options = Options.model_validate(told)
    server = JudgeServer(options, address_lookup(options))
    try:
        yield server
    finally:
        await server.close()


def answer() -> web.StreamResponse:
    return said("yes", {"yes": -0.1, "no": -2.4})


async def test_what_may_pass_is_tried_again() -> None:
    script = in_turn(failing(429, Retry_After="0"), failing(500), garbage, failing(503), answer)
    async with scripted_judge(script) as judge, of(judge) as server:
        usage = JudgeUsage()
        reply = await server.ask("is it?", usage)
        assert (reply.text, len(judge.asked), usage.requests) == ("yes", 5, 5)
        assert (usage.tokens_in, usage.tokens_out) == (10, 1)
        assert "503, trouble 503" in usage.problem


async def test_an_error_in_another_encoding_is_tried_again_like_any() -> None:
    """As a proxy before the server may send it."""

    def overloaded() -> web.StreamResponse:
        return web.Response(status=503, body='{"error": "überlastet"}'.encode("latin-1"))

    async with scripted_judge(in_turn(overloaded, answer)) as judge, of(judge) as server:
        usage = JudgeUsage()
        assert (await server.ask("is it?", usage)).text == "yes"
        assert "503" in usage.problem
        assert "berlastet" in usage.problem


async def test_a_server_whose_clock_is_ahead_is_not_waited_for_that_long() -> None:
    now = "Fri, 01 Jan 2100 12:00:00 GMT"
    script = in_turn(failing(503, Retry_After=now, Date=now), answer)
    async with scripted_judge(script) as judge, of(judge) as server, asyncio.timeout(30):
        assert (await server.ask("is it?", JudgeUsage())).text == "yes"


async def test_a_dropped_connection_is_tried_again() -> None:
    drops = 2

    async def script(body: Body) -> web.StreamResponse:
        nonlocal drops
        drops -= 1
        if drops < 0:
            return answer()
        raise DropError

    async with scripted_judge(script) as judge, of(judge) as server:
        usage = JudgeUsage()
        assert (await server.ask("is it?", usage)).text == "yes"
        assert usage.requests == 3


async def test_an_answer_not_packed_as_it_says_is_tried_again() -> None:
    def damaged() -> web.StreamResponse:
        return web.Response(body=b"no gzip at all", headers={"Content-Encoding": "gzip"})

    async with scripted_judge(in_turn(damaged, answer)) as judge, of(judge) as server:
        usage = JudgeUsage()
        assert (await server.ask("is it?", usage)).text == "yes"
        assert usage.requests == 2
        assert "does not answer: " in usage.problem


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
async def test_what_will_not_pass_is_told_at_once(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_KEY", KEY)
    async with (
        scripted_judge(in_turn(failing(status))) as judge,
        of(judge, api_key_env="JUDGE_KEY") as server,
    ):
        with pytest.raises(JudgeError) as caught:
            await server.ask("is it?", JudgeUsage())
        assert len(judge.asked) == 1
        assert judge.keys == [f"Bearer {KEY}"]
        assert f"{status}, trouble {status} (key ***)" in str(caught.value)
        assert KEY not in str(caught.value)


async def test_a_key_is_sent_without_the_end_of_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", f"{KEY}\n")
    async with scripted_judge(yes) as judge, of(judge, api_key_env="JUDGE_KEY") as server:
        assert (await server.ask("is it?", JudgeUsage())).text == "yes"
        assert judge.keys == [f"Bearer {KEY}"]


async def test_attempts_have_an_end() -> None:
    async with scripted_judge(in_turn(failing(500))) as judge, of(judge, attempts=4) as server:
        with pytest.raises(JudgeError, match=r"500, trouble 500.* \(4 attempts\)"):
            await server.ask("is it?", JudgeUsage())
        assert len(judge.asked) == 4


async def test_a_server_that_is_away_is_told() -> None:
    async with scripted_judge(yes) as judge:
        pass
    usage = JudgeUsage()
    async with of(judge, attempts=2) as server:
        with pytest.raises(JudgeError, match="does not answer"):
            await server.ask("is it?", usage)
    assert usage.requests == 2


async def test_the_same_question_is_asked_once_while_its_answer_is_kept() -> None:
    async with (
        scripted_judge(yes) as judge,
        of(judge, cache=2) as server,
        of(judge, cache=0) as never,
    ):
        usage = JudgeUsage()
        for question in ("a", "b", "a", "c", "a", "b"):
            await server.ask(question, usage)
        # `b` had gone when `c` came, because `a` had been asked for after it.
        assert [body["messages"][0]["content"] for body in judge.asked] == ["a", "b", "c", "b"]
        assert (usage.requests, usage.cached, usage.tokens_in) == (4, 2, 40)
        for _ in range(2):
            await never.ask("a", usage)
        assert len(judge.asked) == 6


async def test_what_is_counted_becomes_parts() -> None:
    options = Options(url="http://host/v1", model="judge", price_in=2.0, price_out=10.0)
    parts = JudgeUsage(requests=2, tokens_in=1000, tokens_out=100, cached=1).parts(options)
    assert parts == {
        "judge_requests": 2.0,
        "judge_tokens_in": 1000.0,
        "judge_tokens_out": 100.0,
        "judge_cost": pytest.approx(0.003),
        "judge_cached": 1.0,
    }
