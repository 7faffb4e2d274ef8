"""One scoring child that scores many responses at a time.

In: a child whose verifier waits for others (a server, a coroutine), and the SourceWorkers with its
items. Out: outcomes to them in the order of completion, until the child has to be replaced.
Promises: a slow item delays no other; one that misses its deadline is a `timeout` of that item
alone, which the child sees to; a child that is stuck, and its deadlines with it, is given up a
little later, and items within their deadline go back. A child that dies costs what it was scoring.
"""

import asyncio
import time
from typing import TYPE_CHECKING, NamedTuple

from headrace.protocol.messages.control import ScoreItem
from rewards.worker.child_process import ChildDiedError, ScoringChild
from rewards.worker.pipe import Batch, Began, Outcome

if TYPE_CHECKING:
    from rewards.worker.source_workers import SourceWorkers

GRACE_S = 2.0
"""Seconds over the deadline of an item after which a child is stuck."""


class _PendingItem(NamedTuple):
    item: ScoreItem
    at: float


async def score_concurrently(child: ScoringChild, owner: "SourceWorkers", timeout_s: float) -> None:
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

    def __init__(self, child: ScoringChild, owner: "SourceWorkers", timeout_s: float) -> None:
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
