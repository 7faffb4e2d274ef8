"""T-PPO against PPO (study 1): wall clock and generated tokens to the same held-out accuracy.

Four arms on the same cores, one run at a time, seed by seed in turn:

- synchronous  PPO: generate whole responses, train on all cores while the generator is idle, repeat
- windowed     T-PPO in lockstep: at most one window of each response between two updates
- streaming    T-PPO: generators never wait for the learner but for the staleness bound
- whole        streaming without training on partial responses

The algorithm's slots are the same in all of them (`recipes/long-tail.toml`), and so is the number
of tokens that the policy trains on. The clock is that of training: start-up and evaluations are
apart. The target is 0.95 of the median accuracy that PPO ends with; a run crosses at the first of
two successive evaluations at or above it. `ratio` is PPO's seconds over streaming's at the same
seed. No seed is left out: a run that never crossed took longer than it ran, and figures that
depend on it are given as bounds.

The ratio is one of these settings on this machine, and no more than that: PPO takes one optimizer
step an update here and was not tuned.

Settings: `main` has a tail (longest over mean response) of 8 or more. The others, `batch N` and
`tail N`, change one thing of it, are run with PPO and streaming only, and are not evaluated on the
way: they show `speed`, PPO's training seconds over streaming's for the same number of tokens.
"""

import statistics
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import censored
from benchmarks.rows import Rows
from benchmarks.study import (
    Arm,
    Row,
    Study,
    carry_out,
    generated_at,
    parser_of,
    rows_of,
    spread,
    text,
)

RECIPE = "recipes/long-tail.toml"
SHARE_OF_FINAL = 0.95
SUCCESSIVE = 2
WINDOWS = 3
SIDE_SEEDS = 3
"""Of the arms that are not part of the ratio."""
EVALUATE_EVERY = 384
"""Windows or responses trained between two evaluations; the first ones, in the value model's
warm-up, are of the starting policy."""
ARMS = ("synchronous", "windowed", "streaming", "whole")


@dataclass(frozen=True, slots=True)
class Setting:
    """One place on the curve: batch, and the law of the lengths."""

    name: str
    batch: int = 64
    min_terms: int = 2
    max_terms: int = 52
    tail_exponent: float = 1.3
    tokens: int = 110_000
    """Tokens that the policy trains on."""

    raced: bool = True
    """Whether accuracy is followed on the way."""

    def overrides(self) -> tuple[str, ...]:
        """What the setting changes of the recipe."""
        # Seven characters a term, the answer, the end; three windows, as in the paper (24k, 8k).
        window = -(-(7 * self.max_terms + 3) // WINDOWS)
        # As many trajectories in the value model's warm-up, whatever the batch.
        warm_up = () if self.raced else (f"algorithm.value.warmup_updates={512 // self.batch}",)
        return (
            *warm_up,
            f"schedule.window={window}",
            f"schedule.batch_windows={self.batch}",
            f"generator.max_num_seqs={self.batch + self.batch // 4}",
            f"schedule.max_in_play={2 * self.batch + 3 * self.batch // 4}",
            f"task.min_terms={self.min_terms}",
            f"task.max_terms={self.max_terms}",
            f"task.tail_exponent={self.tail_exponent}",
            f"task.max_response_length={window * WINDOWS}",
            f"stop.tokens={self.tokens}",
            "evaluation.before=false",
            f"evaluation.every_updates={EVALUATE_EVERY // self.batch if self.raced else 'null'}",
        )

    def arm(self, mode: str) -> Arm:
        """The arm `mode` in this setting."""
        schedule = {
            "synchronous": ("schedule.mode=synchronous",),
            "windowed": ("schedule.mode=windowed",),
            "streaming": ("schedule.mode=streaming",),
            "whole": (
                "schedule.mode=streaming",
                "schedule.unit=trajectory",
                "schedule.window=null",
            ),
        }
        seeds = None if mode in ("synchronous", "streaming") else SIDE_SEEDS
        return Arm(f"{self.name}/{mode}", RECIPE, (*self.overrides(), *schedule[mode]), seeds)


MAIN = Setting("main")
_SHORT = replace(MAIN, tokens=60_000, raced=False)
CURVE = (
    *(replace(_SHORT, name=f"batch {batch}", batch=batch) for batch in (32, 128, 256)),
    replace(_SHORT, name="tail 3", min_terms=4, max_terms=18, tail_exponent=2.5),
    replace(_SHORT, name="tail 5", min_terms=3, max_terms=32, tail_exponent=1.8),
    replace(_SHORT, name="tail 13", min_terms=2, max_terms=52, tail_exponent=2.0),
)
STUDY = Study(
    "tppo-vs-ppo",
    arms=(
        *(MAIN.arm(mode) for mode in ARMS),
        *(s.arm(mode) for s in CURVE for mode in ("synchronous", "streaming")),
    ),
    seeds=5,
    reduced_arms=tuple(MAIN.arm(mode).name for mode in ARMS),
    reduced_seeds=3,
    reference="main/synchronous",
)


def main(argv: list[str]) -> int:
    """Run what is missing, print a table, write the result."""
    parser = parser_of(STUDY, __doc__)
    parser.add_argument("--curve-seeds", type=int, default=3, help="seeds of the other settings")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=ARMS, help="these arms only")
    options = parser.parse_args(argv)
    plan = [
        (arm, seed)
        for arm, seed in STUDY.plan(reduced=options.reduced, seeds=options.seeds)
        if (arm.name.startswith("main/") or seed < options.curve_seeds)
        and arm.name.rsplit("/", 1)[1] in options.arms
    ]

    def report(rows: Rows) -> dict[str, Any]:
        result = summarise(rows.rows)
        show(result)
        return result

    return carry_out(STUDY, plan, options, jobs=1, report=report)


