"""A judge that cannot do its work is one line before the run starts."""

import asyncio
import base64
from typing import Any

import pytest
from aiohttp import web

from headrace.config.sections.reward import RewardConfig
from headrace.data.media import open_rgb
from headrace.errors import UserError
from rewards.preflight import check_sources
from tests.rewards.judging.scripted import (
    KEY,
    Answer,
    Body,
    ScriptedJudge,
    completed,
    failing,
    garbage,
    in_turn,
    said,
    scripted_judge,
    yes,
)


async def checked(judge: ScriptedJudge, **options: Any) -> None:
    """The check that `headrace config check` and `train` make, in a scoring child."""
    told = {"url": judge.url, "model": "judge", **options}
    config = RewardConfig.model_validate({"kind": "judge", "options": told})
    await asyncio.to_thread(check_sources, config, list)


async def refusal(answer: Answer, *, counts: Any = None, **options: Any) -> str:
    async with scripted_judge(answer) as judge:
        judge.token_counts = counts
        with pytest.raises(UserError) as caught:
            await checked(judge, **options)
    line = str(caught.value)
    assert line.startswith("reward.kind='judge'") or "judge" in line
    assert "\n" not in line
    assert KEY not in line
    return line


async def test_a_judge_that_works_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", KEY)
    async with scripted_judge(yes) as judge:
        judge.token_counts = {"yes": 2, " yes": 1}
        await checked(judge, api_key_env="JUDGE_KEY")
        (question,) = judge.asked
        assert (question["max_tokens"], question["top_logprobs"]) == (1, 20)
        assert judge.keys == [f"Bearer {KEY}"]


async def test_a_judge_that_is_to_see_images_is_shown_one() -> None:
    async def reads_text(body: Body) -> web.StreamResponse:
        if isinstance(body["messages"][-1]["content"], str):
            return await yes(body)
        return web.json_response({"error": "this model reads no images"}, status=400)

    assert "this model reads no images" in await refusal(reads_text, images=True)
    async with scripted_judge(yes) as judge:
        await checked(judge, images=True)
        (question,) = judge.asked
    url = question["messages"][-1]["content"][0]["image_url"]["url"]
    assert open_rgb(base64.b64decode(url.partition(",")[2])).width == 64


async def test_a_url_that_does_not_answer() -> None:
    async with scripted_judge(yes) as judge:
        pass
    with pytest.raises(UserError, match="does not answer"):
        await checked(judge)


async def test_an_unknown_model_and_those_that_there_are() -> None:
    line = await refusal(yes, model="other")
    assert "has no model 'other' (it has judge)" in line


async def test_words_of_several_tokens_where_the_server_counts() -> None:
    line = await refusal(yes, counts={"wahr": 3, " wahr": 2}, yes="wahr")
    assert "'wahr' is 2 tokens for the judge 'judge'" in line
    assert "options yes and no" in line


async def test_words_of_several_tokens_where_only_the_answer_shows_it() -> None:
    async def pieces(body: Body) -> web.StreamResponse:
        return said("ye", {"ye": -0.2, "n": -1.8})

    assert "'yes' is several tokens" in await refusal(pieces)


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (in_turn(failing(401)), "401, trouble 401"),
        (in_turn(failing(503)), "503, trouble 503"),
        (in_turn(garbage), "sent no answer"),
    ],
)
async def test_a_server_that_refuses(answer: Answer, line: str) -> None:
    # The server repeats a key in its error: without one of ours there is nothing to hide.
    async with scripted_judge(answer) as judge:
        with pytest.raises(UserError, match=line):
            await checked(judge)


async def test_a_server_without_probabilities() -> None:
    async def refuses(body: Body) -> web.StreamResponse:
        if "logprobs" in body:
            return web.json_response({"error": {"message": "logprobs: unknown"}}, status=400)
        return said("Yes.")

    assert "set logprobs = false" in await refusal(refuses)
    async with scripted_judge(refuses) as judge:
        await checked(judge, logprobs=False)


async def test_completions_are_asked_too() -> None:
    async def answer(body: Body) -> web.StreamResponse:
        assert body["prompt"].endswith("Answer:")
        return completed(" yes", {" yes": -0.1, " no": -2.0})

    async with scripted_judge(answer) as judge:
        await checked(judge, api="completions", top_logprobs=5)
        assert judge.asked[0]["path"] == "/v1/completions"
        assert judge.asked[0]["logprobs"] == 5
