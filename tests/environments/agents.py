"""Agents with the `openai` client, well-behaved and not."""

import asyncio
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
from openai import AsyncOpenAI, OpenAIError

Row = Mapping[str, Any]
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}


class Chat:
    """A conversation that only grows."""

    def __init__(self, base_url: str, api_key: str, **client: Any) -> None:
        http = httpx.AsyncClient(trust_env=False)
        self.client = AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=http, **client)  # type: ignore[arg-type]
        self.messages: list[Any] = []

    async def say(self, text: str, role: str = "user", **options: Any) -> Any:
        self.messages.append({"role": role, "content": text})
        return await self.ask(**options)

    async def ask(self, **options: Any) -> Any:
        answer = await self.client.chat.completions.create(
            model="policy", messages=self.messages, **options
        )
        self.messages.append(answer.choices[0].message)
        return answer


async def echo(row: Row, *, base_url: str, api_key: str, last: str = "stop") -> Any:
    """Say what was said, until that is `last`."""
    chat, said, number = Chat(base_url, api_key), str(row["prompt"]), 0
    while said != last:
        said = (await chat.say(f"{number}:{said}")).choices[0].message.content
        number += 1
    return {"reward": number / 4, "success": True, "metrics": {"words": number}}


async def with_tools(row: Row, *, base_url: str, api_key: str) -> float:
    """Call what the policy calls."""
    chat = Chat(base_url, api_key)
    answer = await chat.say("add", logprobs=True, tools=[TOOL], temperature=0.3)
    calls = answer.choices[0].message.tool_calls
    assert answer.choices[0].finish_reason == "tool_calls"
    assert [(c.function.name, c.function.arguments) for c in calls] == [("add", '{"a": 2}')]
    assert [p.logprob for p in answer.choices[0].logprobs.content] == [-0.5] * 3
    assert answer.choices[0].token_ids == [7, 8, 9]
    chat.messages.append({"role": "tool", "tool_call_id": calls[0].id, "content": "4"})
    last = (await chat.ask(tools=[TOOL])).choices[0]
    assert last.message.tool_calls is None
    return float(last.message.content == "4")


async def streams(row: Row, *, base_url: str, api_key: str) -> float:
    """Read a reply with a call event by event."""
    chat = Chat(base_url, api_key)
    async with chat.client.chat.completions.stream(
        model="policy", messages=[{"role": "user", "content": "add"}], tools=[TOOL],  # type: ignore[list-item]
        stream_options={"include_usage": True},
    ) as stream:  # fmt: skip
        said = await stream.get_final_completion()
    calls = said.choices[0].message.tool_calls or []
    assert said.choices[0].finish_reason == "tool_calls"
    assert [(c.function.name, c.function.arguments) for c in calls] == [("add", '{"a": 2}')]
    assert said.usage is not None and said.usage.completion_tokens == 3  # noqa: PT018
    return 1.0


async def bad(
    row: Row, *, base_url: str, api_key: str, catches: bool = True, refused: str = "",
    breaks: bool = False,
) -> Any:  # fmt: skip
    """Ask what may not be asked, say what the refusal says, and go on. Once the second of two
    requests was refused, the file `refused` is there. `breaks`: raise at the end."""
    chat, what = Chat(base_url, api_key, max_retries=0), row["prompt"]
    if what in ("silent", "text"):
        return 1.0 if what == "silent" else "1.0"
    await chat.say("hello")
    before, said = list(chat.messages), ""
    try:
        if what == "rewritten":
            chat.messages[0] = {"role": "user", "content": "another"}
            await chat.say("and now")
        elif what == "twice":
            first = asyncio.create_task(chat.say("one"))
            await asyncio.sleep(0.2)
            other = Chat(base_url, api_key, max_retries=0)
            other.messages = before[:]
            try:
                await other.say("two")
            finally:
                Path(refused).touch()
                await first
        elif what == "key":
            await Chat(base_url, api_key[:-1] + "x").say("hello")
        elif what == "no key":
            await Chat(base_url, "x").say("hello")
        elif what == "long":
            await chat.say("x" * 10_000_000)
        elif what == "too long to send":
            await chat.say("x" * (2**20 + 1))
        elif what == "nothing":
            await chat.ask()
        elif what == "image":
            await chat.say([{"type": "image_url", "image_url": {"url": "x"}}])  # type: ignore[arg-type]
        else:
            options: dict[str, Any] = {"n": 2} if what == "two" else {"extra_body": {what: 1}}
            await chat.say("hello", **options)
    except OpenAIError as error:
        if not catches:
            raise
        said = str(error)
    if what != "twice":
        chat.messages = before
    await chat.say(said)
    if breaks:
        raise ValueError("it broke")
    return 1.0


