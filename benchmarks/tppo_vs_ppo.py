"""The race: T-PPO in a stream against PPO, each at the best of its own settings.

`ratio` is PPO's seconds of training over streaming T-PPO's, to 0.95 of the median accuracy that PPO
ends with: the quotient of the arms' restricted means over the seeds. `ratio_min` and `ratio_max`
are those of single seeds, where a run that never came to the target counts with its whole training
time. `interval` is a paired bootstrap over seeds, `censored` how many of those runs never came.
`tuned` says that every arm shown was tuned with as many runs, on none of the seeds shown.

How arms are tuned, when a run crosses, what is done about others on the machine: "What a comparison
is" in docs/evidence.md. Arms and settings: benchmarks/race_settings.py.

In this order, each going on where it stopped:
  --generators  is PPO faster with a second generator process? (tuning seeds)
  --tune        the runs that tuning lacks
  (nothing)     the race
  --factors     what drives it: one thing of the best settings changed at a time
  --old-data    what it costs the stream that its data is old, and what helps
  --ceiling     generator and learner each alone, for the stream's tokens
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import ceiling, old_data, tries
from benchmarks.command_line import command_line
from benchmarks.crossings import interval_text
from benchmarks.race import Plan, Race, Track, listing
from benchmarks.race_figures import factor_figures, in_words, race_path, summarise
from benchmarks.race_settings import ARMS, PAIR, SETTINGS
from benchmarks.rows import Rows, read_rows, result_line
from benchmarks.study_plan import key
from benchmarks.study_table import spread, text
from benchmarks.tuning import words
from headrace.config.load import read_toml
from headrace.errors import RunFailedError
from headrace.install import ROOT

REDUCED_SEEDS = 3
PARTS = (
    ("generators", "compare how PPO may generate"),
    ("tune", "run what tuning lacks"),
    ("factors", "run what drives the ratio"),
    ("old-data", "run what the age of a stream's data costs"),
    ("ceiling", "measure generator and learner alone"),
)
"""What is run but the race: options and their meaning."""


def main(argv: list[str]) -> int:
    """Run what is missing, print tables, write the result."""
    options = parse(argv)
    setting = SETTINGS[options.setting]
    read_toml(ROOT / setting.recipe)  # UserError where the task is not there
    race = Race(setting)
    seeds = options.seed_list or list(setting.seeds)
    if options.reduced and not options.seed_list:
        seeds = seeds[:REDUCED_SEEDS]
    modes = options.arms or list(PAIR if options.reduced else ARMS)
    rows = rows_for(options, race)
    plan = plan_for(options, race, modes, seeds)
    if options.list:
        print("\n".join(listing(race.tuning, modes, plan, rows.rows)))
        return 0
    failed = carry_out(options, race, plan, rows, modes)
    if options.tune:
        result = tuning_result(race, modes)
    elif options.generators:
        result = {"name": "tppo-vs-ppo", "setting": setting.name, "engine": race.engine}
        result["tokens_per_s"] = {name: spread(r) for name, r in race.engine_rates().items()}
        print(json.dumps(result, indent=2))
    elif options.old_data:
        result = {"name": "tppo-vs-ppo", "setting": setting.name}
        result["old_data"] = old_data.figures(race, rows.rows)
        show_old_data(result["old_data"])
    else:
        is_race = not (options.factors or options.ceiling)
        own = rows.rows if is_race else read_rows(race_path(setting.name))
        result = summarise(race, own, modes, seeds)
        show(result, seeds)
    if options.factors and "target" in result:
        result["factors"] = factor_figures(race, rows.rows, result["target"])
        show_factors(result["factors"])
    if options.json:
        print(result_line(result))
    return 1 if failed else 0


def carry_out(
    options: argparse.Namespace, race: Race, plan: Plan, rows: Rows, modes: Sequence[str]
) -> list[str]:
    """Run what is missing of the part that was asked for; the failures in words."""
    if options.tune:
        race.tune(modes, keep=options.keep)
        return []
    if options.ceiling:
        return run_ceiling(race)
    return Track(rows, options.keep).run_all(plan)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options."""
    parser = command_line("tppo-vs-ppo", __doc__)
    parser.add_argument("--setting", choices=SETTINGS, default="long", help="which task")
    parser.add_argument("--reduced", action="store_true", help="the ratio's two arms, three seeds")
    parser.add_argument("--arms", nargs="+", choices=ARMS, metavar="ARM", help="these arms only")
    parser.add_argument(
        "--seed-list", nargs="+", type=int, metavar="SEED", help="these seeds (needs --rows)"
    )
    parser.add_argument("--rows", type=Path, help="JSONL file of runs of one's own, gone on with")
    parser.add_argument("--list", action="store_true", help="what would be run, and stop")
    parser.add_argument("--keep", type=Path, help="keep the run folders here")
    part = parser.add_mutually_exclusive_group()
    for name, meaning in PARTS:
        part.add_argument(f"--{name}", action="store_true", help=meaning)
    options = parser.parse_args(argv)
    if options.seed_list and options.rows is None:
        parser.error("--seed-list needs --rows FILE, a file of one's own")
    if options.rows and any(getattr(options, name.replace("-", "_")) for name, _ in PARTS):
        parser.error("--rows is for the race itself; this part has a file of its own")
    return options


