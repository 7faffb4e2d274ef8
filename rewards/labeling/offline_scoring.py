"""Scoring of responses without a run, by the children that a run has.

In: the reward section; items, one by one by `OfflineScorer.score` or all by `score_all`. Out:
Scores. Deadlines, kills and replacements of children are a run's; any failures in a row are
results.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from itertools import count

from msgspec.structs import replace

from headrace.config.sections.reward import RewardConfig
from headrace.protocol.messages.control import Score, ScoreItem
from rewards.worker.pool import ScoringPool

_PATIENCE = 1 << 62


class OfflineScorer:
    """Passes items to the children of a pool, and their scores back to the callers."""

    def __init__(self, pool: ScoringPool) -> None:
        self._pool = pool
        self._numbers = count()
        self._asked: dict[int, asyncio.Future[Score]] = {}
        self._broken: BaseException | None = None

    async def score(self, item: ScoreItem) -> Score:
        """Return a response's score, its id kept; UserError or RunFailedError without children."""
        if self._broken is not None:
            raise self._broken
        number = next(self._numbers)
        self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            await self._pool.submit([replace(item, trajectory_id=number)])
            score = await self._asked[number]
        finally:
            del self._asked[number]
        return replace(score, trajectory_id=item.trajectory_id)

    async def run(self) -> None:
        """Keep the children at work until it is cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pool.run(), name="children")
                group.create_task(self._hand_out(), name="scores")
        except* Exception as errors:  # supervision boundary: whoever asked learns the cause
            self._broken = errors.exceptions[0]
            for future in self._asked.values():
                if not future.done():
                    future.set_exception(self._broken)

    async def _hand_out(self) -> None:
        while True:
            score = await self._pool.scores.get()
            future = self._asked.get(score.trajectory_id)
            if future is not None and not future.done():
                future.set_result(score)


@contextlib.asynccontextmanager
async def open_scorer(config: RewardConfig) -> AsyncIterator[OfflineScorer]:
    """Return a scorer whose children live as long as the block."""
    scorer = OfflineScorer(
        ScoringPool(config.model_copy(update={"max_consecutive_failures": _PATIENCE}))
    )
    running = asyncio.create_task(scorer.run(), name="scorer")
    try:
        yield scorer
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def score_all(config: RewardConfig, items: Sequence[ScoreItem]) -> AsyncIterator[Score]:
    """Yield the scores of items in their order, each as soon as it is there.

    Trajectory ids are the items' places. Answers to the same prompt are the siblings of one group
    where their source scores groups. UserError or RunFailedError where a child cannot be had."""
    sources = config.each()
    groups: dict[tuple[str, str] | int, list[ScoreItem]] = {}
    for item in items:
        sees_groups = sources[item.source].unit == "group"
        key = (item.source, item.prompt) if sees_groups else item.trajectory_id
        groups.setdefault(key, []).append(item)
    async with open_scorer(config) as scorer:
        asked: dict[int, tuple[asyncio.Task[Score], int]] = {}
        for key, members in groups.items():
            item = members[0]
            if isinstance(key, tuple):
                item = replace(item, text="", completion_ids=None, unit="group", siblings=members)
            task = asyncio.create_task(scorer.score(item))
            asked |= {one.trajectory_id: (task, place) for place, one in enumerate(members)}
        try:
            for item in items:
                task, place = asked[item.trajectory_id]
                score = await task
                one = score.siblings[place] if score.siblings else score
                yield replace(one, trajectory_id=item.trajectory_id)
        finally:
            for task, _ in asked.values():
                task.cancel()
            await asyncio.gather(*(task for task, _ in asked.values()), return_exceptions=True)
