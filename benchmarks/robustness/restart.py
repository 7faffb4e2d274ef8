"""Claim: a coordinator's restart time and memory do not grow with the run.

A scripted history (`benchmarks.kit.synthetic_runs`) goes through the real state, journal and SQL:
groups, leases, chunks, rewards, windows, batches, commits, weights, checkpoints. At every size a
coordinator's process is started on the run and killed at once. In: the number of trajectories;
sizes are a hundredth, a tenth and the whole of it. Out: a table; with --json, as the last line, one
JSON object with a row for each size. `restart_s`: from the start of the process to its announced
address; `memory_mb`: resident then, `peak_mb`: the maximum before; `journal_mb`: the maximum that a
restart reads.
"""

import contextlib
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.kit.command_line import add_rows_option, command_line
from benchmarks.kit.pinned_coordinator import PinnedCoordinator
from benchmarks.kit.rows import report_result
from benchmarks.kit.synthetic_runs import RunShape, SyntheticRun
from headrace.run_files.run_folder import read_config

BATCH = 128


def grow(run_dir: Path, trajectories: int, tokens: int) -> None:
    """Extend the folder's run to this number of trajectories, of at most `tokens`."""
    shape = RunShape(trajectories, (1, tokens), batch=BATCH, late=True)
    made = SyntheticRun(run_dir, shape)
    with contextlib.closing(made.store):
        made.grow(shape.updates)


def measure(run_dir: Path) -> dict[str, Any]:
    """Restart a coordinator on the run, measure, and kill it."""
    size = sum(path.stat().st_size for path in (run_dir / "journal").iterdir())
    server = PinnedCoordinator(run_dir, read_config(run_dir))
    began = time.perf_counter()
    try:
        server.start(resume=True)
        return {
            "restart_s": round(time.perf_counter() - began, 2),
            "memory_mb": round(server.seen.memory_info().rss / 1e6),
            "peak_mb": round(server.peak_mb()),
            "journal_mb": round(size / 1e6),
        }
    finally:
        server.end()


def main(argv: list[str]) -> int:
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
            row = {"trajectories": size, **measure(run_dir)}
            rows.append(row)
            print(
                f"{size:>12,} {row['journal_mb']:>10,} {row['restart_s']:>9.2f} "
                f"{row['memory_mb']:>5,} {row['peak_mb']:>7,}",
                flush=True,
            )
    print("goal: restart under 30 s, memory flat")
    return report_result(arguments, {"name": "restart", "tokens": arguments.tokens, "sizes": rows})