def rows_for(options: argparse.Namespace, race: Race) -> Rows:
    """The file that the runs go to."""
    for part in ("generators", "factors", "old_data", "tuning"):
        if getattr(options, "tune" if part == "tuning" else part):
            return race.rows(part)
    return Rows(options.rows or race_path(race.setting.name))


def plan_for(
    options: argparse.Namespace, race: Race, modes: Sequence[str], seeds: Sequence[int]
) -> Plan:
    """What is to be run."""
    if options.tune or options.ceiling:
        return []
    if options.generators:
        return race.engine_plan()
    if options.factors:
        return race.factor_plan()
    if options.old_data:
        return old_data.plan(race)
    return race.plan(modes, seeds)


def run_ceiling(race: Race) -> list[str]:
    """Measure the ceiling at the first seed of the race; what failed, in words."""
    found, arm, seed = race.rows("ceiling"), race.arm("streaming"), race.setting.seeds[0]
    name = key(arm, seed)
    while tries.is_missing(name, found.rows):
        try:
            row = ceiling.measure(arm, seed)
        except RunFailedError as error:
            print(f"failed: {error}", file=sys.stderr)
            return [str(error)]
        found.add(tries.new_key(name, found.rows, row), row)
    return []


def tuning_result(race: Race, modes: Sequence[str]) -> dict[str, Any]:
    """Every point that was tried, and whether that was fair."""
    show_tuning(race, modes)
    return {
        "name": "tppo-vs-ppo",
        "setting": race.setting.name,
        "tuned": race.tuning.is_fair(modes, race.setting.seeds),
        "tuning_target": race.setting.tuning_target,
        "points": race.tuning_table(modes),
    }


# -- on the terminal ---------------------------------------------------------------------------


def show_tuning(race: Race, modes: Sequence[str]) -> None:
    """Every point that was tried."""
    shown = Table(title=f"tuning, {race.setting.name}", title_justify="left")
    for column in ("arm", "point", "seeds", "crossed", "seconds", "final accuracy", ""):
        shown.add_column(column, no_wrap=True)
    for line in race.tuning_table(modes):
        shown.add_row(
            line["arm"],
            words(line["point"]),
            str(line["seeds"]),
            str(line["crossed"]),
            f"{line['seconds']:.1f}",
            f"{line['final']:.3f}",
            "best" if line["best"] else "",
        )
    _print(shown)


def show(result: Mapping[str, Any], seeds: Sequence[int]) -> None:
    """The table, and what the result says of a race of these seeds."""
    shown = Table(title=f"tppo-vs-ppo, {result['setting']}", title_justify="left")
    for column in (
        "arm", "seeds", "never crossed", "seconds", "CPU seconds", "tokens", "PPO's seconds over",
        "95 %", "final accuracy", "on long prompts", "context", "others",
    ):  # fmt: skip
        shown.add_column(column, no_wrap=True)
    for mode, arm in result.get("arms", {}).items():
        against = arm["against_ppo"]
        shown.add_row(
            mode,
            str(arm["seeds"]),
            str(arm["censored"]),
            f"{arm['seconds']:.1f}",
            f"{arm['cpu_s']:.1f}",
            f"{arm['tokens']:,.0f}",
            f"{against['ratio']:.2f}" if against else "-",
            interval_text(against.get("interval")),
            text(arm["final"], ".3f"),
            text(arm["final_on_long_prompts"], ".3f"),
            f"{arm['context_share']:.2f}",
            f"{arm['others_cpu_share']:.2f}",
        )
    _print(shown)
    print("\n\n".join(in_words(result, seeds)).replace("**", ""))


def show_factors(figures: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
    """One line an arm."""
    shown = Table(title="what drives it", title_justify="left")
    for column in ("factor", "arm", "seeds", "never crossed", "seconds", "final accuracy"):
        shown.add_column(column, no_wrap=True)
    for factor, arms in figures.items():
        for name, arm in arms.items():
            shown.add_row(
                factor,
                name,
                str(arm["seeds"]),
                str(arm["censored"]),
                f"{arm['seconds']:.1f}",
                text(arm["final"], ".3f"),
            )
    _print(shown)


def show_old_data(figures: Mapping[str, Mapping[str, Any]]) -> None:
    """One line an arm."""
    shown = Table(title="old data", title_justify="left")
    for column in ("arm", "seeds", "seconds", "seed by seed", "over those as tuned", "fall"):
        shown.add_column(column, no_wrap=True)
    for label, one in figures.items():
        shown.add_row(*old_data.cells(label, one))
    _print(shown)


def _print(shown: Table) -> None:
    Console(width=None if sys.stdout.isatty() else 200).print(shown)
