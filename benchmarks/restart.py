"""Claim: how long a coordinator takes to restart, and its memory, do not grow with the run.

A scripted history goes through the real state, recorder, journal and SQL: groups, leases, chunks,
rewards, windows, batches, commits, weights, checkpoints. At every size a coordinator's process is
killed where it stands and another one is started on the run. In: the number of trajectories; sizes
are a hundredth, a tenth and the whole of it. Out: a table; with --json, as the last line, one JSON
object with a row for each size. `restart_s`: from the start of the process to its announced
address; `memory_mb`: resident then, `peak_mb`: the most before; `journal_mb`: what a restart could
have to read; `restart_without_sql_s`: where the database is gone; `sql_s`: until it is there again,
made from the journal beside the run (the last 2,000 records may follow with the next commit).
"""

import asyncio
import contextlib
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks import made_runs
from benchmarks.command_line import command_line, offer_row
from benchmarks.rows import keep, result_line
from coordinator.hub import Hub
from coordinator.run import build
from headrace.config.run import RunConfig
from headrace.protocol.records import (
    BatchTaken,
    CheckpointWritten,
    ChunkArrived,
    Forgotten,
    GroupIssued,
    LeaseIssued,
    MetricsSampled,
    RewardArrived,
    TakenWindow,
    TrajectoryEnded,
    UpdateCommitted,
    VersionIssued,
    VersionPublished,
)
from headrace.protocol.streams import Span
from headrace.run_folder import write_config
from sequence.trajectories import Trajectory
from storage.database import SQLITE_NAME
from storage.run_store import LITTLE, RunStore

GROUP = 4
BATCH = 128
WINDOW = 64
CHECKPOINT_EVERY = 20
PATIENCE_S = 3600.0


def config() -> RunConfig:
    """A stream in which nobody gives up."""
    return made_runs.stream(
        task={"max_prompt_length": 64, "max_response_length": 4096},
        schedule={
            "window": WINDOW,
            "batch_windows": BATCH,
            "num_generations": GROUP,
            "max_staleness": 8,
        },
        evaluation={"before": False, "after": False},
        transport={"heartbeat_timeout_s": 3600.0, "stall_timeout_s": 3600.0},
    )


