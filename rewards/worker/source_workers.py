"""The scoring children of one source.

In: items by `submit`. Out: one Score per item by the callback, in the order of completion.
Promises: what the fast path can decide is answered at once; any other item ends within its deadline
plus its wait for a free child of its source; a child that misses a deadline is killed with all it
started, and replaced; a crash costs only what was running; what had not begun is handed out again.

A child whose verifier waits for others (a server, a coroutine) scores many responses at a time. A
slow item of it delays no other; one that misses its deadline is a `timeout` of that item alone,
which the child sees to; a child that is stuck, and its deadlines with it, is given up a little
later, and items within their deadline go back.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from headrace.config.sections.reward import SourceConfig
from headrace.errors import RunFailedError, UserError, first_error
from headrace.protocol.messages.control import Score, ScoreItem
from rewards import kinds
from rewards.answers.row import right_or_wrong
from rewards.functions.reward_scaling import scale_response, unfinished, waits_for_an_end
from rewards.worker.child_process import (
    START_TIMEOUT_S,
    ChildDiedError,
    ChildKilledError,
    ScoringChild,
)
from rewards.worker.pipe import Batch, Began, Outcome

MAX_IDLE_DEATHS = 5
"""Number of consecutive children dying before their first score that end the worker."""
GRACE_S = 2.0
"""Seconds over the deadline of an item after which a child is stuck."""

FastPath = Callable[[ScoreItem], Outcome | None]
Judge = Callable[[ScoreItem], bool | None]


class SourceWorkers:
    """The `source.children` children of a source, kept alive until `run` is cancelled.

    `settle` receives each score; `most_failures` in a row, audits apart, are a RunFailedError."""

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
        self._fast_path = fast_path_of(source)
        self._waiting: deque[ScoreItem] = deque()
        self._arrived = asyncio.Condition()
        self._failures = 0
        self._idle_deaths = 0
        self.restarts = 0

    async def submit(self, items: Sequence[ScoreItem]) -> None:
        """Have these scored."""
        left = [item for item in items if not self._score_at_once(item)]
        if left:
            async with self._arrived:
                self._waiting.extend(left)
                self._arrived.notify_all()

    def _score_at_once(self, item: ScoreItem) -> bool:
        """Score an item without a child, if it can be."""
        if (outcome := self._fast_path(item)) is None:
            return False
        self._settle_score(_score(item, outcome))
        return True

    async def run(self) -> None:
        """Keep the children at work; ends only by cancellation or an error."""
        with first_error(UserError, RunFailedError):
            async with asyncio.TaskGroup() as group:
                for _ in range(self._source.children):
                    group.create_task(self._keep_child())

    async def _keep_child(self) -> None:
        while True:
            try:
                child = await ScoringChild.start(self._source)
            except ChildKilledError as error:
                self.count_idle_death(error)
                continue
            try:
                await self._feed(child)
            finally:
                await child.kill()
            self.restarts += 1

    async def _feed(self, child: ScoringChild) -> None:
        """Hand out batches until the child has to be replaced."""
        if child.ready.concurrency:
            await score_concurrently(child, self, self._source.timeout_s)
            return
        lives = True
        while lives:
            batch = await self.take(self._batch)
            try:
                lives = await self._score_batch(child, batch)
            finally:
                await self.hand_back(batch)

    async def take(self, most: int) -> deque[ScoreItem]:
        """The next items: at least one, and not more than this child's share."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: self._waiting)
            share = -(-len(self._waiting) // self._source.children)
            count = min(most, share)
            return deque(self._waiting.popleft() for _ in range(count))

    async def hand_back(self, items: Sequence[ScoreItem]) -> None:
        """These come next."""
        async with self._arrived:
            self._waiting.extendleft(reversed(items))
            self._arrived.notify_all()

    async def _score_batch(self, child: ScoringChild, batch: deque[ScoreItem]) -> bool:
        """Take items off `batch` as they are scored; False when the child is to be replaced."""
        try:
            await child.send(Batch(list(batch)))
            if not isinstance(await child.receive(START_TIMEOUT_S), Began):
                raise ChildDiedError("the child did not begin")
        except (ChildDiedError, TimeoutError) as error:
            self.count_idle_death(error)
            return False
        while batch:
            began = time.monotonic()
            try:
                answer = await child.receive(self._source.timeout_s)
                if not isinstance(answer, Outcome):
                    raise ChildDiedError(f"{type(answer).__name__} where an outcome belongs")
            except TimeoutError:
                text = f"no result within {self._source.timeout_s:g} s"
                self.lose([(batch.popleft(), time.monotonic() - began)], "timeout", text)
                return False
            except ChildDiedError as death:
                seconds, code = time.monotonic() - began, await child.kill()
                self.lose([(batch.popleft(), seconds)], "crashed", f"{death} (exit code {code})")
                return False
            self.settle(batch.popleft(), answer)
        return True

    def settle(self, item: ScoreItem, outcome: Outcome) -> None:
        """An item is done; RunFailedError when too many in a row failed."""
        self._report(item, outcome)
        self._count([item], outcome)

    def lose(
        self,
        items: Sequence[tuple[ScoreItem, float]],
        status: Literal["timeout", "crashed"],
        error: str,
    ) -> None:
        """Settle items that ended with their child, with their seconds, as one failure."""
        for item, seconds in items:
            self._report(item, Outcome(status, seconds, error=error))
        self._count([item for item, _ in items], Outcome(status, 0.0, error=error))

    def _report(self, item: ScoreItem, outcome: Outcome) -> None:
        self._idle_deaths = 0
        self._settle_score(_score(item, outcome))

    def _count(self, items: Sequence[ScoreItem], outcome: Outcome) -> None:
        """Count the outcome of items at once as one, of audits as none."""
        if all(item.audit for item in items):
            return
        self._failures = 0 if outcome.status == "ok" else self._failures + 1
        if self._failures >= self._most_failures:
            raise RunFailedError(
                f"{self._failures} scorings in a row failed; the last: {outcome.status}, "
                f"{outcome.error}"
            )

    async def give_up(self, error: str) -> None:
        """Everything that waits has failed."""
        async with self._arrived:
            while self._waiting:
                self._report(self._waiting.popleft(), Outcome("crashed", 0.0, error=error))

    def count_idle_death(self, error: Exception) -> None:
        """A child died that was scoring nothing; RunFailedError when that goes on."""
        self._idle_deaths += 1
        if self._idle_deaths >= MAX_IDLE_DEATHS:
            raise RunFailedError(
                f"{self._idle_deaths} scoring children in a row died before they began: {error}"
            ) from error


def _score(item: ScoreItem, outcome: Outcome) -> Score:
    """Convert an item's outcome to the coordinator's Score."""
    return Score(
        trajectory_id=item.trajectory_id,
        status=outcome.status,
        reward=outcome.reward,
        correct=outcome.correct,
        parts=outcome.parts,
        seconds=outcome.seconds,
        error=outcome.error,
        source=item.source,
        lines=list(outcome.lines),
        siblings=list(map(_score, item.siblings, outcome.siblings)),
        audit=item.audit,
        model=outcome.model,
    )


def fast_path_of(source: SourceConfig) -> FastPath:
    """Return the fast path of a source; None where a child has to score.

    Its score equals the child's and comes from comparing texts, in microseconds that are not
    counted; it is never an error, and neither a user's code nor a library runs."""
    judge = _judge_of(source)
    # Three outcomes are all there are, so each is made once.
    right, wrong = (
        Outcome.of(scale_response(source, right_or_wrong(correct), graded=False), 0.0)
        for correct in (True, False)
    )
    without_end = Outcome.of(unfinished(source), 0.0)
    outcomes = {True: right, False: wrong, None: None}

    def fast_path(item: ScoreItem) -> Outcome | None:
        return without_end if waits_for_an_end(source, item) else outcomes[judge(item)]

    return fast_path


def _judge_of(source: SourceConfig) -> Judge:
    """Return the kind's fast path, or one without answers.

    It has none where a user's expression, which may never end, comes first."""
    has_fast_path = source.kind in kinds.FAST_PATH_KINDS and source.unit == "trajectory"
    if has_fast_path and source.format is None:
        module = kinds.load(source.kind)
        # What the options lack is told by a child, as of every other kind.
        with contextlib.suppress(UserError):
            return module.fast_path(kinds.read_options(source, module))
    return lambda item: None


class _PendingItem(NamedTuple):
    item: ScoreItem
    at: float


async def score_concurrently(child: ScoringChild, owner: SourceWorkers, timeout_s: float) -> None:
    """Keep up to `child.ready.concurrency` items in flight until the child has to be replaced."""
    flight = _ConcurrentCalls(child, owner, timeout_s)
    jobs = [asyncio.create_task(job) for job in (flight.send(), flight.receive(), flight.watch())]
    try:
        try:
            done, _ = await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)
        for job in done:
            job.result()
    except ChildDiedError as death:
        flight.lose_all(f"{death} (exit code {await child.kill()})", death)
    finally:
        await owner.hand_back([begun.item for begun in flight.begun.values()])


