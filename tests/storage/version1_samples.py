"""The sample run as a coordinator of record format 1 wrote it, segment files and all."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from headrace.config.run import RunConfig
from headrace.protocol.records import (
    Incident,
    Record,
    VersionIssued,
    WindowsClosed,
    WindowsDropped,
    WindowsReady,
)
from headrace.run_folder import write_config
from storage import journal
from storage.segments import SegmentWriter
from storage.version1 import (
    BatchTaken,
    LineageBegan,
    TokensDropped,
    UpdateCommitted,
    WindowTrained,
)
from tests.storage.samples import run_config, small_run

JOURNAL = pa.schema(list(journal.SCHEMA), metadata={"run_id": "old-1"})
DIAGNOSTICS = pa.schema(
    [
        pa.field("lineage", pa.int32(), nullable=False),
        pa.field("update", pa.int64(), nullable=False),
        pa.field("window_id", pa.int64(), nullable=False),
        pa.field("trajectory_id", pa.int64(), nullable=False),
        pa.field("start", pa.int32(), nullable=False),
        pa.field("lam", pa.float64(), nullable=False),
        pa.field("logprobs", pa.list_(pa.float32()), nullable=False),
        pa.field("values", pa.list_(pa.float32()), nullable=False),
        pa.field("advantages", pa.list_(pa.float32()), nullable=False),
    ]
)


def window(trajectory_id: int, index: int, start: int, end: int, **dropped: int) -> WindowTrained:
    """A window in a batch; `dropped` by reason."""
    return WindowTrained(
        window_id=trajectory_id << 16 | index,
        trajectory_id=trajectory_id,
        index=index,
        start=start,
        end=end,
        trained=end - start - sum(dropped.values()),
        dropped=dropped,
        min_version=0,
        max_version=1,
    )


def commit(batch: BatchTaken, *, at: float, metrics: dict[str, float]) -> UpdateCommitted:
    """The end of a batch."""
    return UpdateCommitted(
        at=at,
        update=batch.update,
        lineage=batch.lineage,
        version=batch.update,
        train_time_s=float(batch.update),
        trained_tokens=10 * batch.update,
        metrics=metrics,
    )


def old_run() -> list[list[Record]]:
    """`small_run` in the words of then."""
    first = BatchTaken(
        at=10.0, update=1, lineage=0, version=0, windows=[window(10, 0, 0, 8, boundary_mask=2)],
        value_trajectories=[],
    )  # fmt: skip
    second = BatchTaken(
        at=20.0, update=2, lineage=0, version=1, windows=[window(10, 1, 8, 16)],
        value_trajectories=[10],
    )  # fmt: skip
    again = msgspec.structs.replace(
        second, at=30.0, lineage=1, version=2, windows=[window(10, 1, 8, 16, stale=3)]
    )
    loss = {
        "actor/pg_loss": 0.5, "value/bias_at_00": 0.5, "critic/vf_loss": float("nan"),
        **{f"value/bias_at_{tenth}0": -0.25 for tenth in range(2, 10)}, "reward/mean": 0.25,
    }  # fmt: skip
    new = (VersionIssued, WindowsClosed, WindowsDropped, WindowsReady)
    same = [[record for record in batch if not isinstance(record, new)] for batch in small_run()]
    return [
        *same[:3],
        [*same[3][:2], first],
        [
            commit(first, at=11.0, metrics=loss),
            *(r for r in same[4][1:]),
            TokensDropped(at=13.0, trajectory_id=20, start=0, end=8, reason="filtered", tokens=8),
        ],
        [second, commit(second, at=21.0, metrics=loss)],
        [
            LineageBegan(at=25.0, lineage=1, update=1, version=2, reason="the learner died"),
            *(r for r in same[6] if isinstance(r, Incident)),
            again,
            commit(again, at=31.0, metrics={**loss, "actor/pg_loss": 0.125}),
            *same[6][-2:],
        ],
    ]


def write_old_journal(run_dir: Path, batches: Sequence[Sequence[Record]]) -> None:
    """Segments that name no format."""
    writer = SegmentWriter(run_dir / "journal", JOURNAL, segment_bytes=4096)
    for records in batches:
        writer.append(journal.encode(records, writer.rows).replace_schema_metadata(None))
    writer.close()


def write_old_run(run_dir: Path, config: RunConfig | None = None) -> Path:
    """`old_run` with its diagnostics; the database is missing."""
    run_dir.mkdir(parents=True)
    write_config(run_dir, config or run_config())
    write_old_journal(run_dir, old_run())
    rows: list[dict[str, Any]] = []
    for lineage, update, index in ((0, 1, 0), (0, 2, 1), (1, 2, 1)):
        positions = np.arange(index * 8, index * 8 + 8)
        rows.append(
            {
                "lineage": lineage,
                "update": update,
                "window_id": 10 << 16 | index,
                "trajectory_id": 10,
                "start": index * 8,
                "lam": 0.95,
                "logprobs": (-positions / 4).tolist(),
                "values": [float(update)] * 8,
                "advantages": positions.astype(float).tolist(),
            }
        )
    writer = SegmentWriter(run_dir / "diagnostics", DIAGNOSTICS, segment_bytes=1 << 20)
    writer.append(pa.RecordBatch.from_pylist(rows, schema=DIAGNOSTICS))
    writer.close()
    return run_dir