def summarise(rows: Mapping[str, Row]) -> dict[str, Any]:
    """The result: each setting with its arms, and the ratios of `main` at the top."""
    settings = {}
    for setting in (MAIN, *CURVE):
        by_mode = {mode: rows_of(setting.arm(mode), rows) for mode in ARMS}
        if by_mode["synchronous"] and by_mode["streaming"]:
            settings[setting.name] = compare(by_mode, raced=setting.raced) | {
                "batch": setting.batch,
                "raced": setting.raced,
            }
    top = settings.get("main", {})
    return {
        "name": STUDY.name,
        **{name: top.get(name) for name in ("ratio", "target")},
        "settings": settings,
    }


def compare(by_mode: Mapping[str, Mapping[int, Row]], *, raced: bool = True) -> dict[str, Any]:
    """All arms at PPO's target, each over all its seeds; PPO's seconds over an arm's at the same
    seed. What is not `raced` is not evaluated on the way and has no crossings."""
    reference = by_mode["synchronous"]
    target = SHARE_OF_FINAL * statistics.median(row["final"] for row in reference.values())
    to_target = {
        mode: {seed: figures_at(row, target) for seed, row in found.items()} if raced else {}
        for mode, found in by_mode.items()
        if found
    }
    arms: dict[str, Any] = {}
    for mode, crossings in to_target.items():
        ratios = {
            seed: censored.exactly(1.0)
            if mode == "synchronous"
            else censored.quotient(to_target["synchronous"][seed].seconds, ours.seconds)
            for seed, ours in crossings.items()
            if seed in reference
        }
        found = by_mode[mode].values()
        arms[mode] = {
            "seeds": len(found),
            "never_crossed": sum(not crossing.reached for crossing in crossings.values()),
            "seconds": censored.spread([crossing.seconds for crossing in crossings.values()]),
            "tokens": censored.spread([crossing.tokens for crossing in crossings.values()]),
            "ratio": censored.spread(list(ratios.values())),
            "ratio_of_seed": {seed: censored.pair(ratio) for seed, ratio in ratios.items()},
            "final": spread([row["final"] for row in found]),
            "tail": spread([tail(row) for row in found]),
            "idle_share": {
                part: statistics.median(row["idle_share"][part] for row in found)
                for part in ("generator", "learner")
            },
            "trained_tokens_per_s": spread([tokens_per_s(row) for row in found]),
            "speed": _spread_or_none(
                [
                    tokens_per_s(row) / tokens_per_s(reference[seed])
                    for seed, row in by_mode[mode].items()
                    if seed in reference
                ]
            ),
        }
    return {
        "target": target,
        "ratio": arms["streaming"]["ratio"],
        "speed": arms["streaming"]["speed"],
        "arms": arms,
    }


