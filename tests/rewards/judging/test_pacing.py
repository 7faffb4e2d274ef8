"""Waits after failures and between requests, on a clock of the test's own."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewards.judging.server import MINUTE_S, RateLimiter, backoff_s, retry_after_s


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


@given(st.integers(1, 5000), st.floats(0, 1, exclude_max=True))
def test_waits_double_up_to_the_longest(failures: int, chance: float) -> None:
    wait = backoff_s(failures, first_s=0.5, longest_s=30.0, chance=chance)
    whole = 30.0 if failures > 6 else min(30.0, 0.5 * 2 ** (failures - 1))
    assert whole / 2 <= wait <= whole


def test_retry_after_is_seconds_or_a_date() -> None:
    now = "Tue, 01 Jan 2030 12:00:00 GMT"
    assert retry_after_s("7") == 7.0
    assert retry_after_s("Tue, 01 Jan 2030 12:00:30 GMT", now) == 30.0
    assert retry_after_s("Tue, 01 Jan 2030 12:00:30 GMT", "Tue, 01 Jan 2030 12:00:00 -0000") == 30.0
    assert retry_after_s("Tue, 01 Jan 2030 11:00:00 GMT", now) == 0.0
    assert retry_after_s("Tue, 01 Jan 1980 11:00:00 GMT") == 0.0
    for text in (None, "", "soon", "inf", "nan", "-3"):
        assert retry_after_s(text, now) is None


@pytest.mark.parametrize("per_minute", [1, 3, 60])
async def test_no_minute_has_more_than_the_limit(per_minute: int) -> None:
    clock = Clock()
    pace = RateLimiter(per_minute, clock=clock, sleep=clock.sleep)
    entries = []
    for _ in range(4 * per_minute):
        await pace.enter()
        entries.append(clock.now)
    for at in entries:
        assert sum(at <= other < at + MINUTE_S for other in entries) <= per_minute
    # Evenly spaced: the last one waits for those before it, and no longer.
    assert entries == [MINUTE_S / per_minute * i for i in range(4 * per_minute)]


async def test_whoever_is_asked_for_patience_holds_all() -> None:
    clock = Clock()
    pace = RateLimiter(None, clock=clock, sleep=clock.sleep)
    await pace.enter()
    pace.hold(5.0)
    pace.hold(2.0)
    assert clock.now == 0.0
    await pace.enter()
    assert clock.now == 5.0


async def test_who_waited_for_a_turn_waits_for_the_end_of_a_hold_too() -> None:
    clock = Clock()

    async def sleep(seconds: float) -> None:
        await clock.sleep(seconds)
        if clock.now == 60.0:
            pace.hold(30.0)

    pace = RateLimiter(1, clock=clock, sleep=sleep)
    await pace.enter()
    await pace.enter()
    # Its own turn was at 60; the one after the hold is the next of the pace.
    assert clock.now == 120.0


async def test_who_gives_up_leaves_their_turn_to_others() -> None:
    """A server's `Retry-After` may be longer than the deadline of all that wait for its end."""
    clock, opened = Clock(), asyncio.Event()

    async def sleep(seconds: float) -> None:
        await opened.wait()
        await clock.sleep(seconds)

    pace = RateLimiter(60, clock=clock, sleep=sleep)
    await pace.enter()
    waiting = [asyncio.create_task(pace.enter()) for _ in range(30)]
    await asyncio.sleep(0)
    for task in waiting:
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    opened.set()
    await pace.enter()
    assert clock.now == 1.0
