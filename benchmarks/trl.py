"""TRL's GRPO trainer against ours: completion tokens a second, processor seconds, time to accuracy.

Three arms on the same two cores: `trl`, and `recipes/algorithms/grpo.toml` in `streaming` and in
`synchronous` mode. All train the same policy on the same prompts with the same reward, sampling,
completions an update, optimizer and number of optimizer steps. TRL runs in an environment of its
own, built at the first use from `requirements/trl.lock` below `.cache`; gradient checkpointing,
logging and saving are off.

- tuning  each arm's speed at eight points (threads, processes, precision, way of generating, split
          of the batch), on a seed that is not shown; the fastest is what is compared
- speed   training seconds and processor seconds of the same number of updates, no evaluations
- race    seconds and processor seconds of training to a held-out accuracy

`ratio` is streaming's trained completion tokens a second over TRL's: the quotient of the mean
seconds a token over the seeds. `ratio_min` and `ratio_max` are those of single seeds, `interval` is
a paired bootstrap over seeds. `cpu_ratio` is TRL's processor seconds a token over those of our
synchronous mode. Under each arm, `against_trl` is TRL's cost over the arm's, for all four costs.
`tuned` says that all were tuned with as many runs, on none of the seeds shown.

How arms are tuned, when a run crosses, what is done about others on the machine: "What a comparison
is" in docs/evidence.md. What is there in `--rows` is not run again. In full these are 24 runs of
tuning and 30 that are shown; with `--reduced` 12 (two seeds, tuned if the rows say how).
"""

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any

from benchmarks.command_line import command_line, take_rows
from benchmarks.crossings import (
    Time,
    compared,
    crossing,
    curve,
    ratio_text,
    restricted_mean,
    spent_at,
    time_to,
)
from benchmarks.race import Plan, Track, in_drawn_order, listing, tune
from benchmarks.rows import RESULTS, Rows, result_line
from benchmarks.study_plan import Row, rows_of
from benchmarks.study_table import beside, spread, text
from benchmarks.trl_arms import run
from benchmarks.trl_environment import trl_python
from benchmarks.trl_settings import (
    ACCURACY,
    GRIDS,
    MODES,
    PARTS,
    RACE,
    SPEED,
    STREAMING,
    SYNCHRONOUS,
    TRL,
    UPDATES,
    arm_of,
)
from benchmarks.tuning import Score, Tuning, words

CORES = 2
TUNING_SEEDS = (100,)
SEEDS, REDUCED_SEEDS = 5, 2
ROWS = RESULTS / "trl.jsonl"
COSTS: Mapping[str, tuple[str, Callable[[Row], Time]]] = {
    "s_per_token": (SPEED, lambda row: Time(row["train_time_s"] / _tokens(row), True)),
    "cpu_s_per_token": (SPEED, lambda row: Time(row["evaluation_cpu_s"][-1] / _tokens(row), True)),
    "seconds": (RACE, lambda row: time_to(row, ACCURACY)),
    "cpu_s": (RACE, lambda row: spent_at(row, ACCURACY, row["evaluation_cpu_s"])),
}
"""What is compared: in which part, and what a run took. The last two are up to the accuracy."""