class _ConcurrentCalls:
    """Three jobs that end together, with the first."""

    def __init__(self, child: ScoringChild, owner: SourceWorkers, timeout_s: float) -> None:
        self._child, self._owner, self._timeout_s = child, owner, timeout_s
        self._most = child.ready.concurrency
        self._next = self._read = 0
        self._landed = asyncio.Event()
        self.begun: dict[int, _PendingItem] = {}
        """Items in flight by their numbers, the oldest first."""

    async def send(self) -> None:
        """Hand out items as places come free."""
        while True:
            while (free := self._most - len(self.begun)) <= 0:
                self._landed.clear()
                await self._landed.wait()
            items = await self._owner.take(free)
            first, now = self._next, time.monotonic()
            self._next += len(items)
            self.begun.update({first + i: _PendingItem(item, now) for i, item in enumerate(items)})
            await self._child.send(Batch(list(items), first))

    async def receive(self) -> None:
        """Pass outcomes on as they come."""
        while True:
            answer = await self._child.receive(None)
            if isinstance(answer, Began):
                self._read = answer.end
                continue
            if not isinstance(answer, Outcome) or answer.number not in self.begun:
                raise ChildDiedError(f"{type(answer).__name__} where no such outcome belongs")
            begun = self.begun.pop(answer.number)
            self._landed.set()
            self._owner.settle(begun.item, answer)

    async def watch(self) -> None:
        """Return when the child is stuck; what is over its deadline then is lost."""
        limit = self._timeout_s + GRACE_S
        while True:
            now = time.monotonic()
            oldest = next(iter(self.begun.values()), None)
            left = limit - (now - oldest.at if oldest else 0.0)
            if left <= 0:
                break
            await asyncio.sleep(left)
        late = [n for n, begun in self.begun.items() if now - begun.at >= self._timeout_s]
        # What the child did not even take in is not what it is stuck in.
        late = [number for number in late if number < self._read] or late
        lost = [self.begun.pop(number) for number in late]
        text = f"no result within {self._timeout_s:g} s, and the child is stuck"
        self._owner.lose([(item, now - at) for item, at in lost], "timeout", text)

    def lose_all(self, text: str, death: ChildDiedError) -> None:
        """The child died with all that it had taken in."""
        now = time.monotonic()
        taken = [number for number in self.begun if number < self._read]
        lost = [(begun.item, now - begun.at) for begun in map(self.begun.pop, taken)]
        if lost:
            self._owner.lose(lost, "crashed", text)
        else:
            self._owner.count_idle_death(death)
