"""Scoring without a run: finished responses in, scores out, through the children that a run has.

In: the reward section and items. Out: one Score an item, in the order of the items, each as soon as
it and those before it are there. Deadlines, kills and replacements are a run's; failures are
results here, however many there are in a row.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

from headrace.config.reward import RewardConfig
from headrace.protocol.messages import Score, ScoreItem
from rewards.pool import Pool


async def score_all(config: RewardConfig, items: Sequence[ScoreItem]) -> AsyncIterator[Score]:
    """The scores of items whose trajectory ids are their places; UserError or RunFailedError where
    a child cannot be had."""
    patient = config.model_copy(update={"max_consecutive_failures": len(items) + 1})
    pool = Pool(patient)
    children = asyncio.create_task(pool.run(), name="children")
    try:
        await pool.submit(items)
        ready: dict[int, Score] = {}
        for place in range(len(items)):
            while place not in ready:
                score = await _next(pool, children)
                ready[score.trajectory_id] = score
            yield ready.pop(place)
    finally:
        children.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await children


async def _next(pool: Pool, children: asyncio.Task[None]) -> Score:
    """The next score, or the error that ended the children."""
    score = asyncio.create_task(pool.scores.get())
    done, _ = await asyncio.wait({score, children}, return_when=asyncio.FIRST_COMPLETED)
    if score in done:
        return score.result()
    score.cancel()
    children.result()
    raise AssertionError("the children ended without a reason")