def main(argv: list[str]) -> int:
    """Run what is missing, print the figures; 1 when runs failed."""
    options = parse(argv)
    seeds = range(options.seeds or (REDUCED_SEEDS if options.reduced else SEEDS))
    rows = Rows(options.rows)
    tuning = tuning_of(rows.rows, options.updates)
    if options.list:
        plan = plan_of(tuning, seeds, options.updates)
        print("\n".join(listing(tuning, MODES, plan, rows.rows)))
        return 0
    trl_python()  # built before anything is measured
    track = Track(rows, study="trl", measure=run)
    cores = os.sched_getaffinity(0)
    # What is started from here runs on the same cores, whatever its arm.
    os.sched_setaffinity(0, sorted(cores)[:CORES])
    try:
        if not options.reduced:
            tune(tuning, track, MODES)
        failed = track.run_all(plan_of(tuning, seeds, options.updates))
    finally:
        os.sched_setaffinity(0, cores)
    result = summarise(tuning, seeds, options.updates)
    show(result)
    if options.json:
        print(result_line(result))
    return 1 if failed else 0


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options."""
    parser = command_line("trl", __doc__)
    parser.add_argument("--reduced", action="store_true", help="fewer seeds, no tuning")
    parser.add_argument("--seeds", type=int, help=f"seeds that are shown (default: {SEEDS})")
    parser.add_argument("--updates", type=int, default=UPDATES, help="of a run of its speed")
    parser.add_argument("--list", action="store_true", help="what would be run, and stop")
    take_rows(parser, ROWS, resumes=True)
    return parser.parse_args(argv)


def tuning_of(rows: Mapping[str, Row], updates: int) -> Tuning:
    """Tuning of the arms by the rows there are: for speed."""
    arm = partial(arm_of, SPEED, updates=updates)
    return Tuning(GRIDS, arm=arm, score=score, seeds=TUNING_SEEDS, rows=rows)


def score(rows: Sequence[Row]) -> Score:
    """How good a point is: runs that failed, then seconds a token."""
    times = [COSTS["s_per_token"][1](row).value for row in rows if "failed" not in row]
    return len(rows) - len(times), fmean(times) if times else 0.0


def plan_of(tuning: Tuning, seeds: Sequence[int], updates: int) -> Plan:
    """Both parts of all arms at their best points."""
    arms = [
        arm_of(part, mode, tuning.best(mode), updates=updates) for part in PARTS for mode in MODES
    ]
    return in_drawn_order(arms, seeds)


def _tokens(row: Row) -> int:
    return int(row["tokens"]["trained_policy"])


# -- the result --------------------------------------------------------------------------------


def summarise(tuning: Tuning, seeds: Sequence[int], updates: int) -> dict[str, Any]:
    """The result: figures of the ratio at the top, each arm below. A ratio is None until both of
    its arms have a run."""
    found = shown_rows(tuning, seeds, updates)
    arms = {mode: arm_figures({part: found[part, mode] for part in PARTS}) for mode in MODES}
    for mode, arm in arms.items():
        arm["point"] = dict(tuning.best(mode))
        arm["against_trl"] = {
            name: against(found[part, TRL], found[part, mode], cost)
            for name, (part, cost) in COSTS.items()
        }
    ratios = {mode: arm["against_trl"] for mode, arm in arms.items()}
    speed, cpu = ratios[STREAMING]["s_per_token"], ratios[SYNCHRONOUS]["cpu_s_per_token"]
    return {
        "name": "trl",
        **{name: speed.get(name) for name in ("ratio", "ratio_min", "ratio_max", "interval")},
        "cpu_ratio": cpu.get("ratio"),
        "tuned": tuning.is_fair(MODES, seeds),
        "seeds": sorted({seed for rows in found.values() for seed in rows}),
        "updates": updates,
        "accuracy": ACCURACY,
        "arms": arms,
    }


def shown_rows(
    tuning: Tuning, seeds: Sequence[int], updates: int
) -> dict[tuple[str, str], dict[int, Row]]:
    """By part and mode: the rows of the arm at its best point, by seed."""
    return {
        (part, mode): rows_of(
            arm_of(part, mode, tuning.best(mode), updates=updates), tuning.rows, seeds
        )
        for part in PARTS
        for mode in MODES
    }


def against(
    trl: Mapping[int, Row], own: Mapping[int, Row], cost: Callable[[Row], Time]
) -> dict[str, Any]:
    """TRL's cost by an arm's own, over the seeds that both have."""
    return compared({s: (cost(trl[s]), cost(own[s])) for s in sorted(trl.keys() & own.keys())})


def arm_figures(rows: Mapping[str, Mapping[int, Row]]) -> dict[str, Any]:
    """Figures of one arm by its rows of each part; `censored`: runs that never had the accuracy."""
    speed, race = list(rows[SPEED].values()), list(rows[RACE].values())
    figures: dict[str, Any] = {"speed_seeds": len(speed), "race_seeds": len(race)}
    for name, (part, cost) in COSTS.items():
        times = [cost(row) for row in rows[part].values()]
        figures[name] = restricted_mean(times) if times else None
    if speed:
        figures["tokens_per_s"] = spread([_tokens(row) / row["train_time_s"] for row in speed])
    if race:
        crossings = [crossing(curve(row), ACCURACY) for row in race]
        figures |= {
            "seconds_of_seed": {s: time_to(row, ACCURACY).value for s, row in rows[RACE].items()},
            "censored": crossings.count(None),
            "dense": all(one.is_dense for one in crossings if one),
            "prompts": min(row["num_prompts"] for row in race),
        }
    return figures | (beside([*speed, *race]) if speed or race else {})


# -- on the terminal ---------------------------------------------------------------------------


def show(result: Mapping[str, Any]) -> None:
    """The arms, and the ratio in words."""
    for mode, arm in result["arms"].items():
        parts = [words(arm["point"])]
        if arm["race_seeds"]:
            never = f" ({arm['censored']} of {arm['race_seeds']} never)" if arm["censored"] else ""
            parts.insert(
                0, f"{arm['seconds']:.1f} s, {arm['cpu_s']:.1f} CPU s to {ACCURACY}{never}"
            )
        if arm["speed_seeds"]:
            rate = f"{text(arm['tokens_per_s'], ',.0f')} tokens/s"
            parts.insert(0, f"{rate}, {1000 * arm['cpu_s_per_token']:.2f} CPU ms a token")
        print(f"{mode:<11} {'; '.join(parts)}")
    if result["ratio"] is not None:
        print(ratio_line(result))


def ratio_line(result: Mapping[str, Any]) -> str:
    """The ratio in words, with what it rests on."""
    parts = [
        f"Streaming's completion tokens a second over TRL's: {ratio_text(result)}",
        "all tuned alike" if result["tuned"] else "not tuned alike",
    ]
    if result["cpu_ratio"] is not None:
        of = "TRL's processor seconds a token over those of our synchronous mode"
        parts.insert(1, f"{of}: {result['cpu_ratio']:.2f}")
    arms = result["arms"].values()
    if not all(arm.get("dense", True) for arm in arms):
        parts.append("evaluations lie more than a tenth of a crossing time apart")
    if disturbed := sum(arm.get("disturbed", 0) for arm in arms):
        parts.append(f"{disturbed} runs beside others that took more than a twentieth of a core")
    return "; ".join(parts) + "."
