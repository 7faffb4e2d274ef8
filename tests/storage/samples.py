"""Records and runs for the tests of storage."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.config.sections.run import RunConfig
from headrace.protocol.messages.diagnostics import TokenDiagnostics
from headrace.protocol.records.record_types import (
    BatchTaken,
    CheckpointWritten,
    ChunkArrived,
    ClosedWindow,
    EvaluationDone,
    GroupIssued,
    Incident,
    LeaseIssued,
    LineageBegan,
    MaskedRun,
    MetricsSampled,
    ProcessChanged,
    Record,
    RewardArrived,
    RunPhase,
    TakenWindow,
    TrajectoryEnded,
    UpdateCommitted,
    VersionIssued,
    VersionLoaded,
    VersionPublished,
    WindowsClosed,
    WindowsDropped,
    WindowsReady,
)
from headrace.protocol.token_spans import Span
from headrace.trajectory.windows import trajectory_of, window_id
from storage.run_store import RunStore
from storage.text.token_table import Codes

WINDOW = 8


def run_config(**changes: Any) -> RunConfig:
    """A small configuration: windows of 8 tokens, one trajectory a prompt."""
    values: dict[str, Any] = {
        "name": "sample",
        "model": {"path": "no-such-model"},
        "task": {"kind": "chain_sums", "max_response_length": 24},
        "algorithm": {"advantages": {"kind": "egae", "gamma": 0.5}, "value": {}},
        "schedule": {"window": WINDOW},
    }
    for name, section in changes.items():
        old = values.get(name, {})
        values[name] = {**old, **section} if isinstance(section, dict) else section
    return RunConfig.model_validate(values)


def same(left: Record, right: Record) -> bool:
    """Equality of records that hold arrays and NaN: of types, dtypes and every bit."""
    return type(left) is type(right) and _plain(left) == _plain(right)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.tobytes())
    if isinstance(value, msgspec.Struct):
        return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return repr(value) if isinstance(value, float) else value


def group(number: int, *, at: float = 1.0, purpose: Any = "train", size: int = 1) -> GroupIssued:
    """Group `number` with the trajectories number * 10, number * 10 + 1, ..."""
    return GroupIssued(
        at=at,
        group_id=number,
        prompt_id=f"prompt-{number % 3}",
        position=number,
        purpose=purpose,
        prompt=f"{number} + 1 =",
        answer=str(number + 1),
        info='{"level": 1}',
        prompt_ids=np.arange(5, dtype=np.int32),
        trajectory_ids=[number * 10 + member for member in range(size)],
        seeds=list(range(size)),
    )


def chunk(
    trajectory_id: int, start: int, end: int, *, index: int = 0, at: float = 2.0, version: int = 0,
    finish: str | None = None,
) -> ChunkArrived:  # fmt: skip
    """Tokens start..end, each token's id its position, logprobs -position/8."""
    positions = np.arange(start, end)
    return ChunkArrived(
        at=at,
        trajectory_id=trajectory_id,
        lease_id=trajectory_id,
        chunk_index=index,
        generator="generator-0",
        start=start,
        token_ids=positions.astype(np.int32),
        logprobs=(-positions / 8).astype(np.float32),
        spans=[Span(version, start, end)] if end > start else [],
        finish=finish,
    )


def closed(trajectory_id: int, index: int, start: int, end: int, **values: Any) -> ClosedWindow:
    """A plain window: all its tokens were sampled."""
    return ClosedWindow(
        window_id=window_id(trajectory_id, index),
        trajectory_id=trajectory_id,
        index=index,
        start=start,
        end=end,
        **{"tokens": end - start, "min_version": 0, "max_version": 0, **values},
    )


def taken(trajectory_id: int, index: int, *masked: MaskedRun) -> TakenWindow:
    """A window in a batch."""
    return TakenWindow(window_id=window_id(trajectory_id, index), masked=list(masked))


def commit(
    batch: BatchTaken, *, at: float, metrics: dict[str, Any], skipped: str | None = None
) -> UpdateCommitted:
    """A commit with diagnostics of windows of 8 tokens whose values tell update and position."""
    diagnostics = []
    for item in batch.windows:
        trajectory_id, index = trajectory_of(item.window_id)
        positions = np.arange(index * WINDOW, (index + 1) * WINDOW)
        columns = {
            "learner_logprobs": (-positions / 4).astype(np.float32),
            "values": np.full(WINDOW, batch.update, np.float32),
            "advantages": positions.astype(np.float32),
            "returns": np.full(WINDOW, np.nan, np.float32),
        }
        diagnostics.append(
            TokenDiagnostics(
                window_id=item.window_id,
                trajectory_id=trajectory_id,
                start=index * WINDOW,
                lam=0.95,
                columns=columns,
            )
        )
    return UpdateCommitted(
        at=at,
        update=batch.update,
        lineage=batch.lineage,
        version=batch.update,
        train_time_s=float(batch.update),
        trained_tokens=10 * batch.update,
        window_ids=[item.window_id for item in batch.windows],
        value_trajectories=batch.value_trajectories,
        metrics=metrics,
        diagnostics=diagnostics,
        skipped=skipped,
    )


