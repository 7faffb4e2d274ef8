"""Log of the updates in the weights: one line each, once its steps are applied.

Comes in: a batch that was trained and this rank's share of it. Goes out: lines of JSON in the run's
folder, `applied/rank-R.jsonl`. Promises: lines are only ever added; a line is on disk before the
update is reported, published or saved, so that any copy of these weights can be looked up; the
coordinator has no part in it. `headrace.run_files.update_log` reads them.
"""

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

from headrace.host.disk import until_written
from headrace.protocol.messages.batches import Shard
from headrace.protocol.messages.control import Batch
from headrace.run_files.checked_lines import checked_line, cut_torn
from headrace.run_files.update_log import FOLDER, AppliedUpdate

_LOG = logging.getLogger("headrace.learner")


class UpdateLog:
    """One rank's log of updates."""

    def __init__(self, run_dir: Path, *, rank: int) -> None:
        self._path = run_dir / FOLDER / f"rank-{rank}.jsonl"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._end = cut_torn(self._path)  # of an update that was never reported

    def write(
        self,
        batch: Batch,
        shard: Shard,
        *,
        after: int | None,
        skipped: str | None,
        tell: Callable[[str], None] = _LOG.warning,
    ) -> None:
        """Log that the batch is in the weights.

        `after`: the batch trained before this one; `skipped`: why it was broken off; `tell`
        receives what the disk lacks until the line is written."""
        line = AppliedUpdate(
            at=time.time(),
            batch_id=batch.batch_id,
            update=batch.update,
            lineage=batch.lineage,
            after=after,
            windows=[window.window_id for window in shard.windows],
            values=[value.trajectory_id for value in shard.values],
            skipped=skipped,
        )
        data = checked_line(line._asdict())

        def attempt() -> None:
            with self._path.open("r+b") as file:
                # What an attempt that failed has left is written over.
                file.truncate(file.seek(self._end))
                file.write(data)
                file.flush()
                os.fsync(file.fileno())

        until_written(attempt, self._path, len(data), tell=tell)
        self._end += len(data)
