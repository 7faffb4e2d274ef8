"""Main loop of a reward worker.

In: ScoreRequests. Out: Scores; the first at once, others with those of the next GATHER_S. Blocks
on: the socket, and the children of the pool. Wakes by: a message, a score. Shutdown: what is held
is finished, audits apart, within `drain_s`. Failure: RunFailedError or UserError, also of the pool.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from headrace.errors import RunFailedError, UserError
from headrace.protocol.messages.control import Message, Score, ScoreRequest, Scores
from headrace.protocol.transport.sockets import Dealer
from rewards.worker.pool import ScoringPool

GATHER_S = 0.05
"""Seconds in which scores are gathered: a message costs more than its plain answers."""
MOST_SCORES = 256


async def serve(
    dealer: Dealer, pool: ScoringPool, messages: AsyncIterator[Message], *, drain_s: float
) -> None:
    """Score until there are no more messages."""
    try:
        async with asyncio.TaskGroup() as group:
            children = group.create_task(pool.run(), name="children")
            sender = group.create_task(_send(dealer, pool), name="scores out")
            async for message in messages:
                if isinstance(message, ScoreRequest):
                    await pool.submit(message.items)
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


async def _send(dealer: Dealer, pool: ScoringPool) -> None:
    while True:
        await _send_some(dealer, pool, [await pool.scores.get()])
        await asyncio.sleep(GATHER_S)


async def _send_some(dealer: Dealer, pool: ScoringPool, scores: list[Score]) -> None:
    while not pool.scores.empty() and len(scores) < MOST_SCORES:
        scores.append(pool.scores.get_nowait())
    await dealer.send(Scores(scores=scores))
    for _ in scores:
        pool.scores.task_done()
