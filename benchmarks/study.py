"""A study: arms (a recipe with settings) by seeds, each run a row, and the table they make.

In: a `Study` and the command line. Out: rows in a JSONL file (a run that is there already is not
run again, unless what it would do has changed), one line a finished run, a table, and with `--json`
the table as one object. Runs are `headrace train` in processes of their own; `--jobs` of them go at
a time, each on its share of the cores. Seeds are the outer loop, so that an interrupted study holds
all arms at the first seeds.

A row says what else the machine did while it was measured; a run beside which others took more
than a twentieth of a core is made again (`benchmarks.tries`).

Figures of a run: `final`, the mean accuracy of its last two evaluations; `mean`, the area under
accuracy against the policy's updates, which tells a fast learner from a slow one where both arrive.
"""

import argparse
import hashlib
import json
import os
import queue
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.progress import TimeRemainingColumn as Remaining
from rich.table import Table

from benchmarks import tries
from benchmarks.rows import RESULTS, Rows, result_line
from benchmarks.run_facts import cpu_at_evaluations, long_prompts, lost_by_tenth
from benchmarks.runs import Summary, series, train
from headrace.config.load import merge_overrides, read_toml
from headrace.errors import RunFailedError
from headrace.hardware import detect
from headrace.install import ROOT

Row = dict[str, Any]

SERIES = (
    "reward/mean",
    "rollout/finished_length",
    "actor/entropy",
    "actor/pg_clipfrac_upper",
    "actor/ppo_kl",
    "critic/vf_explained_var",
    "staleness/mean",
    "rollout/ess",
    "ledger/generated",
    "perf/context_share",
)
"""Metrics that a row keeps, update by update."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to train: `recipe` (relative to the source tree) with `overrides`."""

    name: str
    recipe: str
    overrides: tuple[str, ...] = ()
    seeds: int | None = None
    """How many seeds this arm gets where it is fewer than the study's."""
    environment: tuple[str, ...] = ()
    """Variables of its processes, `NAME=VALUE`."""

    def digest(self) -> str:
        """Changes when a value of the recipe, an override or a variable does. UserError where there
        is no such recipe."""
        table = read_toml(ROOT / self.recipe)
        merge_overrides(table, self.overrides)
        text = json.dumps([table, *self.environment], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:8]


class Column(NamedTuple):
    """A column that a study's table has besides: its title, a run's figure, and how it is
    written."""

    title: str
    figure: Callable[[Row], float]
    form: str


@dataclass(frozen=True, slots=True)
class Study:
    """What `headrace bench NAME` runs."""

    name: str
    arms: tuple[Arm, ...]
    seeds: int
    reduced_arms: tuple[str, ...]
    reduced_seeds: int
    reference: str
    """The arm that the others are compared with, seed by seed."""
    prepare: Callable[[], None] | None = None
    """Makes what runs need that is not checked in; called before the first of them."""
    facts: Callable[[Path], Row] | None = None
    """What else a row keeps of a run, read from its folder."""
    columns: tuple[Column, ...] = ()
    jobs: int | None = None
    """Runs at a time unless the command line says otherwise. None: one a core."""

    def plan(self, *, reduced: bool, seeds: int | None = None) -> list[tuple[Arm, int]]:
        """(arm, seed) in the order they are run; `seeds` instead of the study's."""
        arms = [arm for arm in self.arms if not reduced or arm.name in self.reduced_arms]
        if seeds is None:
            seeds = self.reduced_seeds if reduced else self.seeds
        return [(arm, s) for s in range(seeds) for arm in arms if s < (arm.seeds or seeds)]

    @property
    def rows_path(self) -> Path:
        """Where the rows are checked in."""
        return RESULTS / f"{self.name.replace('-', '_')}.jsonl"


def key(arm: Arm, seed: int) -> str:
    """The key of a run's row."""
    return f"{arm.name}/{seed}/{arm.digest()}"


def rows_of(
    arm: Arm, rows: Mapping[str, Row], seeds: Collection[int] | None = None
) -> dict[int, Row]:
    """The rows of the arm as it is now, by seed (of `seeds` alone, where they are given); of a run
    that was made again, the one that counts."""
    digest = arm.digest()
    there = sorted({row["seed"] for row in rows.values() if row.get("arm") == arm.name})
    wanted = [seed for seed in there if seeds is None or seed in seeds]
    found = {seed: tries.row_of(f"{arm.name}/{seed}/{digest}", rows) for seed in wanted}
    return {seed: row for seed, row in found.items() if row is not None}


