"""Claim: an export costs at most twice a bare rewrite, in bounded memory.

A run is written by the real store (`benchmarks.kit.synthetic_runs`). Then two processes take turns,
and the first one changes from turn to turn:

- export    `headrace export RUN tokens --out FILE`, Parquet: SQL, journal and diagnostics are read
            and checked, joined token by token, looked through, and written
- rewrite   pyarrow alone reads that file and writes it again, with the same compression, a batch
            at a time

`cpu_s` are processor seconds of the whole process, start and imports included; `ratio` is the
rewrite's over the export's in the same turn, median with least and largest (goal: at least 0.5).
`peak_mb` is the peak of resident memory in an export (goal: under 500). One row per size goes to
`--rows`, with the state of the machine meanwhile.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.kit.command_line import add_rows_option, command_line
from benchmarks.kit.machine_state import MachineWatch
from benchmarks.kit.pairs import in_turns, ratios
from benchmarks.kit.rows import RESULTS, result_line
from benchmarks.kit.study_table import spread
from benchmarks.kit.synthetic_runs import RunShape, make_run
from headrace.errors import RunFailedError
from headrace.host.install import ROOT

TELL = """
import json, pathlib, time
lines = pathlib.Path("/proc/self/status").read_text().splitlines()
peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
print(json.dumps({"cpu_s": time.process_time(), "peak_mb": peak * 1024 / 1e6}))
"""
EXPORT = """
import sys
from headrace_cli.cli import main
if main(["export", sys.argv[1], "tokens", "--out", sys.argv[2], "--force"]):
    sys.exit(1)
"""
REWRITE = """
import sys
import pyarrow.parquet as pq
source = pq.ParquetFile(sys.argv[2])
with pq.ParquetWriter(sys.argv[2] + ".again", source.schema_arrow, compression="zstd") as writer:
    for batch in source.iter_batches(1 << 17):
        writer.write_batch(batch)
"""
Figures = dict[str, list[dict[str, float]]]
"""Figures of each arm's process, turn by turn."""


def alone(program: str, run_dir: Path, out: Path) -> dict[str, float]:
    """Run a program in its own process; return its processor seconds and peak memory."""
    command = [sys.executable, "-c", program + TELL, str(run_dir), str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RunFailedError(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])


def turns_of(run_dir: Path, out: Path, turns: int) -> Figures:
    """Run both arms this many times.

    The rewrite needs a file, so an export that does not count is first; it also brings the run into
    the machine's memory, for all turns alike."""
    alone(EXPORT, run_dir, out)
    sides = {
        "export": lambda _: alone(EXPORT, run_dir, out),
        "rewrite": lambda _: alone(REWRITE, run_dir, out),
    }
    return in_turns(sides, turns, warm_up=False)


def summary(figures: Figures) -> dict[str, Any]:
    cpu = {name: [round(each["cpu_s"], 3) for each in turns] for name, turns in figures.items()}
    ratio = spread(ratios(cpu["rewrite"], cpu["export"]))
    return {
        "cpu_s": cpu,
        "ratio": {name: round(value, 3) for name, value in ratio.items()},
        "peak_mb": round(max(each["peak_mb"] for each in figures["export"])),
    }


def shape(tokens: int, length: int) -> RunShape:
    """Shape a run with these tokens (rounded up to batches), in responses of `length`."""
    return RunShape(
        -(-tokens // length), (length, length), window=128, chunk=64, masked=4, figures=1.0
    )


def measure(tokens: int, length: int, turns: int, root: Path | None) -> dict[str, Any]:
    """Measure the row of a size."""
    with tempfile.TemporaryDirectory(prefix="headrace-export-", dir=root) as folder:
        run_dir = make_run(Path(folder) / "run", shape(tokens, length))
        out = Path(folder) / "tokens.parquet"
        with MachineWatch() as watch:
            figures = turns_of(run_dir, out, turns)
        return {
            "tokens": tokens,
            "length": length,
            "file_mb": round(out.stat().st_size / 1e6, 1),
            **summary(figures),
            "machine_state": watch.state({}),
        }


def line(row: Mapping[str, Any]) -> str:
    cpu = {name: statistics.median(turns) for name, turns in row["cpu_s"].items()}
    ratio = row["ratio"]
    return (
        f"{row['tokens']:>11,} tokens of {row['length']:>4}: export {cpu['export']:6.2f} s, "
        f"rewrite {cpu['rewrite']:6.2f} s, ratio {ratio['median']:.2f} ({ratio['min']:.2f} to "
        f"{ratio['max']:.2f}), peak {row['peak_mb']} MB"
    )


def main(argv: Sequence[str]) -> int:
    parser = command_line("export", __doc__)
    parser.add_argument(
        "--tokens", type=int, nargs="+", default=[1_000_000, 10_000_000], help="sizes of the run"
    )
    parser.add_argument(
        "--length", type=int, nargs="+", default=[512, 32], help="of a response, each counted"
    )
    parser.add_argument("--turns", type=int, default=5, help="measurements of each size, in turns")
    parser.add_argument("--root", type=Path, help="where the run is written (a temporary folder)")
    add_rows_option(parser, RESULTS / "export.jsonl")
    options = parser.parse_args(argv)
    began, found = round(time.time()), []
    for tokens in options.tokens:
        for length in options.length:
            row = measure(tokens, length, options.turns, options.root)
            options.rows.add(f"export/{tokens} tokens of {length}/{began}", row)
            found.append(row)
            print(line(row), flush=True)
    if options.json:
        print(result_line({"name": "export", "sizes": found}))
    return 0
