"""The first race of T-PPO against PPO, in which PPO was not tuned: its settings and its table.

In: the rows of November 2026, which `docs/evidence.md` keeps. Out: the table that was shown, and
what is wrong with it is said there. Nothing here is run any more; `benchmarks.tppo_vs_ppo` is the
race.

The clock was that of training, start-up and evaluations apart. The target was 0.95 of the median
accuracy that PPO ended with; a run crossed at the first of two successive evaluations at or above
it. A run that never crossed took longer than it ran, and figures that depend on it are bounds.

Settings: `main` has a tail (longest over mean response) of 8 or more. The others, `batch N` and
`tail N`, change one thing of it, with PPO and streaming only, not evaluated on the way: they show
`speed`, PPO's training seconds over streaming's for the same number of tokens.
"""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from benchmarks import censored
from benchmarks.arm_run import generated_at
from benchmarks.study_plan import Arm, Row, Study, rows_of
from benchmarks.study_table import spread

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


def ratio_line(result: Mapping[str, Any]) -> str:
    """The ratio of `main` in words."""
    ratios = result["settings"]["main"]["arms"]["streaming"]["ratio_of_seed"].values()
    each = ", ".join(censored.bounds_text(ratio, ".2f") for ratio in ratios)
    return (
        "In `main`, PPO's seconds to the target over those of streaming T-PPO, seed by seed: "
        f"{each}; median {censored.bounds_text(result['ratio']['median'], '.2f')}. Of these "
        "settings, with one optimizer step an update and PPO not tuned."
    )
