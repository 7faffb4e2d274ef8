"""Claim: a coordinator's restart time and memory do not grow with the run.

A scripted history (`benchmarks.kit.synthetic_runs`) goes through the real state, journal and SQL:
groups, leases, chunks, rewards, windows, batches, commits, weights, checkpoints. At every size a
coordinator's process is started on the run and killed at once. In: the number of trajectories;
sizes are a hundredth, a tenth and the whole of it. Out: a table; with --json, as the last line, one
JSON object with a row for each size. `restart_s`: from the start of the process to its announced
address; `memory_mb`: resident then, `peak_mb`: the maximum before; `journal_mb`: the maximum that a
restart reads; `restart_without_sql_s`: where the database is missing; `sql_s`: until it is rebuilt
from the journal beside the run.
"""

import contextlib
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.kit.command_line import add_rows_option, command_line
from benchmarks.kit.pinned_coordinator import PinnedCoordinator
from benchmarks.kit.rows import report_result
from benchmarks.kit.synthetic_runs import RunShape, SyntheticRun
from headrace.run_files.run_folder import read_config
from storage.database.engine import SQLITE_NAME
from storage.journal.segments import end_of

BATCH = 128


def grow(run_dir: Path, trajectories: int, tokens: int) -> None:
    """Extend the folder's run to this number of trajectories, of at most `tokens`."""
    shape = RunShape(trajectories, (1, tokens), batch=BATCH, late=True)
    made = SyntheticRun(run_dir, shape)
    try:
        made.grow(shape.updates)
    finally:
        made.store.close()


@contextlib.contextmanager
def restarted_coordinator(run_dir: Path) -> Iterator[tuple[PinnedCoordinator, float]]:
    """Restart a coordinator on the run; yield it and the seconds, then kill it."""
    server = PinnedCoordinator(run_dir, read_config(run_dir))
    began = time.perf_counter()
    try:
        server.start(resume=True)
        yield server, time.perf_counter() - began
    finally:
        server.end()


def measure(run_dir: Path, *, sql: bool) -> dict[str, Any]:
    """Measure a restart of the run."""
    size = sum(path.stat().st_size for path in (run_dir / "journal").iterdir())
    with restarted_coordinator(run_dir) as (server, restart_s):
        row: dict[str, Any] = {
            "restart_s": round(restart_s, 2),
            "memory_mb": round(server.seen.memory_info().rss / 1e6),
            "peak_mb": round(server.peak_mb()),
            "journal_mb": round(size / 1e6),
        }
    if sql:
        for path in run_dir.glob(f"{SQLITE_NAME}*"):
            path.unlink()
        end = end_of(run_dir / "journal").rows
        with restarted_coordinator(run_dir) as (_, without_s):
            began = time.perf_counter() - without_s
            while _projected(run_dir) < end:
                time.sleep(0.2)
            row["restart_without_sql_s"] = round(without_s, 2)
            row["sql_s"] = round(time.perf_counter() - began, 1)
    return row


def _projected(run_dir: Path) -> int:
    """Return the number of journal records that SQL has."""
    path = f"file:{run_dir / SQLITE_NAME}?mode=ro"
    with contextlib.closing(sqlite3.connect(path, uri=True, timeout=60)) as database:
        found = database.execute("select next_offset from projection").fetchone()
    return int(found[0])


def main(argv: list[str]) -> int:
    """Measure and print."""
    parser = command_line("restart", __doc__)
    parser.add_argument("--trajectories", type=int, default=1_000_000, help="of the largest size")
    parser.add_argument("--tokens", type=int, default=64, help="at most, of a chunk")
    parser.add_argument("--root", type=Path, help="where the run is written (a temporary folder)")
    add_rows_option(parser)
    arguments = parser.parse_args(argv)
    rows = []
    with tempfile.TemporaryDirectory(prefix="headrace-restart-", dir=arguments.root) as folder:
        run_dir = Path(folder) / "run"
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
    return report_result(
        arguments, {"benchmark": "restart", "tokens": arguments.tokens, "sizes": rows}
    )
