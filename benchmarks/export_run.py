"""A run to export: made up, but written by the real store, journal, diagnostics and SQL.

In: a folder, how many response tokens, how long a response is. Out: the run's folder, with groups,
chunks, rewards, windows, batches and what the learner saw of every token. All responses have one
length, and numbers are drawn at random, as the last bits of real ones are.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks import made_runs
from headrace.protocol.diagnostics import COLUMN_NAMES, TokenDiagnostics
from headrace.protocol.records import (
    BatchTaken,
    ChunkArrived,
    ClosedWindow,
    GroupIssued,
    LeaseIssued,
    MaskedRun,
    Record,
    RewardArrived,
    RunPhase,
    TakenWindow,
    TrajectoryEnded,
    UpdateCommitted,
    VersionIssued,
    VersionPublished,
    WindowsClosed,
    WindowsReady,
)
from headrace.protocol.streams import Float32, Span
from sequence.windows import window_id
from storage.run_store import RunStore

GROUP = 4
BATCH = 128
"""Responses in a batch."""
WINDOW = 128
CHUNK = 64
PROMPTS = 997
TOKENS = range(3, 18)
"""Ids of the demonstration's tokens."""


def write_run(run_dir: Path, tokens: int, length: int) -> Path:
    """A run with so many tokens (rounded up to whole batches) in responses of this length."""
    config = made_runs.stream(
        task={"max_response_length": length}, schedule={"window": min(WINDOW, length)}
    )
    store = RunStore.create(run_dir, run_dir.name, config)
    numbers = np.random.default_rng(0)
    try:
        store.append([RunPhase(at=0.0, phase="training"), *_published(0)])
        for update in range(1, -(-tokens // (BATCH * length)) + 1):
            store.append(list(_update(update, length, numbers)))
    finally:
        store.close()
    return run_dir


def _update(update: int, length: int, numbers: np.random.Generator) -> Iterator[Record]:
    """An update's batch from its prompts to its weights."""
    at, version = 10.0 * update, update - 1
    members = list(range(update * BATCH, (update + 1) * BATCH))
    for first in members[::GROUP]:
        yield _group(at, first, members[0])
    for key in members:
        yield LeaseIssued(
            at=at + 1, lease_id=key, trajectory_id=key, generator=_generator(key), start=0,
            version=version,
        )  # fmt: skip
    for start in range(0, length, CHUNK):
        for key in members:
            yield _chunk(at + 2, key, start, length, version, numbers)
    size = min(WINDOW, length)
    windows = [
        ClosedWindow(
            window_id=window_id(key, start // size), trajectory_id=key, index=start // size,
            start=start, end=min(start + size, length), tokens=min(size, length - start),
            min_version=version, max_version=version, final=start + size >= length,
        )
        for key in members
        for start in range(0, length, size)
    ]  # fmt: skip
    for key in members:
        yield TrajectoryEnded(at=at + 3, trajectory_id=key, status="finished", length=length)
    yield WindowsClosed(at=at + 3, windows=windows)
    for key in members:
        right = key % 3 == 0
        yield RewardArrived(
            at=at + 4, trajectory_id=key, status="ok", reward=float(right), correct=right,
            parts={"exact": float(right)}, seconds=float(numbers.random()),
        )  # fmt: skip
    yield WindowsReady(at=at + 5, window_ids=[window.window_id for window in windows])
    yield BatchTaken(
        at=at + 6, update=update, lineage=0, version=version, value_trajectories=members,
        windows=[
            TakenWindow(
                window_id=w.window_id,
                masked=[] if w.final else [MaskedRun("boundary_mask", w.end - 4, w.end, 4)],
            )
            for w in windows
        ],
    )  # fmt: skip
    yield UpdateCommitted(
        at=at + 7, update=update, lineage=0, version=update, train_time_s=float(update),
        trained_tokens=update * BATCH * length, window_ids=[w.window_id for w in windows],
        value_trajectories=members, metrics={"reward/mean": 0.25},
        diagnostics=[_seen(window, numbers) for window in windows],
    )  # fmt: skip
    yield from _published(update)


def _group(at: float, first: int, position: int) -> GroupIssued:
    number = first // GROUP
    return GroupIssued(
        at=at, group_id=number, prompt_id=f"p{number % PROMPTS}", position=position,
        purpose="train", prompt=f"What is {number % PROMPTS} + {number % 7}? " * 4,
        answer=str(number % PROMPTS + number % 7), info=f'{{"level": {number % 5}}}',
        prompt_ids=np.arange(30, dtype=np.int32),
        trajectory_ids=list(range(first, first + GROUP)), seeds=list(range(GROUP)),
    )  # fmt: skip


def _chunk(
    at: float, key: int, start: int, length: int, version: int, numbers: np.random.Generator
) -> ChunkArrived:
    end = min(start + CHUNK, length)
    return ChunkArrived(
        at=at, trajectory_id=key, lease_id=key, chunk_index=start // CHUNK,
        generator=_generator(key), start=start,
        token_ids=numbers.integers(TOKENS.start, TOKENS.stop, end - start).astype(np.int32),
        logprobs=-_drawn(end - start, numbers), spans=[Span(version, start, end)],
        finish="stop" if end == length else None,
    )  # fmt: skip


def _seen(window: ClosedWindow, numbers: np.random.Generator) -> TokenDiagnostics:
    size = window.end - window.start
    columns = {name: _drawn(size, numbers) for name in COLUMN_NAMES}
    if not window.final:
        columns["returns"] = np.full(size, np.nan, np.float32)
    return TokenDiagnostics(
        window_id=window.window_id, trajectory_id=window.trajectory_id, start=window.start,
        lam=0.95, columns=columns,
    )  # fmt: skip


def _drawn(size: int, numbers: np.random.Generator) -> Float32:
    return numbers.random(size, dtype=np.float32)


def _generator(key: int) -> str:
    return f"generator-{key % 3}"


def _published(version: int) -> list[Record]:
    return [
        VersionIssued(at=10.0 * version + 8, version=version),
        VersionPublished(
            at=10.0 * version + 8, version=version, lineage=0, update=version, num_bytes=1
        ),
    ]
