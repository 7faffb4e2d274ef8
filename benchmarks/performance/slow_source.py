"""Reward functions that are slow in every second turn of the clock, as one that asks a server is,
and instant in the others.

In: an answer. Out: 1.0. Promise: whether a time belongs to a slow turn is told by the clock alone
(`slow_at`), so that who looks at a run later on knows it too.
"""

import asyncio
import time

SECONDS = 0.5
"""How long an answer takes in a slow turn."""
TURN_S = 4.0
"""Length of a turn."""


def slow_at(at: float) -> bool:
    """Whether answers are scored slowly at a time, in seconds since the epoch."""
    return int(at // TURN_S) % 2 == 1


async def coroutine(completion: str) -> float:
    """Waits, and lets others go on meanwhile."""
    if slow_at(time.time()):
        await asyncio.sleep(SECONDS)
    return 1.0


def function(completion: str) -> float:
    """Waits, and keeps its process waiting."""
    if slow_at(time.time()):
        time.sleep(SECONDS)
    return 1.0