@dataclass(frozen=True, slots=True)
class Crossing:
    """Training seconds and generated tokens of a run when it came to the target; lower bounds where
    it never did."""

    reached: bool
    seconds: censored.Bounds
    tokens: censored.Bounds


def figures_at(row: Row, target: float) -> Crossing:
    """The first of two successive evaluations at or above the target."""
    points = row["evaluations"]
    for index in range(len(points) - SUCCESSIVE + 1):
        if all(point[2] >= target for point in points[index : index + SUCCESSIVE]):
            seconds, tokens = points[index][1], generated_at(row, points[index][0])
            return Crossing(True, censored.exactly(seconds), censored.exactly(tokens))
    tokens = generated_at(row, points[-1][0])
    return Crossing(False, censored.at_least(row["train_time_s"]), censored.at_least(tokens))


def tokens_per_s(row: Row) -> float:
    """Tokens that the policy trained on over all seconds of training."""
    return float(row["tokens"]["trained_policy"] / row["train_time_s"])


def tail(row: Row) -> float:
    """Longest response over the mean of those that finished in the last quarter of the run."""
    lengths = [x for x in row["series"]["rollout/finished_length"] if x is not None]
    return float(row["max_length"] / statistics.fmean(lengths[-max(1, len(lengths) // 4) :]))


def _spread_or_none(values: list[float]) -> dict[str, float] | None:
    return spread(values) if values else None


def show(result: Mapping[str, Any]) -> None:
    """The table on the terminal."""
    shown = Table(title=STUDY.name, title_justify="left")
    for column in (
        "setting", "arm", "seeds", "seconds to target", "tokens", "ratio", "final accuracy",
        "tail", "idle gen/learn", "trained tok/s", "speed",
    ):  # fmt: skip
        shown.add_column(column, no_wrap=True)
    for name, setting in result["settings"].items():
        for mode, arm in setting["arms"].items():
            shown.add_row(
                f"{name} ({setting['target']:.3f})",
                mode,
                str(arm["seeds"]),
                censored.spread_text(arm["seconds"], ".1f"),
                censored.spread_text(arm["tokens"], ",.0f"),
                censored.spread_text(arm["ratio"], ".2f"),
                text(arm["final"], ".3f"),
                text(arm["tail"], ".1f"),
                " / ".join(f"{arm['idle_share'][part]:.2f}" for part in ("generator", "learner")),
                text(arm["trained_tokens_per_s"], ",.0f"),
                text(arm["speed"], ".2f"),
            )
    Console(width=None if sys.stdout.isatty() else 200).print(shown)
    if result["ratio"]:
        print(ratio_line(result))


def ratio_line(result: Mapping[str, Any]) -> str:
    """The ratio of `main` in words."""
    ratios = result["settings"]["main"]["arms"]["streaming"]["ratio_of_seed"].values()
    each = ", ".join(censored.bounds_text(ratio, ".2f") for ratio in ratios)
    return (
        "In `main`, PPO's seconds to the target over those of streaming T-PPO, seed by seed: "
        f"{each}; median {censored.bounds_text(result['ratio']['median'], '.2f')}. Of these "
        "settings, with one optimizer step an update and PPO not tuned."
    )
