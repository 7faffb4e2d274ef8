"""A judge's server that does as a test says, and remembers what it was asked."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web

Body = dict[str, Any]
Answer = Callable[[Body], Awaitable[web.StreamResponse]]
KEY = "a-key-that-nobody-may-see"


class DropError(Exception):
    """Raised by a script to cut the connection."""


class ScriptedJudge:
    """What came in, and where it listens."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[Body] = []
        """Bodies of the questions."""
        self.keys: list[str | None] = []
        """The Authorization of each."""
        self.now = 0
        self.most = 0
        """So many questions were open at a time, now and at most."""
        self.models = ["judge"]
        self.token_counts: Mapping[str, int] | None = None
        """Tokens of texts, where the server tells (others are one); None: it does not."""


@contextlib.asynccontextmanager
async def scripted_judge(answer: Answer) -> AsyncIterator[ScriptedJudge]:
    """A server on a free port of the loopback."""
    judge = ScriptedJudge()

    async def ask(request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.text())
        judge.asked.append({"path": request.path, **body})
        judge.keys.append(request.headers.get("Authorization"))
        judge.now += 1
        judge.most = max(judge.most, judge.now)
        try:
            return await answer(body)
        except DropError:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        finally:
            judge.now -= 1

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": name} for name in judge.models]})

    async def tokenize(request: web.Request) -> web.Response:
        if judge.token_counts is None:
            raise web.HTTPNotFound
        text = json.loads(await request.text())["prompt"]
        return web.json_response({"tokens": [0] * judge.token_counts.get(text, 1)})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", ask)
    app.router.add_post("/v1/completions", ask)
    app.router.add_get("/v1/models", models)
    app.router.add_post("/tokenize", tokenize)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    judge.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        yield judge
    finally:
        await runner.cleanup()


def said(
    text: str, logprobs: Mapping[str, float] | None = None, *, tokens: tuple[int, int] = (10, 1)
) -> web.Response:
    """An answer of /chat/completions with one token, and the likeliest in its place."""
    choice: Body = {"message": {"role": "assistant", "content": text}}
    if logprobs is not None:
        top = [{"token": token, "logprob": value} for token, value in logprobs.items()]
        content = [{"token": text, "logprob": logprobs.get(text, -9.0), "top_logprobs": top}]
        choice["logprobs"] = {"content": content}
    usage = {"prompt_tokens": tokens[0], "completion_tokens": tokens[1]}
    return web.json_response({"choices": [choice], "usage": usage})


def completed(text: str, logprobs: Mapping[str, float]) -> web.Response:
    """An answer of /completions with one token."""
    found = {
        "tokens": [text], "token_logprobs": [logprobs[text]], "top_logprobs": [dict(logprobs)]
    }  # fmt: skip
    return web.json_response({"choices": [{"text": text, "logprobs": found}]})


async def yes(body: Body) -> web.StreamResponse:
    """Says yes."""
    return said("yes", {"yes": -0.1, "no": -2.4})


def in_turn(*answers: Callable[[], web.StreamResponse]) -> Answer:
    """Says one after the other, the last for ever."""
    left = list(answers)

    async def answer(body: Body) -> web.StreamResponse:
        return (left.pop(0) if len(left) > 1 else left[0])()

    return answer


def failing(status: int, **headers: str) -> Callable[[], web.StreamResponse]:
    """An error of the server's."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    body = json.dumps({"error": {"message": f"trouble {status}\n(key {KEY})"}})
    return lambda: web.Response(status=status, text=body, headers=names)


def garbage() -> web.StreamResponse:
    """No answer at all."""
    return web.Response(text='{"choices": [')


def gathering(number: int, answer: Answer) -> Answer:
    """Answers nobody before so many have asked at a time."""
    barrier = asyncio.Barrier(number)

    async def together(body: Body) -> web.StreamResponse:
        await barrier.wait()
        return await answer(body)

    return together
