"""TRL's GRPO trainer against ours: speed, processor time, time to accuracy.

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

Tuning, crossings and the treatment of disturbed runs: "What a comparison is" in docs/evidence.md.
Runs in `--rows` are not repeated. In full these are 24 runs of tuning and 30 that are shown; with
`--reduced` 12 (two seeds, tuned if the rows say how).
"""

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.kit import study_plots
from benchmarks.kit.arms import Arm, Row, rows_of
from benchmarks.kit.command_line import add_rows_option, command_line
from benchmarks.kit.machine_state import on_cores
from benchmarks.kit.rows import RESULTS, read_rows, result_line
from benchmarks.kit.study_file import Point
from benchmarks.kit.study_plan import Plan, Study, in_drawn_order
from benchmarks.kit.study_runs import Runner, listing
from benchmarks.kit.study_table import Table, beside, spread, text
from benchmarks.kit.time_to_target import (
    TimeToTarget,
    brief_text,
    compare_times,
    crossing,
    curve,
    ratio_text,
    restricted_mean,
    spent_at,
    time_to,
)
from benchmarks.kit.tuning import Score, Tuning, point_text
from benchmarks.versus_trl.trl_arms import TRL, TrlArm, run, trl_python

CORES = 2
ROWS = RESULTS / "trl.jsonl"
STREAMING, SYNCHRONOUS = "streaming", "synchronous"
MODES = (TRL, STREAMING, SYNCHRONOUS)
SPEED, RACE = PARTS = ("speed", "race")
"""Settings of the study; arms are tuned for speed."""
COST_PARTS = {"s_per_token": SPEED, "cpu_s_per_token": SPEED, "seconds": RACE, "cpu_s": RACE}
"""The part in which each cost is compared. The last two are up to the accuracy."""


@dataclass(frozen=True)
class TrlComparison:
    """Both parts of the study with the existing rows.

    `updates` of a run of its speed, where they are others than the study's."""

    rows: Mapping[str, Row]
    updates: int | None = None

    @cached_property
    def studies(self) -> dict[str, Study]:
        found = {part: Study.load("trl", part) for part in PARTS}
        if self.updates is not None:
            file = found[SPEED].file
            variables = {**file.variables, "updates": self.updates}
            changed = file.model_copy(update={"variables": variables})
            found[SPEED] = replace(found[SPEED], file=changed)
        return found

    @property
    def accuracy(self) -> float:
        """The accuracy that arms race to."""
        return float(self.studies[RACE].file.variables["accuracy"])

    @property
    def seeds(self) -> Sequence[int]:
        """The seeds that are shown."""
        return self.studies[SPEED].file.seeds

    def arm(self, part: str, mode: str, point: Point) -> Arm:
        """Return the arm of a part at a point; TRL's other settings are its point."""
        arm = self.studies[part].arm(mode, point)
        return TrlArm(arm.name, arm.recipe, arm.overrides, point) if mode == TRL else arm

    @property
    def tuning(self) -> Tuning:
        """The tuning of the arms by the existing rows: for speed."""
        own = self.studies[SPEED].tuning()
        return replace(own, arm=partial(self.arm, SPEED), score=score, rows=self.rows)

    def arms(self) -> dict[tuple[str, str], Arm]:
        """Return both parts of all arms at their best points, by part and mode."""
        best = {mode: self.tuning.best(mode) for mode in MODES}
        return {(part, mode): self.arm(part, mode, best[mode]) for part in PARTS for mode in MODES}

    def plan(self, seeds: Sequence[int]) -> Plan:
        return in_drawn_order(list(self.arms().values()), seeds)

    def shown(self, seeds: Sequence[int]) -> dict[tuple[str, str], dict[int, Row]]:
        """Return the rows of `arms`, by part and mode, then by seed."""
        return {key: rows_of(arm, self.rows, seeds) for key, arm in self.arms().items()}

    def cost(self, name: str, row: Row) -> TimeToTarget:
        """Return a run's cost, one of `COST_PARTS`."""
        if name == "seconds":
            return time_to(row, self.accuracy)
        if name == "cpu_s":
            return spent_at(row, self.accuracy, row["evaluation_cpu_s"])
        spent = row["train_time_s"] if name == "s_per_token" else row["evaluation_cpu_s"][-1]
        return TimeToTarget(spent / _tokens(row), True)


def main(argv: list[str]) -> int:
    """Run what is missing, print the figures; return 1 when runs failed."""
    options = parse(argv)
    rows = options.rows
    found = TrlComparison(rows.rows, options.updates)
    file = found.studies[SPEED].file
    assert file.reduced is not None
    seeds = range(options.seeds or (file.reduced.seeds if options.reduced else len(found.seeds)))
    if options.list:
        print("\n".join(listing(found.tuning, MODES, found.plan(seeds), rows.rows)))
        return 0
    trl_python()  # built before anything is measured
    runner = Runner("trl", rows, measure=run)
    # What is started from here runs on the same cores, whatever its arm.
    with on_cores(sorted(os.sched_getaffinity(0))[:CORES]):
        if not options.reduced:
            runner.tune(found.tuning, MODES)
        failed = runner.run_all(found.plan(seeds))
    result = summarise(found, seeds)
    arms_table(result).show("trl")
    if result["ratio"] is not None:
        print(ratio_line(result))
    if options.json:
        print(result_line(result))
    return 1 if failed else 0


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = command_line("trl", __doc__)
    parser.add_argument("--reduced", action="store_true", help="fewer seeds, no tuning")
    parser.add_argument("--seeds", type=int, help="number of seeds, instead of the study's")
    parser.add_argument("--updates", type=int, help="of a run of its speed, instead of the study's")
    parser.add_argument("--list", action="store_true", help="what would be run, and stop")
    add_rows_option(parser, ROWS, resumes=True)
    return parser.parse_args(argv)


