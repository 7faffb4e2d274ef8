"""The scoring children of one source.

In: items by `submit`. Out: one Score an item by the callback, in the order of completion.
Promises: an item ends within its deadline plus the time it waited for a free child of its source; a
child that misses a deadline is killed with all it started, and replaced; a crash costs only the
item that was running; what had not begun is handed out again.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Literal

from headrace.config.reward import SourceConfig
from headrace.errors import RunFailedError, UserError
from headrace.protocol.messages import Score, ScoreItem
from rewards.pipe import Batch, Began, Outcome
from rewards.process import START_TIMEOUT_S, Child, ChildDiedError

MAX_IDLE_DEATHS = 5
"""So many children in a row that died before they scored anything end the worker."""

Status = Literal["ok", "timeout", "crashed", "invalid"]


class Crew:
    """`source.children` children, kept alive until `run` is cancelled. `settle` is called with each
    score; `most_failures` of them in a row, audits apart, are a RunFailedError."""

    def __init__(
        self,
        source: SourceConfig,
        settle: Callable[[Score], None],
        *,
        batch: int,
        most_failures: int,
    ) -> None:
        self._source, self._settle_score = source, settle
        self._batch, self._most_failures = batch, most_failures
        self._waiting: deque[ScoreItem] = deque()
        self._arrived = asyncio.Condition()
        self._failures = 0
        self._idle_deaths = 0
        self.restarts = 0

    async def submit(self, items: Sequence[ScoreItem]) -> None:
        """Have these scored."""
        async with self._arrived:
            self._waiting.extend(items)
            self._arrived.notify_all()

    async def run(self) -> None:
        """Keep the children at work; ends only by cancellation or an error."""
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._source.children):
                    group.create_task(self._keep_child())
        except* (UserError, RunFailedError) as errors:
            raise errors.exceptions[0] from None

    async def _keep_child(self) -> None:
        while True:
            child = await Child.start(self._source)
            try:
                await self._feed(child)
            finally:
                await child.kill()
            self.restarts += 1

    async def _feed(self, child: Child) -> None:
        """Hand out batches until the child has to be replaced."""
        lives = True
        while lives:
            batch = await self._take()
            try:
                lives = await self._score_batch(child, batch)
            finally:
                await self._hand_back(batch)

    async def _take(self) -> deque[ScoreItem]:
        async with self._arrived:
            await self._arrived.wait_for(lambda: self._waiting)
            share = -(-len(self._waiting) // self._source.children)
            count = min(self._batch, share)
            return deque(self._waiting.popleft() for _ in range(count))

    async def _hand_back(self, batch: deque[ScoreItem]) -> None:
        async with self._arrived:
            self._waiting.extendleft(reversed(batch))
            self._arrived.notify_all()

    async def _score_batch(self, child: Child, batch: deque[ScoreItem]) -> bool:
        """Take items off `batch` as they are scored; False when the child is to be replaced."""
        try:
            await child.say(Batch(list(batch)))
            if not isinstance(await child.hear(START_TIMEOUT_S), Began):
                raise ChildDiedError("the child did not begin")
        except (ChildDiedError, TimeoutError) as error:
            self._count_idle_death(error)
            return False
        while batch:
            began = time.monotonic()
            try:
                answer = await child.hear(self._source.timeout_s)
                if not isinstance(answer, Outcome):
                    raise ChildDiedError(f"{type(answer).__name__} where an outcome belongs")
            except TimeoutError:
                text = f"no result within {self._source.timeout_s:g} s"
                self._settle(batch.popleft(), "timeout", time.monotonic() - began, error=text)
                return False
            except ChildDiedError as death:
                seconds, code = time.monotonic() - began, await child.kill()
                text = f"{death} (exit code {code})"
                self._settle(batch.popleft(), "crashed", seconds, error=text)
                return False
            self._settle(
                batch.popleft(),
                answer.status,
                answer.seconds,
                reward=answer.reward,
                correct=answer.correct,
                parts=answer.parts,
                error=answer.error,
                lines=answer.lines,
                siblings=answer.siblings,
            )
        return True

    def _settle(
        self,
        item: ScoreItem,
        status: Status,
        seconds: float,
        *,
        reward: float = 0.0,
        correct: bool = False,
        parts: dict[str, float] | None = None,
        error: str | None = None,
        lines: Sequence[float | None] = (),
        siblings: Sequence[Outcome] = (),
    ) -> None:
        self._idle_deaths = 0
        if not item.audit:
            self._failures = 0 if status == "ok" else self._failures + 1
        self._settle_score(
            Score(
                trajectory_id=item.trajectory_id,
                status=status,
                reward=reward,
                correct=correct,
                parts=parts or {},
                seconds=seconds,
                error=error,
                source=item.source,
                lines=list(lines),
                siblings=list(map(_sibling, item.siblings, siblings)),
                audit=item.audit,
            )
        )
        if self._failures >= self._most_failures:
            raise RunFailedError(
                f"{self._failures} scorings in a row failed; the last: {status}, {error}"
            )

    async def give_up(self, error: str) -> None:
        """Everything that waits has failed."""
        async with self._arrived:
            while self._waiting:
                self._settle(self._waiting.popleft(), "crashed", 0.0, error=error)

    def _count_idle_death(self, error: Exception) -> None:
        self._idle_deaths += 1
        if self._idle_deaths >= MAX_IDLE_DEATHS:
            raise RunFailedError(
                f"{self._idle_deaths} scoring children in a row died before they began: {error}"
            ) from error


def _sibling(item: ScoreItem, outcome: Outcome) -> Score:
    """The score of one of a group."""
    return Score(
        trajectory_id=item.trajectory_id,
        status=outcome.status,
        reward=outcome.reward,
        correct=outcome.correct,
        parts=outcome.parts,
        seconds=outcome.seconds,
        error=outcome.error,
        source=item.source,
    )
