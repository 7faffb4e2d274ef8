"""Scoring without a run: finished responses in, scores out, through the children that a run has.

In: the reward section and items. Out: one Score an item, in the order of the items, each as soon as
it and those before it are there. Deadlines, kills and replacements are a run's; failures are
results here, however many there are in a row. Answers to the same prompt are the siblings of one
group where their source sees groups.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

from msgspec.structs import replace

from headrace.config.reward import RewardConfig
from headrace.protocol.messages import Score, ScoreItem
from rewards.pool import Pool


async def score_all(config: RewardConfig, items: Sequence[ScoreItem]) -> AsyncIterator[Score]:
    """The scores of items whose trajectory ids are their places; UserError or RunFailedError where
    a child cannot be had."""
    patient = config.model_copy(update={"max_consecutive_failures": len(items) + 1})
    pool = Pool(patient)
    children = asyncio.create_task(pool.run(), name="children")
    groups = _groups(config, items)
    members = {group.trajectory_id: group.siblings for group in groups}
    grouped = {item.trajectory_id for siblings in members.values() for item in siblings}
    alone = [item for item in items if item.trajectory_id not in grouped]
    try:
        await pool.submit([*alone, *groups])
        ready: dict[int, Score] = {}
        for place in range(len(items)):
            while place not in ready:
                score = await _next(pool, children)
                siblings = members.get(score.trajectory_id, [])
                each = score.siblings or [score] * len(siblings)
                for item, one in zip(siblings, each, strict=True):
                    ready[item.trajectory_id] = replace(one, trajectory_id=item.trajectory_id)
                if not siblings:
                    ready[score.trajectory_id] = score
            yield ready.pop(place)
    finally:
        children.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await children


def _groups(config: RewardConfig, items: Sequence[ScoreItem]) -> list[ScoreItem]:
    """One item for all answers to a prompt whose source sees them together."""
    together: dict[tuple[str, str], list[ScoreItem]] = {}
    sources = config.each()
    for item in items:
        if sources[item.source].unit == "group":
            together.setdefault((item.source, item.prompt), []).append(item)
    return [
        replace(siblings[0], text="", completion_ids=None, unit="group", siblings=siblings)
        for siblings in together.values()
    ]


async def _next(pool: Pool, children: asyncio.Task[None]) -> Score:
    """The next score, or the error that ended the children."""
    score = asyncio.create_task(pool.scores.get())
    done, _ = await asyncio.wait({score, children}, return_when=asyncio.FIRST_COMPLETED)
    if score in done:
        return score.result()
    score.cancel()
    children.result()
    raise AssertionError("the children ended without a reason")
