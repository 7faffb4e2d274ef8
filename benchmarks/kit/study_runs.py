"""Execution of a study's missing runs and tuning, each on a share of the cores.

In: a plan and a file of rows. Out: rows. Promises: the order is the plan's, and a row says its
`place`; a run that others disturbed is repeated (`benchmarks.kit.arms`); a run that fails in tuning
is a row too, for a setting that cannot run is a bad setting; elsewhere it has no time to
compare, is an error, and is run by the next call; an interrupted study goes on where it stopped.
"""

import os
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.progress import TimeRemainingColumn as Remaining

from benchmarks.kit.arms import Arm, Row, is_missing, key, new_key
from benchmarks.kit.rows import ResultFile
from benchmarks.kit.study_file import Preparation
from benchmarks.kit.study_plan import Plan
from benchmarks.kit.study_table import line_of
from benchmarks.kit.tuning import Tuning, point_text
from headrace.errors import RunFailedError
from headrace.host.hardware import detect, has_bfloat16
from headrace.host.install import ROOT

OTHER_MACHINE = (
    "warning: this file has rows of processors with bfloat16 products and of ones without; their "
    "seconds do not compare: keep these in a file of their own (--rows)"
)
Measure = Callable[..., Row]
"""Function that runs an arm, as `benchmarks.kit.arm_run.run_arm`."""


@dataclass
class Runner:
    """Runner of a study's runs. `measure` runs one; `jobs`: runs at a time.

    `timed`: a run that others disturbed is repeated. `keep`: where their folders are kept, else
    they are removed."""

    study: str
    rows: ResultFile
    measure: Measure
    jobs: int = 1
    timed: bool = True
    keep: Path | None = None

    def run_all(self, plan: Plan, *, keep_failures: bool = False) -> list[str]:
        """Run what is missing of the plan; return the failures' texts.

        `keep_failures`: they become rows, and are not reported."""
        missing = [one for one in plan if is_missing(key(*one[:2]), self.rows.rows)]
        failed: list[str] = []
        there = {row["machine"].get("bfloat16") for row in self.rows.rows.values()} - {None}
        if missing and there - {has_bfloat16()}:
            print(OTHER_MACHINE, file=sys.stderr, flush=True)
        shares = core_shares(detect().cores, self.jobs)

        def take_share() -> None:
            # The affinity of a thread is what the processes it starts inherit.
            os.sched_setaffinity(0, shares.pop())

        columns = (
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
            TimeElapsedColumn(), Remaining(),
        )  # fmt: skip
        console = Console(stderr=True)
        with (
            tempfile.TemporaryDirectory(prefix="headrace-study-") as scratch,
            ThreadPoolExecutor(self.jobs, initializer=take_share) as pool,
            Progress(*columns, console=console, disable=not console.is_terminal) as progress,
        ):
            bar = progress.add_task(self.study, total=len(missing))
            root, remove = self.keep or Path(scratch), self.keep is None

            running: dict[Future[Row], tuple[Arm, int, int]] = {}
            left = deque(missing)
            try:
                while running or left:
                    # No more than run: an error ends the study, and a repeat is the next.
                    while left and len(running) < self.jobs:
                        arm, seed, place = left.popleft()
                        print(f"{arm.name} seed {seed} begins", file=sys.stderr, flush=True)
                        future = pool.submit(self.measure, arm, seed, root, remove=remove)
                        running[future] = arm, seed, place
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        arm, seed, place = running.pop(future)
                        name = key(arm, seed)
                        row: Row = {"study": self.study, "place": place}
                        try:
                            row |= future.result()
                            row["disturbed"] &= self.timed
                        except RunFailedError as error:
                            progress.advance(bar)
                            if keep_failures:
                                row |= {"arm": arm.name, "seed": seed, "failed": str(error)[-500:]}
                                self.rows.add(name, row)
                                print(f"{arm.name} seed {seed}: failed", flush=True)
                            else:
                                failed.append(f"{arm.name} seed {seed}: {error}")
                                print(f"failed: {failed[-1]}", file=sys.stderr, flush=True)
                            continue
                        row = self.rows.add(new_key(name, self.rows.rows, row), row)
                        print(line_of(row), flush=True)
                        if is_missing(name, self.rows.rows):
                            left.appendleft((arm, seed, place))
                        else:
                            progress.advance(bar)
            except KeyboardInterrupt:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return failed

    def tune(self, tuning: Tuning, modes: Sequence[str]) -> None:
        """Run what tuning lacks, one run of each arm in turn.

        An interrupted tuning then has equally many of each."""
        left = list(modes)
        while left:
            for mode in list(left):
                missing = tuning.walk(mode).missing
                if missing is None:
                    left.remove(mode)
                    continue
                print(f"tuning {mode}: {point_text(missing.point)}", flush=True)
                arm = tuning.arm(mode, missing.point)
                self.run_all([(arm, missing.seed, 0)], keep_failures=True)


def core_shares(cores: Sequence[int], jobs: int) -> list[set[int]]:
    """Split the cores evenly over `jobs` runs; shared where there are too few."""
    if jobs >= len(cores):
        return [{cores[i % len(cores)]} for i in range(jobs)]
    return [set(cores[i::jobs]) for i in range(jobs)]


def listing(tuning: Tuning, modes: Sequence[str], plan: Plan, rows: Mapping[str, Row]) -> list[str]:
    """List the state of tuning, and the existing and missing runs of a plan."""
    lines = []
    for mode in modes:
        if mode in tuning.grids:
            found = tuning.walk(mode)
            state = "over" if found.missing is None else f"next {point_text(found.missing.point)}"
            lines.append(f"tuning   {mode}: {state}; best so far {point_text(found.best)}")
    for arm, seed, place in plan:
        state = "missing" if is_missing(key(arm, seed), rows) else "there"
        said = f"{arm.name}: {arm.recipe} {' '.join(arm.overrides)}"
        lines.append(f"{state:<8} seed {seed}, turn {place}  {said}")
    return lines


def prepare(needed: Sequence[Preparation]) -> None:
    """Create missing files that runs need. RunFailedError where a module fails."""
    for one in needed:
        path = ROOT / one.makes
        if path.is_file() or (path / "config.json").is_file():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", one.module, *one.arguments]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode:
            tail = done.stdout.decode(errors="replace")[-2000:]
            raise RunFailedError(f"{' '.join(command)} ended with {done.returncode}:\n{tail}")
