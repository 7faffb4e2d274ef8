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
  --ceiling     generator and learner each alone, for the stream's tokens
"""

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import ceiling, tries
from benchmarks.crossings import (
    compared,
    crossing,
    curve,
    interval_text,
    median,
    resolvable,
    restricted_mean,
    spent_at,
    time_to,
)
from benchmarks.race import Plan, Race, Track, listing
from benchmarks.race_settings import ARMS, PAIR, SETTINGS
from benchmarks.rows import RESULTS, Rows, read_rows, result_line
from benchmarks.study import (
    Row,
    beside,
    generated_at,
    key,
    rows_of,
    spread,
    text,
    warm_up_updates,
)
from benchmarks.tuning import words
from headrace.config.load import read_toml
from headrace.errors import RunFailedError
from headrace.install import ROOT

SHARE_OF_FINAL = 0.95
LEAST_PROMPTS = 1024
REDUCED_SEEDS = 3
Arms = Mapping[str, Mapping[int, Row]]
"""Rows by arm and seed."""


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
    else:
        is_race = not (options.factors or options.ceiling)
        own = rows.rows if is_race else read_rows(race_path(setting.name))
        result = summarise(race, own, modes, seeds)
        show(result)
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
    parser = argparse.ArgumentParser(
        prog="headrace bench tppo-vs-ppo",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--setting", choices=SETTINGS, default="long", help="which task (long)")
    parser.add_argument("--reduced", action="store_true", help="the ratio's two arms, three seeds")
    parser.add_argument("--arms", nargs="+", choices=ARMS, metavar="ARM", help="these arms only")
    parser.add_argument(
        "--seed-list", nargs="+", type=int, metavar="SEED", help="these seeds (needs --rows)"
    )
    parser.add_argument("--rows", type=Path, help="JSONL file of runs of one's own, gone on with")
    parser.add_argument("--list", action="store_true", help="what would be run, and stop")
    parser.add_argument("--keep", type=Path, help="keep the run folders here")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    part = parser.add_mutually_exclusive_group()
    for name, meaning in (
        ("generators", "compare how PPO may generate"),
        ("tune", "run what tuning lacks"),
        ("factors", "run what drives the ratio"),
        ("ceiling", "measure generator and learner alone"),
    ):
        part.add_argument(f"--{name}", action="store_true", help=meaning)
    options = parser.parse_args(argv)
    if options.seed_list and options.rows is None:
        parser.error("--seed-list needs --rows FILE, a file of one's own")
    if options.rows and (options.generators or options.tune or options.factors or options.ceiling):
        parser.error("--rows is for the race itself; this part has a file of its own")
    return options


def race_path(setting: str) -> Path:
    """Where the rows of the race are checked in."""
    return RESULTS / f"tppo_vs_ppo_{setting}.jsonl"


def rows_for(options: argparse.Namespace, race: Race) -> Rows:
    """The file that the runs go to."""
    for part in ("generators", "factors", "tuning"):
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


def summarise(
    race: Race, rows: Mapping[str, Row], modes: Sequence[str], seeds: Sequence[int]
) -> dict[str, Any]:
    """The result: figures of the ratio at the top, each arm below. A ratio is None until both of
    its arms have a run."""
    found = {mode: rows_of(race.arm(mode), rows, seeds) for mode in modes}
    found = {mode: by_seed for mode, by_seed in found.items() if by_seed}
    shown = sorted({seed for by_seed in found.values() for seed in by_seed})
    result: dict[str, Any] = {
        "name": "tppo-vs-ppo",
        "setting": race.setting.name,
        **{name: None for name in ("ratio", "ratio_min", "ratio_max", "interval", "censored")},
        "tuned": race.tuning.is_fair(list(found), shown),
        "seeds": shown,
        "engine": race.engine,
        "tuning_target": race.setting.tuning_target,
    }
    if PAIR[0] not in found:
        return result
    target = SHARE_OF_FINAL * statistics.median(row["final"] for row in found[PAIR[0]].values())
    least = min(row["num_prompts"] for by_seed in found.values() for row in by_seed.values())
    result |= {
        "target": target,
        "resolvable": resolvable(target, least, seeds=len(found[PAIR[0]])),
        "arms": {
            mode: {"point": dict(race.tuning.best(mode)), **arm_figures(by_seed, target)}
            for mode, by_seed in found.items()
        },
    }
    for mode in found:
        result["arms"][mode]["against_ppo"] = compare(found, PAIR[0], mode, target)
    if PAIR[1] in found:
        result |= compare(found, *PAIR, target)
    if {"whole", "streaming"} <= set(found):
        result["windows_over_whole"] = compare(found, "whole", "streaming", target)
    if found.keys() & {"streaming"}:
        result["ceiling"] = ceiling_figures(race, found)
    return result


def compare(found: Arms, over: str, under: str, target: float) -> dict[str, Any]:
    """Seconds of the arm `over` by those of `under`, over the seeds that both have."""
    common = sorted(found[over].keys() & found[under].keys())
    pairs = {s: (time_to(found[over][s], target), time_to(found[under][s], target)) for s in common}
    return compared(pairs)


def arm_figures(rows: Mapping[int, Row], target: float) -> dict[str, Any]:
    """Figures of one arm over its seeds."""
    each = list(rows.values())
    times = [time_to(row, target) for row in each]
    crossings = [crossing(curve(row), target) for row in each]
    tokens = [spent_at(row, target, _tokens(row)) for row in each]
    cpu = [spent_at(row, target, row["evaluation_cpu_s"]) for row in each]
    return {
        "seeds": len(each),
        "censored": sum(not time.reached for time in times),
        "seconds": restricted_mean(times),
        "seconds_median": median(times),
        "seconds_of_seed": {seed: time_to(row, target).value for seed, row in rows.items()},
        "tokens": restricted_mean(tokens),
        "cpu_s": restricted_mean(cpu),
        "dense": all(one.is_dense for one in crossings if one),
        "prompts": min(row["num_prompts"] for row in each),
        "final": spread([row["final"] for row in each]),
        "final_on_long_prompts": spread([_last_two(row["long_prompts"]) for row in each]),
        "tail": spread([tail(row) for row in each]),
        "speed": spread([row["tokens"]["trained_policy"] / row["train_time_s"] for row in each]),
        "context_share": statistics.median(_mean(row, "perf/context_share") for row in each),
        "staleness": statistics.median(row["staleness"]["mean"] or 0.0 for row in each),
        "idle_share": {
            side: statistics.median(row["idle_share"][side] for row in each)
            for side in ("generator", "learner")
        },
        "wall_s": statistics.median(row["wall_s"] for row in each),
        "cpu_s_by_role": {
            role: statistics.median(row["cpu_s"].get(role, 0.0) for row in each)
            for role in sorted({role for row in each for role in row["cpu_s"]})
        },
        **beside(each),
        "stale_by_tenth": _by_tenth(each, "stale"),
        "lost_by_tenth": _by_tenth(each, "other"),
    }


def _tokens(row: Row) -> list[float]:
    return [generated_at(row, version) for version, *_ in row["evaluations"]]


def _last_two(long: Mapping[str, Any]) -> float:
    return statistics.fmean(long["accuracy"][-2:])


def _mean(row: Row, metric: str) -> float:
    """Mean of a metric over the policy's updates."""
    values = row["series"].get(metric, [])[warm_up_updates(row) :]
    return statistics.fmean([value for value in values if value is not None] or [0.0])


