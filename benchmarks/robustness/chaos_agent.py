"""An agent for chaos runs: a coroutine and, in some episodes, a program.

In: the seed of the row. Out: requests and a reward that follow from it and from the completions.
"""

import asyncio
import json
import os
import random
import sys
from collections.abc import Mapping
from typing import Any

import httpx

from environments.built_in import command

PROGRAMS = 8
"""One of this many episodes is played by a separate process."""


async def roaming(row: Mapping[str, Any], *, base_url: str, api_key: str) -> Any:
    """Make two to six requests."""
    if random.Random(row["seed"]).randrange(PROGRAMS):
        return await _talk(row, base_url, api_key)
    return await command(row, base_url=base_url, api_key=api_key, run=[sys.executable, __file__])


async def _talk(row: Mapping[str, Any], base_url: str, api_key: str) -> float:
    draw, messages, earned = random.Random(row["seed"]), list[dict[str, Any]](), 0
    headers = {"Authorization": f"Bearer {api_key}"}
    async with httpx.AsyncClient(headers=headers, timeout=None, trust_env=False) as client:
        for _ in range(draw.randint(2, 6)):
            text = "".join(draw.choices("123456789", k=4)) + str(earned % 9)
            messages.append({"role": "user", "content": text})
            answer = await client.post(f"{base_url}/chat/completions", json={"messages": messages})
            answer.raise_for_status()
            messages.append(answer.json()["choices"][0]["message"])
            earned += len(messages[-1]["content"]) % 3
    return earned / 4


if __name__ == "__main__":
    endpoint = (os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"])
    print(json.dumps(asyncio.run(_talk(json.load(sys.stdin), *endpoint))))
