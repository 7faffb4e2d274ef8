"""Group commit: records of some milliseconds in one write, fsync and transaction.

In: records from the event loop, each already applied to the state. Out: RunStore.append in a worker
thread; after it, the callbacks that make effects visible (acknowledgements, batches). Promises: a
crash loses nothing that a callback has sent, because its records are on disk; records reach the
disk in the order of `write`. When the disk is full or slow, records wait, and `waits_for` gives the
reason.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from headrace.errors import StorageBlockedError
from headrace.protocol.records.record_types import Record
from storage.run_store import RunStore

log = logging.getLogger(__name__)
Effect = Callable[[], Awaitable[object]]
DISK_RETRY_S = 2.0
EFFECTS_AT_ONCE = 100
SLOW_S = 5.0
"""Seconds after which a commit is reported as slow."""


class Recorder:
    """Writer of records: the only way from the coordinator to the disk.

    Attributes:
        store: to which it writes. end: of the journal, after the last commit. waits_for: what the
        disk lacks, with place and bytes; empty while it takes what comes. snapshot: writes a
        snapshot of the state, of which all records have been written.
    """

    def __init__(self, store: RunStore, *, interval_s: float) -> None:
        self.store = store
        self._interval_s = interval_s
        self._records: list[Record] = []
        self._effects: list[Effect] = []
        self._wake, self._hurry = asyncio.Event(), asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self.end = store.end
        self.waits_for = ""
        self.snapshot: Callable[[], None] = lambda: None

    def write(self, record: Record) -> None:
        """Queue a record for the next commit."""
        self._records.append(record)
        self._idle.clear()
        self._wake.set()

    def after(self, effect: Effect, *, hurry: bool = False) -> None:
        """Run an effect once all records so far are on disk.

        `hurry`: gather no more records first, because somebody has nothing else to do."""
        self._effects.append(effect)
        self._idle.clear()
        self._wake.set()
        if hurry:
            self._hurry.set()

    async def run(self) -> None:
        """Commit for as long as the task lives."""
        while True:
            await self._wake.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._hurry.wait()
            await self._commit()

    async def flush(self) -> None:
        """Wait until everything written so far is on disk and its effects have run."""
        await self._idle.wait()

    async def _commit(self) -> None:
        self._wake.clear()
        self._hurry.clear()
        records, self._records = self._records, []
        effects, self._effects = self._effects, []
        while records:
            try:
                await self._append(records)
                break
            except StorageBlockedError as error:
                if self.waits_for != str(error):
                    log.error("the run waits: %s", error)
                self.waits_for = str(error)
                await asyncio.sleep(DISK_RETRY_S)
        if self.waits_for:
            log.info("the run goes on: its records are on the disk")
        self.waits_for = ""
        self.keep_short()
        for number, effect in enumerate(effects, 1):
            await effect()
            if number % EFFECTS_AT_ONCE == 0:
                await asyncio.sleep(0)  # Sending seldom waits: let others run.
        if not self._wake.is_set():
            self._idle.set()

    def keep_short(self) -> None:
        """Write a snapshot, where it is time for one."""
        if self.store.wants_snapshot:
            self.snapshot()

    async def _append(self, records: list[Record]) -> None:
        commit = asyncio.ensure_future(asyncio.to_thread(self.store.append, records))
        done, _ = await asyncio.wait([commit], timeout=SLOW_S)
        if not done:
            self.waits_for = (
                f"{self.store.place} to take {len(records):,} records, which it has "
                f"not done in {SLOW_S:.0f} s"
            )
            log.warning("the run waits: %s", self.waits_for)
        await commit
        self.end = self.store.end
