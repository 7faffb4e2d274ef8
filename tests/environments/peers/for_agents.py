"""Agents of the OpenAI Agents SDK, as its users write them."""

from collections.abc import Mapping
from typing import Any

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

set_tracing_disabled(True)


@function_tool  # type: ignore[untyped-decorator]
def multiply(a: int, b: int) -> int:
    """Multiply two whole numbers."""
    return a * b


async def play(row: Mapping[str, Any], *, base_url: str, api_key: str) -> float:
    """Ask for a product with a tool at hand, and reward the right answer."""
    client = AsyncOpenAI(base_url=base_url, api_key=api_key)
    model = OpenAIChatCompletionsModel("policy", client)
    agent = Agent("products", instructions="Use the tool.", model=model, tools=[multiply])
    result = await Runner.run(agent, row["prompt"], max_turns=4)
    return float(result.final_output == row["answer"])
