"""The event loop of a scoring child, one for its life: its connections stay usable."""

import asyncio
from collections.abc import Awaitable
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")


@lru_cache(maxsize=1)
def _event_loop() -> asyncio.AbstractEventLoop:
    """The loop; nobody else runs it."""
    return asyncio.new_event_loop()


def run(awaitable: Awaitable[T]) -> T:
    """Wait for a result where nothing else is to be done meanwhile."""
    return _event_loop().run_until_complete(awaitable)
