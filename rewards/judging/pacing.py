"""How often a server may be asked, and how long to wait after a failure.

In: failures and a limit. Out: waits. `Pace` delays each caller until its turn; a server's
`Retry-After` delays all.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

MINUTE_S = 60.0


def backoff_s(failures: int, *, first_s: float, longest_s: float, chance: float) -> float:
    """Seconds to wait after a number of failures in a row: between a half and the whole of a time
    that doubles, by `chance` in [0, 1), so that clients that failed together retry apart."""
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
    """At most `per_minute` entries in any minute, evenly spaced, so that nobody waits for a minute
    that others filled at its beginning; None: as many as come. First come, first served."""

    def __init__(
        self,
        per_minute: int | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._spacing_s = 0.0 if per_minute is None else MINUTE_S / per_minute
        self._clock, self.sleep = clock, sleep
        self._next = self._closed_until = float("-inf")

    async def enter(self) -> None:
        """Return when it is one's turn."""
        while (wait := self._reserve() - self._clock()) > 0:
            await self.sleep(wait)
            if self._clock() >= self._closed_until:
                return

    def hold(self, seconds: float) -> None:
        """Nobody enters for so long."""
        self._closed_until = max(self._closed_until, self._clock() + seconds)

    def _reserve(self) -> float:
        """The next free turn, which is taken by this."""
        turn = max(self._clock(), self._next, self._closed_until)
        self._next = turn + self._spacing_s
        return turn
