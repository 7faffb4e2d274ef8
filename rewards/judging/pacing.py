"""How often a server may be asked, and how long to wait after a failure.

In: failures and a limit. Out: waits. `Pace` holds whoever asks until a minute has room; a server
that asks for patience (`Retry-After`) gets it from all.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

MINUTE_S = 60.0


def backoff_s(failures: int, *, first_s: float, longest_s: float, chance: float) -> float:
    """Seconds to wait after so many failures in a row: between a half and the whole of a time that
    doubles, by `chance` in [0, 1), so that those who failed together do not return together."""
    # 2**60 is longer than any wait, and a float.
    whole = min(longest_s, first_s * 2.0 ** min(failures - 1, 60))
    return whole * (0.5 + 0.5 * chance)


def retry_after_s(header: str | None, now: datetime | None = None) -> float | None:
    """What a server's `Retry-After` asks for, in seconds: a number or a date; None where it asks
    for nothing that can be read."""
    if header is None:
        return None
    if header.strip().isdecimal():
        return float(header)
    try:
        at = parsedate_to_datetime(header)
    except ValueError:
        return None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return max(0.0, (at - (now or datetime.now(UTC))).total_seconds())


class Pace:
    """At most `per_minute` entries in any minute; None: as many as come."""

    def __init__(
        self,
        per_minute: int | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._per_minute, self._clock, self.sleep = per_minute, clock, sleep
        self._entries: deque[float] = deque()
        self._closed_until = float("-inf")

    async def enter(self) -> None:
        """Return when it is one's turn."""
        while (wait := self._wait_s()) > 0:
            await self.sleep(wait)
        if self._per_minute is not None:
            self._entries.append(self._clock())

    def hold(self, seconds: float) -> None:
        """Nobody enters for so long."""
        self._closed_until = max(self._closed_until, self._clock() + seconds)

    def _wait_s(self) -> float:
        now = self._clock()
        while self._entries and now - self._entries[0] >= MINUTE_S:
            self._entries.popleft()
        wait = self._closed_until - now
        if self._per_minute is not None and len(self._entries) >= self._per_minute:
            wait = max(wait, self._entries[0] + MINUTE_S - now)
        return wait
