"""The coordinator's benchmark measures what it says: chunks that are in journal and SQL."""

import asyncio
import os
from pathlib import Path

from benchmarks.kit.pinned_coordinator import CoordinatorUsage
from benchmarks.performance.coordinator import CHUNK, bench
from headrace.protocol.records.record_types import ChunkArrived, WindowsReady
from storage.journal.store import read_journal


def test_what_is_measured_is_on_disk(tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))

    async def measured() -> CoordinatorUsage:
        async with bench(tmp_path / "run", 4, core=core) as measure:
            return await measure(32, 8)

    assert asyncio.run(measured()).wall_s > 0
    records = [r for batch in read_journal(tmp_path / "run" / "journal") for _, r in batch]
    chunks = [r for r in records if isinstance(r, ChunkArrived)]
    assert len(chunks) == 32
    assert {c.token_ids.size for c in chunks} == {CHUNK}
    ready = [i for r in records if isinstance(r, WindowsReady) for i in r.window_ids]
    assert len(set(ready)) == 16