class History:
    """A run as a coordinator writes it down, without anybody who generates or learns."""

    def __init__(self, hub: Hub, tokens: int) -> None:
        self.hub, self.tokens = hub, tokens
        self._numbers = np.random.default_rng(hub.state.next_trajectory)
        self._late: list[int] = []
        """Those that go on into the next update."""

    async def live(self, trajectories: int) -> None:
        """Go on until there were so many trajectories."""
        state = self.hub.state
        self._late = [t.trajectory_id for t in self.hub.account.active.values() if not t.ended]
        if state.versions.current < 0:
            self._publish()
        while state.next_trajectory < trajectories:
            ended = self._late
            self._late = []
            for _ in range(BATCH // GROUP):
                members = self._issue()
                self._late += members[:1]
                ended = ended + members[1:]
            for key in self._late:
                self._grow(self.hub.account.trajectories[key], None)
            for key in ended:
                self._end(self.hub.account.trajectories[key])
            self._update()
            await self.hub.recorder.flush()

    def _issue(self) -> list[int]:
        state = self.hub.state
        first = state.next_trajectory
        ids = list(range(first, first + GROUP))
        self.hub.note(
            GroupIssued(
                at=time.time(), group_id=state.next_group, prompt_id=f"p{state.next_group}",
                position=state.position, purpose="train", prompt="12 + 30 + 4 =", answer="46",
                info="{}", prompt_ids=np.arange(16, dtype=np.int32), trajectory_ids=ids, seeds=ids,
            )
        )  # fmt: skip
        for key in ids:
            self.hub.note(
                LeaseIssued(
                    at=time.time(), lease_id=state.next_lease, trajectory_id=key,
                    generator=f"generator-{key % 8}", start=0, version=state.versions.current,
                )
            )  # fmt: skip
        return ids

    def _grow(self, trajectory: Trajectory, finish: str | None) -> None:
        size, start = int(self._numbers.integers(1, self.tokens + 1)), trajectory.length
        lease_id, generator = self.hub.state.leases[trajectory.trajectory_id]
        version = self.hub.state.versions.current
        self.hub.note(
            ChunkArrived(
                at=time.time(), trajectory_id=trajectory.trajectory_id, lease_id=lease_id,
                chunk_index=trajectory.next_chunk, generator=generator, start=start,
                token_ids=self._numbers.integers(0, 60, size).astype(np.int32),
                logprobs=np.full(size, -0.5, np.float32),
                spans=[Span(version, start, start + size)], finish=finish,
            )
        )  # fmt: skip
        self.hub.settle([trajectory])

    def _end(self, trajectory: Trajectory) -> None:
        self._grow(trajectory, "stop")
        key, length = trajectory.trajectory_id, trajectory.length
        now = time.time()
        self.hub.note(TrajectoryEnded(at=now, trajectory_id=key, status="finished", length=length))
        self.hub.settle([trajectory])
        self.hub.note(
            RewardArrived(at=now, trajectory_id=key, status="ok", reward=1.0, correct=True)
        )
        self.hub.settle([trajectory])

    def _update(self) -> None:
        hub, account, state = self.hub, self.hub.account, self.hub.state
        windows = [TakenWindow(window_id=key) for key in account.ready]
        taken = BatchTaken(
            at=time.time(), update=state.update + 1, lineage=state.lineage,
            version=state.versions.current, windows=windows,
            value_trajectories=list(account.values), batch_id=state.update + 1,
        )  # fmt: skip
        hub.note(taken)
        hub.note(
            UpdateCommitted(
                at=time.time(), update=taken.update, lineage=taken.lineage, version=taken.version,
                train_time_s=float(taken.update), trained_tokens=0,
                window_ids=[window.window_id for window in windows],
                value_trajectories=taken.value_trajectories,
                metrics={f"actor/figure_{n}": float(n) for n in range(40)},
                diagnostics=[], batch_id=taken.batch_id,
            )
        )  # fmt: skip
        gauges = account.ledger.as_metrics()
        hub.note(MetricsSampled(at=time.time(), update=taken.update, metrics=gauges))
        self._publish()
        if taken.update % CHECKPOINT_EVERY == 0:
            path = f"checkpoints/step_{taken.update}"
            hub.note(
                CheckpointWritten(
                    at=time.time(), update=taken.update, lineage=taken.lineage, path=path
                )
            )
            keep = hub.config.checkpoint.keep_last
            hub.note(Forgotten(at=time.time(), update=state.checkpoints[-keep:][0]))

    def _publish(self) -> None:
        state = self.hub.state
        version = state.versions.issued + 1
        self.hub.note(VersionIssued(at=time.time(), version=version))
        self.hub.note(
            VersionPublished(
                at=time.time(), version=version, lineage=state.lineage, update=state.update,
                num_bytes=1,
            )
        )  # fmt: skip


def grow(run_dir: Path, trajectories: int, tokens: int) -> None:
    """Bring the run in the folder to so many trajectories."""

    async def live() -> None:
        resume = (run_dir / "journal").exists()
        coordinator, store = build(config(), run_dir, resume=resume)
        hub = coordinator.hub
        work = [hub.recorder.run(), History(hub, tokens).live(trajectories)]
        tasks = [asyncio.create_task(each) for each in work]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            hub.router.close()
            store.close()

    asyncio.run(live())


@contextlib.contextmanager
def coordinator_on(run_dir: Path) -> Iterator[tuple[psutil.Process, float]]:
    """A coordinator that has taken the run over, and how long that took; it is killed then."""
    announced = run_dir / "coordinator.json"
    announced.unlink(missing_ok=True)
    command = [sys.executable, "-m", "coordinator.run", "--run-dir", str(run_dir), "--resume"]
    began = time.perf_counter()
    with (run_dir / "coordinator.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        while not announced.exists():
            if process.poll() is not None or time.perf_counter() - began > PATIENCE_S:
                raise RuntimeError((run_dir / "coordinator.log").read_text()[-2000:])
            time.sleep(0.01)
        yield psutil.Process(process.pid), time.perf_counter() - began
    finally:
        process.kill()
        process.wait()


def measure(run_dir: Path, *, sql: bool) -> dict[str, Any]:
    """The figures of a restart of the run as it is."""
    size = sum(path.stat().st_size for path in (run_dir / "journal").iterdir())
    with coordinator_on(run_dir) as (process, restart_s):
        row: dict[str, Any] = {
            "restart_s": round(restart_s, 2),
            "memory_mb": round(process.memory_info().rss / 1e6),
            "peak_mb": round(_peak_kib(process.pid) * 1024 / 1e6),
            "journal_mb": round(size / 1e6),
        }
    if sql:
        for path in run_dir.glob(f"{SQLITE_NAME}*"):
            path.unlink()
        end = _records(run_dir)
        with coordinator_on(run_dir) as (_, without_s):
            began = time.perf_counter() - without_s
            while _projected(run_dir) < end - LITTLE:
                time.sleep(0.2)
            row["restart_without_sql_s"] = round(without_s, 2)
            row["sql_s"] = round(time.perf_counter() - began, 1)
        RunStore.open(run_dir).close()
    return row


def _records(run_dir: Path) -> int:
    store = RunStore.open(run_dir)
    try:
        return store.end.records
    finally:
        store.close()


def _projected(run_dir: Path) -> int:
    path = f"file:{run_dir / SQLITE_NAME}?mode=ro"
    with contextlib.closing(sqlite3.connect(path, uri=True, timeout=60)) as database:
        found = database.execute("select next_offset from projection").fetchone()
    return int(found[0])


def _peak_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def main(argv: list[str]) -> int:
    """Command line of the benchmark."""
    parser = command_line("restart", __doc__)
    parser.add_argument("--trajectories", type=int, default=1_000_000, help="of the largest size")
    parser.add_argument("--tokens", type=int, default=64, help="at most, of a chunk")
    parser.add_argument("--root", type=Path, help="where the run is written (a temporary folder)")
    offer_row(parser)
    arguments = parser.parse_args(argv)
    rows = []
    with tempfile.TemporaryDirectory(prefix="headrace-restart-", dir=arguments.root) as folder:
        run_dir = Path(folder) / "run"
        run_dir.mkdir()
        write_config(run_dir, config())
        print(f"{'trajectories':>12} {'journal MB':>10} {'restart s':>9} {'MB':>5} {'peak MB':>7}")
        sizes = sorted({max(BATCH, arguments.trajectories // part) for part in (100, 10, 1)})
        for size in sizes:
            grow(run_dir, size, arguments.tokens)
            row = {"trajectories": size, **measure(run_dir, sql=size == sizes[-1])}
            rows.append(row)
            print(
                f"{size:>12,} {row['journal_mb']:>10,} {row['restart_s']:>9.2f} "
                f"{row['memory_mb']:>5,} {row['peak_mb']:>7,}",
                flush=True,
            )
    print(
        f"without a database: restart in {rows[-1]['restart_without_sql_s']:.2f} s, tables whole "
        f"after {rows[-1]['sql_s']:.1f} s (goal: restart under 30 s, memory flat)"
    )
    result = {"benchmark": "restart", "tokens": arguments.tokens, "sizes": rows}
    keep(arguments.rows, result)
    if arguments.json:
        print(result_line(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
