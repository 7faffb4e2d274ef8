"""What is in the weights: one line for each update, written when its steps are applied.

Comes in: a batch that was trained and this rank's share of it. Goes out: lines of JSON in the run's
folder, `applied/rank-R.jsonl`. Promises: lines are only ever added; a line is on disk before the
update is reported, published or saved, so that whatever anybody has of these weights can be looked
up; the coordinator has no part in it. `headrace.applied` reads them.
"""

import json
import os
import time
from pathlib import Path

from headrace.applied import FOLDER, AppliedUpdate
from headrace.protocol.batches import Shard
from headrace.protocol.messages import Batch


class AppliedLog:
    """One rank's lines."""

    def __init__(self, run_dir: Path, *, rank: int) -> None:
        self._path = run_dir / FOLDER / f"rank-{rank}.jsonl"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            if file.tell() and not self._path.read_bytes().endswith(b"\n"):
                file.write(b"\n")  # A power loss tore the last line.

    def write(self, batch: Batch, shard: Shard, *, after: int | None, skipped: str | None) -> None:
        """The batch is in the weights. `after`: the batch that was the last one in them before;
        `skipped`: why it was broken off."""
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
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line._asdict()) + "\n")
            file.flush()
            os.fsync(file.fileno())