async def rewrites(row: Row, *, base_url: str, api_key: str) -> float:
    """Ask in a second history, which begins otherwise, and go on with the first."""
    chat, other = Chat(base_url, api_key), Chat(base_url, api_key)
    await chat.say("a")
    said = (await other.say("b", tools=[TOOL])).choices[0].message
    calls = [call.function.name for call in said.tool_calls]
    await chat.say(f"c:{calls[0]}")
    await other.say("d", role="tool", tools=[TOOL])
    return 0.5


async def hands_over(row: Row, *, base_url: str, api_key: str) -> None:
    """Go on under another instruction, behind a call and its result."""
    chat = Chat(base_url, api_key)
    calls = (await chat.say("a", tools=[TOOL])).choices[0].message.tool_calls
    chat.messages[0] = {"role": "user", "content": "b"}
    chat.messages.append({"role": "tool", "tool_call_id": calls[0].id, "content": "4"})
    await chat.ask(tools=[TOOL])


async def slow(row: Row, *, base_url: str, api_key: str) -> None:
    """Wait too long after the first turn."""
    await Chat(base_url, api_key).say("hello")
    await asyncio.sleep(60)


async def deadly(row: Row, *, base_url: str, api_key: str, flag: str) -> float:
    """End its process once, behind the second turn."""
    chat = Chat(base_url, api_key)
    for number in range(3):
        await chat.say(str(number), tools=[TOOL])
        if number == 1 and not Path(flag).exists():
            Path(flag).touch()
            os._exit(1)
    return 1.0


async def fickle(row: Row, **options: Any) -> float:
    """The same, and cannot be built again."""
    return await deadly(row, **options)


fickle.replayable = False  # type: ignore[attr-defined]


async def vanishing(row: Row, *, base_url: str, api_key: str, own: str) -> None:
    """End its process behind the first turn, with the file that it is loaded from."""
    await Chat(base_url, api_key).say("hello")
    Path(own).unlink()
    os._exit(1)


async def otherwise(row: Row, *, base_url: str, api_key: str, flag: str) -> float:
    """Say something else when it is built again."""
    chat = Chat(base_url, api_key)
    await chat.say("again" if Path(flag).exists() else "first")
    Path(flag).touch()
    os._exit(1)


async def hasty(row: Row, *, base_url: str, api_key: str, flag: str) -> float:
    """End its process once, behind the second turn; built again, end the episode before it."""
    chat = Chat(base_url, api_key)
    await chat.say("0")
    if Path(flag).exists():
        return 1.0
    await chat.say("1")
    Path(flag).touch()
    os._exit(1)


async def late(row: Row, *, base_url: str, api_key: str, flag: str) -> None:
    """Ask after its end, and write down the answer."""
    chat = Chat(base_url, api_key, max_retries=0)
    await chat.say("hello")

    async def again() -> None:
        await asyncio.sleep(0.3)
        try:
            await chat.say("more")
        except OpenAIError as error:
            Path(flag).write_text(str(error))

    LATER.append(asyncio.create_task(again()))


LATER: list[asyncio.Task[None]] = []


async def blocking(row: Row, *, base_url: str, api_key: str, flag: str) -> None:
    """Hold up everybody after the first turn, as long as a file is there."""
    await Chat(base_url, api_key).say("hello")
    while Path(flag).exists():
        time.sleep(0.1)
