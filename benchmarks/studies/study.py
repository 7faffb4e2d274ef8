"""A study: run what is missing of its plan, one row per run, and show the figures.

In: the name of a file in `benchmarks/studies`, or a file of one's own, and options; `headrace bench
NAME` of a study is the same. Out: rows in a JSONL file (an existing run is not repeated, unless its
settings have changed), one line per finished run, a table, and with `--json` the result as one
object. Runs are `headrace train` in processes of their own; `--jobs` of them run at a time, each on
its share of the cores. Seeds are the outer loop, so that an interrupted study has all arms at the
first seeds.

A row has the machine's other load during the run; a run beside which others took more than a
twentieth of a core is made again, up to three runs in all, where a study's figures are of seconds.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.kit import study_file
from benchmarks.kit.arm_run import run_arm
from benchmarks.kit.arms import is_missing, key, rows_of
from benchmarks.kit.command_line import command_line
from benchmarks.kit.rows import ResultFile, read_rows, result_line
from benchmarks.kit.study_plan import Plan, Study
from benchmarks.kit.study_runs import Measure, Runner, listing, prepare
from benchmarks.kit.study_table import arms_table, lines_of
from benchmarks.studies import comparison_figures as figures
from headrace.host.hardware import detect
from headrace.host.user_code import thing_of

UNTUNED = "not tuned with these settings: runs at its first point, which no claim counts (--tune)"


def main(argv: Sequence[str]) -> int:
    """Run what is missing of a study and print the figures; return 1 when runs failed."""
    if not argv or argv[0].startswith("-"):
        parser = command_line("study", __doc__, json=False)
        parser.add_argument(
            "study",
            help=f"a TOML file, or one of {', '.join(study_file.names())}; STUDY --help: more",
        )
        parser.parse_args(argv)
    name, *words = argv
    path = Path(name) if name.endswith(".toml") else study_file.FOLDER / f"{name}.toml"
    options = parse(path, study_file.settings(path), words)
    study = Study(path.stem, study_file.load(path, options.setting), options.setting)
    return carry_out(study, options)


def parse(path: Path, settings: Sequence[str], words: Sequence[str]) -> argparse.Namespace:
    file = study_file.load(path, settings[-1] if settings else None)
    parser = command_line(path.stem, about(path))
    parser.set_defaults(part=None, setting=None)
    if settings:
        parser.add_argument("--setting", choices=settings, default=settings[-1], help="which task")
    parser.add_argument("--reduced", action="store_true", help="fewer arms and seeds")
    parser.add_argument("--seeds", type=int, help="number of seeds, instead of the study's")
    parser.add_argument(
        "--seed-list", nargs="+", type=int, metavar="SEED", help="these seeds (needs --rows)"
    )
    parser.add_argument("--arms", nargs="+", choices=file.arms, metavar="ARM", help="these arms")
    parser.add_argument("--list", action="store_true", help="what would be run, and stop")
    parser.add_argument("--rows", type=Path, help="JSONL file of runs, gone on with")
    parser.add_argument("--keep", type=Path, help="keep the run folders here")
    parser.add_argument(
        "--jobs",
        type=int,
        default=file.jobs or len(detect().cores),
        help="runs at a time, each on its share of the cores",
    )
    parts = {name: part.about for name, part in file.parts.items()}
    if file.tuning:
        parts["tune"] = "run what tuning lacks"
    group = parser.add_mutually_exclusive_group() if parts else parser
    for name, meaning in parts.items():
        group.add_argument(f"--{name}", action="store_const", dest="part", const=name, help=meaning)
    options = parser.parse_args(words)
    if options.seed_list and options.rows is None:
        parser.error("--seed-list needs --rows FILE, a file of one's own")
    if file.jobs and options.jobs != file.jobs and options.rows is None:
        parser.error(f"rows are of {file.jobs} run at a time: another --jobs needs --rows FILE")
    if options.part in file.parts and (options.arms or options.reduced or options.seeds):
        parser.error(f"--{options.part} has arms and seeds of its own")
    return options


def about(path: Path) -> str:
    """Return the comment at the top of a study's file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    end = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return "\n".join(re.sub("^# ?", "", line) for line in lines[:end])