def parser_of(study: Study, description: str | None) -> argparse.ArgumentParser:
    """The options that all studies have."""
    parser = argparse.ArgumentParser(
        prog=f"headrace bench {study.name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--reduced", action="store_true", help="fewer arms and seeds")
    parser.add_argument("--seeds", type=int, help="seeds of each arm, instead of the study's")
    parser.add_argument("--list", action="store_true", help="what would be run, and stop")
    parser.add_argument(
        "--rows", type=Path, default=study.rows_path, help="JSONL file of runs, gone on with"
    )
    parser.add_argument("--keep", type=Path, help="keep the run folders here")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    return parser


def main_of(study: Study, description: str | None, argv: Sequence[str]) -> int:
    """Run what is missing of `study` and print its table; 1 when runs failed."""
    parser = parser_of(study, description)
    parser.add_argument("--arms", nargs="+", metavar="ARM", help="these arms only")
    parser.add_argument(
        "--jobs",
        type=int,
        default=study.jobs or len(detect().cores),
        help="runs at a time, each on its share of the cores (default: %(default)s)",
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


def run_arm(
    arm: Arm,
    seed: int,
    root: Path,
    *,
    remove: bool = True,
    facts: Callable[[Path], Row] | None = None,
) -> Row:
    """One run to its end, as a row, with `facts` of its folder. RunFailedError when it ended
    badly."""
    # A run is found by its name, and one that is made again is another.
    root = Path(tempfile.mkdtemp(dir=_made(root)))
    name = f"{''.join(c if c.isalnum() else '-' for c in arm.name)}-{seed}"
    recipe = str(ROOT / arm.recipe)
    variables = dict(one.split("=", 1) for one in arm.environment)
    summary = train(
        recipe, [f"seed={seed}", *arm.overrides], root=root, name=name, environment=variables
    )
    folder = Path(summary["folder"])
    row = measured(arm, seed, summary, figures(summary))
    versions = [version for version, *_ in row["evaluations"]]
    row |= {
        "lost_by_tenth": lost_by_tenth(folder),
        "long_prompts": long_prompts(folder, versions),
        "series": series(folder, SERIES),
        **(facts(folder) if facts else {}),
    }
    if remove:
        shutil.rmtree(folder)
    return row


def measured(arm: Arm, seed: int, summary: Summary, found: Row) -> Row:
    """What any run's row says: what was run, the run's figures `found`, the machine meanwhile."""
    versions = [version for version, *_ in found["evaluations"]]
    return {
        "arm": arm.name,
        "seed": seed,
        "recipe": arm.recipe,
        "overrides": list(arm.overrides),
        **({"environment": list(arm.environment)} if arm.environment else {}),
        **found,
        "num_prompts": min(e["num_prompts"] for e in summary["evaluations"]),
        **summary["machine_state"],
        "evaluation_cpu_s": cpu_at_evaluations(summary["watch"], summary["evaluations"], versions),
    }


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def figures(summary: Summary) -> Row:
    """What a row keeps of a run's summary."""
    return {
        "updates": summary["updates"],
        "skipped_updates": summary["skipped_updates"],
        "train_time_s": round(summary["train_time_s"], 2),
        "tokens": {k: v for k, v in summary["tokens"].items() if k != "dropped"},
        "dropped": summary["tokens"]["dropped"],
        "staleness": summary["staleness"],
        "idle_share": summary["idle_share"],
        **learned(summary["evaluations"]),
    }


def learned(evaluations: Sequence[Summary]) -> Row:
    """What a row keeps of a run's evaluations."""
    evaluations = sorted(evaluations, key=lambda e: (e["update"], e["label"] == "after"))
    # Value pretraining repeats version 0, the evaluation after the end the one at the last update.
    by_version = {e["version"]: e for e in evaluations}
    points = [by_version[version] for version in sorted(by_version)]
    return {
        "final": statistics.fmean(e["accuracy"] for e in points[-2:]),
        "mean": area(points),
        "final_length": points[-1]["response_length"],
        "max_length": points[-1]["max_response_length"],
        "evaluations": [
            [
                e["version"],
                round(e["train_time_s"], 2),
                round(e["accuracy"], 4),
                round(e["response_length"], 1),
            ]
            for e in points
        ],
    }


def area(points: Sequence[Summary]) -> float:
    """Mean accuracy over the policy's updates, linear between evaluations."""
    total = 0.0
    for left, right in pairwise(points):
        total += (right["version"] - left["version"]) * (left["accuracy"] + right["accuracy"]) / 2
    span = points[-1]["version"] - points[0]["version"]
    return total / span if span else float(points[-1]["accuracy"])


def table(study: Study, plan: Iterable[tuple[Arm, int]], rows: Rows) -> list[Row]:
    """One line an arm over the seeds that are there: `lines_of` with the study's columns."""
    by_arm: dict[str, dict[int, Row]] = {}
    for arm, seed in plan:
        if row := tries.row_of(key(arm, seed), rows.rows):
            by_arm.setdefault(arm.name, {})[seed] = row
    return lines_of(by_arm, reference=study.reference, columns=study.columns)


def lines_of(
    by_arm: Mapping[str, Mapping[int, Row]], *, reference: str, columns: Sequence[Column] = ()
) -> list[Row]:
    """One line for each arm's rows by seed. `against`: mean accuracy less that of the arm
    `reference` at the same seed, None without a common seed."""
    other = by_arm.get(reference, {})
    lines = []
    for name, found in by_arm.items():
        line: Row = {"arm": name, "seeds": len(found)}
        for figure in ("final", "mean", "final_length"):
            line[figure] = spread([row[figure] for row in found.values()])
        line["generated"] = spread([row["tokens"]["generated"] for row in found.values()])
        common = [seed for seed in found if seed in other and name != reference]
        differences = [found[seed]["mean"] - other[seed]["mean"] for seed in common]
        line["against"] = spread(differences) if common else None
        for column in columns:
            line[column.title] = spread([column.figure(row) for row in found.values()])
        lines.append(line)
    return lines


def warm_up_updates(row: Row) -> int:
    """Updates of the value model alone, before the policy's first."""
    return int(row["updates"] - row["evaluations"][-1][0])


def metric_of(row: Row, name: str) -> list[tuple[int, float]]:
    """(updates of the policy, the metric) for a metric that rows keep, where it has a value."""
    series, warm_up = row["series"], warm_up_updates(row)
    pairs = zip(series["update"], series.get(name, ()), strict=False)
    return [(u - warm_up, v) for u, v in pairs if v is not None and u > warm_up]


def generated_at(row: Row, version: int) -> float:
    """Tokens generated when the policy had `version`: its updates come after the warm-up's."""
    series, last = row["series"], version + warm_up_updates(row)
    found = [
        tokens
        for update, tokens in zip(series["update"], series["ledger/generated"], strict=True)
        if update <= last and tokens is not None
    ]
    return float(found[-1]) if found else 0.0


def beside(rows: Sequence[Row]) -> dict[str, float]:
    """The most that others and the host took during one of the runs, in cores, and how many runs
    others disturbed."""
    return {
        "others_cpu_share": max(row["others_cpu_share"] for row in rows),
        "steal_share": max(row["steal_share"] for row in rows),
        "disturbed": sum(row["disturbed"] for row in rows),
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, least and largest."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def show(study: Study, lines: list[Row]) -> None:
    """The table on the terminal."""
    shown = Table(title=study.name, title_justify="left")
    against = f"against {study.reference}"
    titles = ("arm", "seeds", "final accuracy", "mean accuracy", against, "length", "tokens")
    for title in (*titles, *(column.title for column in study.columns)):
        shown.add_column(title, no_wrap=True)
    for line in lines:
        shown.add_row(*cells(line, study.columns))
    Console(width=None if sys.stdout.isatty() else 200).print(shown)


def cells(line: Row, columns: Sequence[Column] = ()) -> list[str]:
    """A line of a table: arm, seeds, final and mean accuracy, mean accuracy less that of the
    reference, final length, tokens generated, and the study's own columns."""
    return [
        line["arm"],
        str(line["seeds"]),
        text(line["final"], ".3f"),
        text(line["mean"], ".3f"),
        text(line["against"], "+.3f"),
        text(line["final_length"], ".0f"),
        text(line["generated"], ",.0f"),
        *(text(line[column.title], column.form) for column in columns),
    ]


def text(values: Mapping[str, float] | None, form: str) -> str:
    """`median (least to most)`; `-` where there is nothing."""
    if values is None:
        return "-"
    median, least, most = (format(values[k], form) for k in ("median", "min", "max"))
    return median if least == most else f"{median} ({least} to {most})"


def line_of(row: Row) -> str:
    """A finished run in a line."""
    curve = " ".join(f"{accuracy:.2f}@{version}" for version, _, accuracy, _ in row["evaluations"])
    beside = f"; others took {row['others_cpu_share']:.2f} cores" if row.get("disturbed") else ""
    return f"{row['arm']} seed {row['seed']}: {curve}; {row['final_length']:.0f} tokens{beside}"