def small_run() -> list[list[Record]]:
    """Appends of a run with two updates, a rollback to the first and another second update.

    Trajectory 10 (20 tokens, two versions) is finished and right, 20 is cut at the limit and its
    scoring timed out, 30 runs, 40 is an evaluation, 50 was never started.
    """
    first = BatchTaken(
        at=10.0, update=1, lineage=0, version=0, value_trajectories=[],
        windows=[taken(10, 0, MaskedRun("boundary_mask", 6, 8, 2))],
    )  # fmt: skip
    second = BatchTaken(
        at=20.0, update=2, lineage=0, version=1, value_trajectories=[10], windows=[taken(10, 1)]
    )
    again = msgspec.structs.replace(
        second, at=30.0, lineage=1, version=2,
        windows=[taken(10, 1, MaskedRun("stale", 8, 11, 3))],
    )  # fmt: skip
    loss: dict[str, Any] = {
        "actor/pg_loss": 0.5, "critic/vf_loss": float("nan"), "reward/mean": 0.25,
        "value/bias": [0.5, None, *[-0.25] * 8],
    }  # fmt: skip

    def complete(at: float, *windows: ClosedWindow, ready: bool = True) -> list[Record]:
        ids = [window.window_id for window in windows]
        records: list[Record] = [WindowsClosed(at=at, windows=list(windows))]
        return [*records, WindowsReady(at=at, window_ids=ids)] if ready else records

    return [
        [
            RunPhase(at=0.0, phase="starting"),
            ProcessChanged(
                at=0.5, name="generator-0", role="generator", pid=7, host="h", state="up"
            ),
            VersionIssued(at=0.6, version=0),
            VersionPublished(at=0.6, version=0, lineage=0, update=0, num_bytes=100),
            VersionLoaded(at=0.7, generator="generator-0", version=0, gap_s=0.0, load_s=0.1),
            *(group(n, at=1.0) for n in (1, 2, 3, 5)),
            group(4, at=1.0, purpose="eval"),
            *(
                LeaseIssued(
                    at=1.5, lease_id=n, trajectory_id=n, generator="generator-0", start=0, version=0
                )
                for n in (10, 20, 30, 40)
            ),
            RunPhase(at=1.6, phase="training"),
        ],
        [
            chunk(10, 0, 8),
            *complete(2.0, closed(10, 0, 0, 8)),
            chunk(20, 0, 12),
            *complete(2.0, closed(20, 0, 0, 8)),
            chunk(30, 0, 5),
            chunk(40, 0, 4, finish="stop"),
        ],
        [
            TrajectoryEnded(at=3.0, trajectory_id=40, status="finished", length=4),
            chunk(10, 8, 16, index=1, at=4.0, version=1),
            *complete(4.0, closed(10, 1, 8, 16, min_version=1, max_version=1)),
            chunk(10, 16, 20, index=2, at=5.0, version=1, finish="stop"),
            TrajectoryEnded(at=5.0, trajectory_id=10, status="finished", length=20),
            *complete(
                5.0, closed(10, 2, 16, 20, min_version=1, max_version=1, final=True), ready=False
            ),
            chunk(20, 12, 24, index=1, at=6.0, finish="length"),
            *complete(6.0, closed(20, 1, 8, 16)),
            TrajectoryEnded(at=6.0, trajectory_id=20, status="truncated", length=24),
            *complete(6.0, closed(20, 2, 16, 24, final=True), ready=False),
        ],
        [
            RewardArrived(
                at=7.0, trajectory_id=10, status="ok", reward=1.0, correct=True,
                parts={"exact": 1.0}, seconds=0.2,
            ),
            WindowsReady(at=7.0, window_ids=[window_id(10, 2)]),
            RewardArrived(
                at=8.0, trajectory_id=20, status="timeout", reward=None, seconds=5.0, error="5 s"
            ),
            WindowsDropped(at=8.0, window_ids=[window_id(20, 2)], reason="reward_failed"),
            first,
        ],
        [
            commit(first, at=11.0, metrics=loss),
            VersionIssued(at=11.1, version=1),
            VersionPublished(at=11.1, version=1, lineage=0, update=1, num_bytes=100),
            CheckpointWritten(at=12.0, update=1, lineage=0, path="checkpoints/step_1"),
            MetricsSampled(at=12.5, update=1, metrics={"schedule/held": 2.0}),
            WindowsDropped(at=13.0, window_ids=[window_id(20, 0)], reason="filtered"),
        ],
        [second, commit(second, at=21.0, metrics=loss)],
        [
            LineageBegan(
                at=25.0, lineage=1, update=1, version=2, reason="the learner died",
                window_ids=[window_id(10, 1)], value_trajectories=[10],
            ),
            Incident(at=25.5, level="warning", kind="rejected", text="a malformed message"),
            again,
            commit(again, at=31.0, metrics={**loss, "actor/pg_loss": 0.125}),
            EvaluationDone(
                at=40.0, label="after", update=2, version=2, num_prompts=4, accuracy=0.75,
                response_length=9.5, max_response_length=20, truncated=0.0, failed=0, seconds=2.0,
                train_time_s=2.0,
            ),
            RunPhase(at=41.0, phase="finished"),
        ],
    ]  # fmt: skip


def write_run(run_dir: Path, config: RunConfig | None = None) -> Path:
    """`small_run` on disk."""
    store = RunStore.create(run_dir, run_dir.name, config or run_config())
    for records in small_run():
        store.append(records)
    store.close()
    return run_dir


def names_of(codes: Codes, names: tuple[str, ...]) -> npt.NDArray[np.object_]:
    """Codes as the names they stand for, None for none."""
    return np.array([*names, None], dtype=np.object_)[codes]