def carry_out(study: Study, options: argparse.Namespace) -> int:
    """Run what is missing of the selection, or only list it, and show the figures."""
    file, part = study.file, options.part
    file_of = "tuning" if part == "tune" else part
    rows = ResultFile(options.rows or study.path(file_of))
    modes, seeds = chosen(study, options)
    plan: Plan = []
    if part in file.parts:
        plan = study.part_plan(part)
    elif part is None:
        plan = study.plan(modes, seeds)
    if options.list:
        tuning = study.tuning(rows if part == "tune" else None)
        print("\n".join(listing(tuning, modes, plan, rows.rows)))
        return 0
    if part == "tune" or any(is_missing(key(arm, seed), rows.rows) for arm, seed, _ in plan):
        prepare(file.prepare)
    measure: Measure = run_arm
    if file.facts is not None:  # fields of the study's own in the row
        measure = partial(run_arm, facts=thing_of(file.facts))
    runner = Runner(
        study.name, rows, measure, jobs=options.jobs, timed=file.timed, keep=options.keep
    )
    failed: list[str] = []
    if part == "tune":
        runner.tune(study.tuning(rows), modes)
    else:
        tuning = study.tuning()
        for mode in modes if part is None else ():
            if mode in tuning.grids and tuning.walk(mode).missing:
                print(f"{mode}: {UNTUNED}", file=sys.stderr, flush=True)
        failed = runner.run_all(plan)
    result = report(study, rows, part, modes, seeds)
    if options.json:
        print(result_line(result))
    return 1 if failed else 0


def chosen(study: Study, options: argparse.Namespace) -> tuple[list[str], list[int]]:
    """Return the selected arms and seeds."""
    file, reduced = study.file, study.file.reduced if options.reduced else None
    modes = options.arms or list(reduced.arms if reduced else file.arms)
    seeds = list(file.seeds[: reduced.seeds] if reduced else file.seeds)
    if options.seeds is not None:
        seeds = list(range(file.seeds[0], file.seeds[0] + options.seeds))
    return modes, options.seed_list or seeds


def report(
    study: Study, rows: ResultFile, part: str | None, modes: Sequence[str], seeds: Sequence[int]
) -> dict[str, Any]:
    """Show the figures of the runs; return the result as `--json` prints it."""
    file = study.file
    result: dict[str, Any] = {"name": study.name, "setting": study.setting}
    if part == "tune":
        result["points"] = figures.tuning_lines(study, modes, rows)
        result["tuning_target"] = study.target
        result["tuned"] = study.tuning(rows).is_fair(modes, file.seeds)
        figures.tuning_table(result["points"]).show(f"tuning of {study.name}")
    elif file.race is None:
        found = {mode: rows_of(study.arm(mode), rows.rows, seeds) for mode in modes}
        by_arm = {mode: own for mode, own in found.items() if own}
        lines = lines_of(by_arm, reference=file.reference, columns=file.columns)
        arms_table(lines, reference=file.reference, columns=file.columns).show(study.name)
        result["arms"] = lines
    else:
        own = rows.rows if part is None else read_rows(study.path())
        result = figures.summarise(study, own, modes, seeds)
        if part in file.parts:
            target = study.target if file.parts[part].tuned else result.get("target", study.target)
            result[part] = figures.part_figures(study, part, rows.rows, target)
            figures.part_table(study, part, result[part]).show(f"{study.name}, {part}")
        else:
            figures.race_table(result).show(f"{study.name}, {study.setting or 'each arm'}")
            figures.course_table(result).show(f"{study.name}, courses and tuning")
            if result["ratio"] is not None:
                figures.ratio_table(study, result).show(f"{study.name}, ratios")
                print(figures.ratio_line(result, (file.reference, figures.race_of(study).ratio)))
    return result