def score(rows: Sequence[Row]) -> Score:
    """Score a point: runs that failed, then seconds per token."""
    times = [row["train_time_s"] / _tokens(row) for row in rows if "failed" not in row]
    return len(rows) - len(times), fmean(times) if times else 0.0


def _tokens(row: Row) -> int:
    return int(row["tokens"]["trained_policy"])


# -- the result --------------------------------------------------------------------------------


def summarise(found: TrlComparison, seeds: Sequence[int]) -> dict[str, Any]:
    """Return the result: the ratio's figures (None until both arms ran), then arms."""
    rows, tuning = found.shown(seeds), found.tuning
    arms = {mode: arm_figures(found, {part: rows[part, mode] for part in PARTS}) for mode in MODES}
    for mode, arm in arms.items():
        arm["point"] = dict(tuning.best(mode))
        # TRL's cost by the arm's own, over the seeds that both have.
        arm["against_trl"] = {
            name: compare_times(
                {
                    seed: (found.cost(name, rows[part, TRL][seed]), found.cost(name, row))
                    for seed, row in sorted(rows[part, mode].items())
                    if seed in rows[part, TRL]
                }
            )
            for name, part in COST_PARTS.items()
        }
    ratios = {mode: arm["against_trl"] for mode, arm in arms.items()}
    speed, cpu = ratios[STREAMING]["s_per_token"], ratios[SYNCHRONOUS]["cpu_s_per_token"]
    return {
        "name": "trl",
        **{name: speed.get(name) for name in ("ratio", "ratio_min", "ratio_max", "interval")},
        "cpu_ratio": cpu.get("ratio"),
        "tuned": tuning.is_fair(MODES, seeds),
        "seeds": sorted({seed for by_seed in rows.values() for seed in by_seed}),
        "updates": found.studies[SPEED].file.variables["updates"],
        "accuracy": found.accuracy,
        "arms": arms,
    }


def arm_figures(found: TrlComparison, rows: Mapping[str, Mapping[int, Row]]) -> dict[str, Any]:
    """Return an arm's figures; `censored`: runs that never had the accuracy."""
    speed, race = list(rows[SPEED].values()), list(rows[RACE].values())
    figures: dict[str, Any] = {"speed_seeds": len(speed), "race_seeds": len(race)}
    for name, part in COST_PARTS.items():
        times = [found.cost(name, row) for row in rows[part].values()]
        figures[name] = restricted_mean(times) if times else None
    if speed:
        figures["tokens_per_s"] = spread([_tokens(row) / row["train_time_s"] for row in speed])
    if race:
        crossings = [crossing(curve(row), found.accuracy) for row in race]
        figures |= {
            "seconds_of_seed": {s: found.cost("seconds", r).value for s, r in rows[RACE].items()},
            "censored": crossings.count(None),
            "dense": all(one.is_dense for one in crossings if one),
            "prompts": min(row["num_prompts"] for row in race),
        }
    return figures | (beside([*speed, *race]) if speed or race else {})


# -- on the terminal ------------------------------------------------------------------------------


def arms_table(result: Mapping[str, Any]) -> Table:
    """Return a table with a line for each arm."""

    def seeds(arm: Mapping[str, Any]) -> str:
        crossed = arm["race_seeds"] - arm.get("censored", 0)
        some = f" ({crossed} crossed)" if crossed < arm["race_seeds"] else ""
        return f"{arm['speed_seeds']}, {arm['race_seeds']}{some}"

    def cost(name: str, form: str, arm: Mapping[str, Any], times: int = 1) -> str:
        return "-" if arm[name] is None else format(times * arm[name], form)

    return Table.of(
        [{"arm": mode, **arm} for mode, arm in result["arms"].items()],
        {
            "arm": lambda arm: arm["arm"],
            "seeds of speed, of the race": seeds,
            "tokens a second": lambda arm: text(arm.get("tokens_per_s"), ",.0f"),
            "CPU ms a token": lambda arm: cost("cpu_s_per_token", ".2f", arm, 1000),
            f"seconds to {result['accuracy']}": partial(cost, "seconds", ".1f"),
            f"CPU seconds to {result['accuracy']}": partial(cost, "cpu_s", ".1f"),
            "TRL's seconds over its own": lambda arm: brief_text(arm["against_trl"]["seconds"]),
            "TRL's CPU seconds over its own": lambda arm: brief_text(arm["against_trl"]["cpu_s"]),
            "best setting": lambda arm: point_text(arm["point"]),
        },
    )


def ratio_line(result: Mapping[str, Any]) -> str:
    """Describe the ratio in words, with its basis."""
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


def plots(path: Path = ROWS) -> dict[str, tuple[str, Callable[[Path], object]]]:
    """Return the race's caption and drawing function, if it has rows, by file name."""
    found = TrlComparison(read_rows(path))
    rows = found.shown(found.seeds)
    arms = {mode: list(by_seed.values()) for mode in MODES if (by_seed := rows[RACE, mode])}
    (plot,) = found.studies[RACE].file.plots
    if len(arms) < len(MODES):
        return {}
    return {plot.file: (plot.caption, partial(study_plots.draw, plot, arms))}
