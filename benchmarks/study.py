"""A study: runs what is missing of its plan, each run a row, and shows the table they make.

In: a `Study` and the command line. Out: rows in a JSONL file (a run that is there already is not
run again, unless what it would do has changed), one line a finished run, a table, and with `--json`
the table as one object. Runs are `headrace train` in processes of their own; `--jobs` of them go at
a time, each on its share of the cores. Seeds are the outer loop, so that an interrupted study holds
all arms at the first seeds.

A row says what else the machine did while it was measured; a run beside which others took more
than a twentieth of a core is made again (`benchmarks.tries`).
"""

import argparse
import os
import queue
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.progress import TimeRemainingColumn as Remaining

from benchmarks import tries
from benchmarks.arm_run import run_arm
from benchmarks.command_line import command_line, take_rows
from benchmarks.rows import Rows, result_line
from benchmarks.study_plan import Arm, Row, Study, key
from benchmarks.study_table import line_of, show, table
from headrace.errors import RunFailedError
from headrace.hardware import detect


def parser_of(study: Study, description: str | None) -> argparse.ArgumentParser:
    """The options that all studies have."""
    parser = command_line(study.name, description)
    parser.add_argument("--reduced", action="store_true", help="fewer arms and seeds")
    parser.add_argument("--seeds", type=int, help="seeds of each arm, instead of the study's")
    parser.add_argument("--list", action="store_true", help="what would be run, and stop")
    take_rows(parser, study.rows_path, resumes=True)
    parser.add_argument("--keep", type=Path, help="keep the run folders here")
    return parser


def main_of(study: Study, description: str | None, argv: Sequence[str]) -> int:
    """Run what is missing of `study` and print its table; 1 when runs failed."""
    parser = parser_of(study, description)
    parser.add_argument("--arms", nargs="+", metavar="ARM", help="these arms only")
    parser.add_argument(
        "--jobs",
        type=int,
        default=study.jobs or len(detect().cores),
        help="runs at a time, each on its share of the cores",
    )
    options = parser.parse_args(argv)
    plan = [
        (arm, seed)
        for arm, seed in study.plan(reduced=options.reduced, seeds=options.seeds)
        if not options.arms or arm.name in options.arms
    ]

    def report(rows: Rows) -> dict[str, Any]:
        lines = table(study, plan, rows)
        show(study, lines)
        return {"name": study.name, "arms": lines}

    return carry_out(study, plan, options, jobs=options.jobs, report=report)


def carry_out(
    study: Study,
    plan: list[tuple[Arm, int]],
    options: argparse.Namespace,
    *,
    jobs: int,
    report: Callable[[Rows], dict[str, Any]],
) -> int:
    """Run what is missing of the plan, or only list it; `report` shows the rows and makes the
    result. 1 when runs failed."""
    rows = Rows(options.rows)
    missing = [(arm, seed) for arm, seed in plan if tries.is_missing(key(arm, seed), rows.rows)]
    if options.list:
        for arm, seed in plan:
            state = "missing" if (arm, seed) in missing else "there"
            print(f"{state:<8} seed {seed}  {arm.name}: {arm.recipe} {' '.join(arm.overrides)}")
        return 0
    if missing and study.prepare:
        study.prepare()
    failed = run_all(study, missing, rows, jobs=jobs, keep=options.keep)
    result = report(rows)
    for line in failed:
        print(f"failed: {line}", file=sys.stderr)
    if options.json:
        print(result_line(result))
    return 1 if failed else 0


def run_all(
    study: Study,
    missing: list[tuple[Arm, int]],
    rows: Rows,
    *,
    jobs: int,
    keep: Path | None = None,
) -> list[str]:
    """Run each (arm, seed), `jobs` at a time; the failures in words."""
    failed: list[str] = []
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        Remaining(),
    )
    shares: queue.Queue[set[int]] = queue.Queue()
    for share in core_shares(detect().cores, jobs):
        shares.put(share)
    console = Console(stderr=True)
    with (
        tempfile.TemporaryDirectory(prefix="headrace-study-") as scratch,
        ThreadPoolExecutor(jobs) as pool,
        Progress(*columns, console=console, disable=not console.is_terminal) as progress,
    ):
        bar = progress.add_task(study.name, total=len(missing))
        root = keep or Path(scratch)
        running: dict[Future[Row], tuple[Arm, int]] = {
            pool.submit(_run_on_share, study, arm, seed, root, shares, keep is None): (arm, seed)
            for arm, seed in missing
        }
        try:
            while running:
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    arm, seed = running.pop(future)
                    try:
                        row = {"study": study.name, **future.result()}
                    except RunFailedError as error:
                        failed.append(f"{arm.name} seed {seed}: {error}")
                        progress.advance(bar)
                        continue
                    name = key(arm, seed)
                    print(line_of(rows.add(tries.new_key(name, rows.rows, row), row)), flush=True)
                    if tries.is_missing(name, rows.rows):
                        again = pool.submit(
                            _run_on_share, study, arm, seed, root, shares, keep is None
                        )
                        running[again] = (arm, seed)
                    else:
                        progress.advance(bar)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return failed


def core_shares(cores: Sequence[int], jobs: int) -> list[set[int]]:
    """The cores split over `jobs` runs, as evenly as they go; shared where there are too few."""
    if jobs >= len(cores):
        return [{cores[i % len(cores)]} for i in range(jobs)]
    return [set(cores[i::jobs]) for i in range(jobs)]


def _run_on_share(
    study: Study, arm: Arm, seed: int, root: Path, shares: "queue.Queue[set[int]]", remove: bool
) -> Row:
    share = shares.get()
    try:
        # The affinity of a thread is what the processes it starts inherit.
        os.sched_setaffinity(0, share)
        return run_arm(arm, seed, root, remove=remove, facts=study.facts)
    finally:
        shares.put(share)
