"""The heart of a reward worker.

In: ScoreRequests. Out: Scores; the first at once, others with those of the next GATHER_S. Blocks
on: the socket, and the children of the pool. Wakes by: a message, a score. Shutdown: what is held
is finished, audits apart, within `drain_s`, then `serve` returns. Silence: after `quiet_s` without
a message the worker says Hello again (a restarted coordinator has forgotten it), after `stall_s` it
gives up. Failure: RunFailedError or UserError, also when the pool cannot go on.
"""

import asyncio
import contextlib
import time

from headrace.errors import RunFailedError, UserError
from headrace.protocol.messages.control import (
    AskHello,
    Hello,
    Refused,
    Score,
    ScoreRequest,
    Scores,
    Shutdown,
)
from headrace.protocol.transport.sockets import Dealer
from rewards.worker.pool import Pool

GATHER_S = 0.05
"""A message costs more than the plain answers in it; so long nobody minds to wait."""
MOST_SCORES = 256


async def serve(
    dealer: Dealer, pool: Pool, hello: Hello, *, quiet_s: float, stall_s: float, drain_s: float
) -> None:
    """Score until Shutdown."""
    try:
        async with asyncio.TaskGroup() as group:
            children = group.create_task(pool.run(), name="children")
            sender = group.create_task(_send(dealer, pool), name="scores out")
            await _receive(dealer, pool, hello, quiet_s=quiet_s, stall_s=stall_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(drain_s):
                    await pool.finish()
            children.cancel()
            sender.cancel()
    except* (UserError, RunFailedError) as errors:
        raise errors.exceptions[0] from None
    finally:
        # What led to a failure is news too.
        while not pool.scores.empty():
            await _send_some(dealer, pool, [])


async def _receive(
    dealer: Dealer, pool: Pool, hello: Hello, *, quiet_s: float, stall_s: float
) -> None:
    heard = time.monotonic()
    while True:
        message = await dealer.receive_within(min(quiet_s, stall_s))
        if message is None:
            silent = time.monotonic() - heard
            if silent >= stall_s:
                raise RunFailedError(f"no word from the coordinator for {silent:.0f} s")
            await dealer.send(hello)
            continue
        heard = time.monotonic()
        if isinstance(message, ScoreRequest):
            await pool.submit(message.items)
        elif isinstance(message, AskHello):
            await dealer.send(hello)
        elif isinstance(message, Refused):
            raise RunFailedError(f"the coordinator refuses this worker: {message.reason}")
        elif isinstance(message, Shutdown):
            return


async def _send(dealer: Dealer, pool: Pool) -> None:
    while True:
        await _send_some(dealer, pool, [await pool.scores.get()])
        await asyncio.sleep(GATHER_S)


async def _send_some(dealer: Dealer, pool: Pool, scores: list[Score]) -> None:
    while not pool.scores.empty() and len(scores) < MOST_SCORES:
        scores.append(pool.scores.get_nowait())
    await dealer.send(Scores(scores=scores))
    for _ in scores:
        pool.scores.task_done()
