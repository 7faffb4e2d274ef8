"""The scoring children of a worker, kept warm: `SourceWorkers` per source.

In: items by `submit`. Out: one Score per item on `scores`, in the order of completion. Promises:
those of `SourceWorkers` for a source, and that no source waits for another. `run` raises
RunFailedError when the scorings of a source keep failing and UserError when one cannot be built.
"""

import asyncio
import logging
from collections.abc import Sequence

from headrace.config.sections.reward import RewardConfig
from headrace.errors import RunFailedError, UserError, first_error
from headrace.protocol.messages.control import Score, ScoreItem
from rewards.worker.source_workers import SourceWorkers

AUDIT_RETRY_S = 10.0
"""Seconds before a source that only audits restarts."""
log = logging.getLogger("rewards")


class ScoringPool:
    """The children of every source of `config`, kept alive until `run` is cancelled."""

    def __init__(self, config: RewardConfig) -> None:
        self._sources = {
            name: SourceWorkers(
                source,
                self._settle,
                batch=config.batch,
                most_failures=config.max_consecutive_failures,
            )
            for name, source in config.each().items()
        }
        self.scores: asyncio.Queue[Score] = asyncio.Queue()
        self._audit_only = config.audit_only()
        self._idle = asyncio.Event()
        self._idle.set()
        self.held = 0
        """Items submitted and not yet scored."""
        self._owed = 0
        """Those of them that are no audits, which somebody waits for."""

    @property
    def restarts(self) -> int:
        """Children that had to be replaced."""
        return sum(workers.restarts for workers in self._sources.values())

    async def submit(self, items: Sequence[ScoreItem]) -> None:
        """Have these scored; RunFailedError where a source is not known."""
        if strangers := {item.source for item in items} - self._sources.keys():
            raise RunFailedError(f"no reward source {sorted(strangers)[0]!r} is configured")
        self.held += len(items)
        self._owed += sum(not item.audit for item in items)
        if self._owed:
            self._idle.clear()
        for name, workers in self._sources.items():
            own = [item for item in items if item.source == name]
            if own:
                await workers.submit(own)

    async def finish(self) -> None:
        """Return when all items but audits are scored and `scores` is dealt with."""
        await self._idle.wait()
        await self.scores.join()

    async def run(self) -> None:
        """Keep the children at work; ends only by cancellation or an error."""
        with first_error(UserError, RunFailedError):
            async with asyncio.TaskGroup() as group:
                for name, workers in self._sources.items():
                    group.create_task(self._keep(name, workers), name=f"source {name}")

    async def _keep(self, name: str, workers: SourceWorkers) -> None:
        """Run a source's children; one that only audits fails its items and restarts."""
        while True:
            try:
                return await workers.run()
            except (UserError, RunFailedError) as error:
                if name not in self._audit_only:
                    raise
                log.warning("audit source %s cannot score: %s", name, error)
                await workers.give_up(str(error))
                await asyncio.sleep(AUDIT_RETRY_S)

    def _settle(self, score: Score) -> None:
        self.held -= 1
        self._owed -= not score.audit
        if not self._owed:
            self._idle.set()
        self.scores.put_nowait(score)