def _by_tenth(rows: Sequence[Row], reason: str) -> list[float]:
    columns = zip(*([part[reason] for part in row["lost_by_tenth"]] for row in rows), strict=False)
    return [round(statistics.fmean(column), 4) for column in columns]


def tail(row: Row) -> float:
    """Longest response over the mean of those that finished in the last quarter of the run."""
    lengths = [x for x in row["series"]["rollout/finished_length"] if x is not None]
    return float(row["max_length"] / statistics.fmean(lengths[-max(1, len(lengths) // 4) :]))


def ceiling_figures(race: Race, found: Arms) -> dict[str, float] | None:
    """`ceiling`: PPO's seconds over those of a stream that loses nothing, for the same number of
    trained tokens; `share`: how much of that the stream reached; None until it is measured."""
    rows = rows_of(race.arm("streaming"), race.known("ceiling"))
    if not rows:
        return None
    measured = list(rows.values())
    ppo = [row["train_time_s"] / row["tokens"]["trained_policy"] for row in found[PAIR[0]].values()]
    best = [max(row["generator_s"], row["learner_s"]) / row["trained"] for row in measured]
    return {
        "ceiling": statistics.median(ppo) / statistics.median(best),
        "share": statistics.median(ceiling.share(row) for row in measured),
        **{
            side: statistics.median(row[f"{side}_s"] / row["stream_s"] for row in measured)
            for side in ("generator", "learner")
        },
    }


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


def factor_figures(
    race: Race, rows: Mapping[str, Row], target: float
) -> dict[str, dict[str, dict[str, Any]]]:
    """By factor and arm: seconds to the race's target. Where the task is another (`tail`), the
    target is that of PPO on it."""
    figures: dict[str, dict[str, dict[str, Any]]] = {}
    for factor, arms in race.factor_arms().items():
        found = {arm.name: by_seed for arm in arms if (by_seed := rows_of(arm, rows))}
        for name, by_seed in found.items():
            mode, _, label = name.partition(", ")
            there = found.get(f"{race.setting.name}/{PAIR[0]}, {label}")
            own = target
            if factor == "tail":
                if there is None:
                    continue
                own = SHARE_OF_FINAL * statistics.median(row["final"] for row in there.values())
            line = {"target": own, **arm_figures(by_seed, own)}
            if there is not None and mode.endswith(PAIR[1]):
                pair = {PAIR[0]: there, PAIR[1]: by_seed}
                line["against_ppo"] = compare(pair, *PAIR, own)
            figures.setdefault(factor, {})[name] = line
    return figures


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


def show(result: Mapping[str, Any]) -> None:
    """The table and the line of the ratio."""
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
    if result["ratio"] is not None:
        print(ratio_line(result))


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


def _print(shown: Table) -> None:
    Console(width=None if sys.stdout.isatty() else 200).print(shown)


def ratio_line(result: Mapping[str, Any]) -> str:
    """The ratio in words, with what it rests on."""
    never = result["censored"]
    parts = [
        f"Setting `{result['setting']}`: PPO's seconds to {result['target']:.3f} over those of "
        f"streaming T-PPO: {result['ratio']:.2f} "
        f"(seeds {result['ratio_min']:.2f} to {result['ratio_max']:.2f}; "
        f"95 % interval {interval_text(result['interval'])})",
        f"{never} of these runs never came there" if never else "every run came there",
        "both sides tuned alike" if result["tuned"] else "not tuned alike",
        f"evaluations tell differences of {result['resolvable']:.3f} and more",
    ]
    arms = [result["arms"][mode] for mode in PAIR]
    if not all(arm["dense"] for arm in arms):
        parts.append("evaluations lie more than a tenth of a crossing time apart")
    if any(arm["prompts"] < LEAST_PROMPTS for arm in arms):
        parts.append(f"on fewer than {LEAST_PROMPTS} prompts")
    if disturbed := sum(arm["disturbed"] for arm in arms):
        parts.append(f"{disturbed} runs beside others that took more than a twentieth of a core")
    return "; ".join(parts) + "."
