"""The figures of the race: what its rows say of each arm, and of one arm against another.

In: rows by arm and seed, and the race they are of. Out: `summarise`, the result as
`headrace bench tppo-vs-ppo --json` prints it; `factor_figures`, what drives it; `in_words`, what
the result says. Nothing is run.
"""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import ceiling
from benchmarks.arm_run import generated_at, warm_up_updates
from benchmarks.crossings import (
    compared,
    crossing,
    curve,
    largest_fall,
    median,
    ratio_text,
    resolvable,
    restricted_mean,
    spent_at,
    time_to,
)
from benchmarks.race import Race
from benchmarks.race_settings import PAIR
from benchmarks.rows import RESULTS
from benchmarks.study_plan import Row, rows_of
from benchmarks.study_table import beside, spread

SHARE_OF_FINAL = 0.95
OTHER_SHARES = (0.85, 0.90, 1.00)
"""Of PPO's final accuracy: would another target have told something else?"""
PARTS: Mapping[str, tuple[str, str, str]] = {
    "windowed_over_synchronous": (
        "synchronous",
        "windowed",
        "PPO's seconds over those of T-PPO in turns",
    ),
    "streaming_over_windowed": (
        "windowed",
        "streaming",
        "The seconds of T-PPO in turns over those of its stream",
    ),
    "streaming_over_whole": (
        "whole",
        "streaming",
        "The seconds of a stream of whole answers over those of a stream of windows",
    ),
}
"""What the ratio is made of: two arms that differ in one thing, and the quotient in words."""
LEAST_PROMPTS = 1024
Arms = Mapping[str, Mapping[int, Row]]
"""Rows by arm and seed."""


def race_path(setting: str) -> Path:
    """Where the rows of the race are checked in."""
    return RESULTS / f"tppo_vs_ppo_{setting}.jsonl"


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
        result |= _at_all_targets(found, *PAIR, target)
    for name, (over, under, _) in PARTS.items():
        if {over, under} <= set(found):
            result[name] = _at_all_targets(found, over, under, target)
    if found.keys() & {"streaming"}:
        result["ceiling"] = ceiling_figures(race, found)
    return result


def _at_all_targets(found: Arms, over: str, under: str, target: float) -> dict[str, Any]:
    """`compare` at the race's target, and in `other_targets` at the others."""
    others = [share / SHARE_OF_FINAL * target for share in OTHER_SHARES]
    return {
        **compare(found, over, under, target),
        "other_targets": [{"target": t, **compare(found, over, under, t)} for t in others],
    }


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
        "first_update_s": spread([_first_update(row) for row in each]),
        "fall": spread([largest_fall(curve(row)) for row in each]),
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


def _first_update(row: Row) -> float:
    """Training seconds until weights that an update of the policy made were evaluated: what the
    value model's warm-up takes, and that update."""
    return float(next(at for version, at, *_ in row["evaluations"] if version > 0))


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
    trained tokens; `share`: how much of that the stream reached, the median of so many `runs`;
    None until it is measured."""
    rows = rows_of(race.arm("streaming"), race.known("ceiling"))
    if not rows:
        return None
    measured = list(rows.values())
    ppo = [row["train_time_s"] / row["tokens"]["trained_policy"] for row in found[PAIR[0]].values()]
    best = [max(row["generator_s"], row["learner_s"]) / row["trained"] for row in measured]
    return {
        "runs": len(measured),
        "ceiling": statistics.median(ppo) / statistics.median(best),
        "share": statistics.median(ceiling.share(row) for row in measured),
        **{
            side: statistics.median(row[f"{side}_s"] / row["stream_s"] for row in measured)
            for side in ("generator", "learner")
        },
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


def in_words(result: Mapping[str, Any], seeds: Sequence[int]) -> list[str]:
    """What the result says, a paragraph each: the ratio, that runs of these seeds are missing or
    else the ratio to other targets, what it is made of, how near the ceiling is."""
    lines = [] if result["ratio"] is None else [ratio_line(result)]
    lines.append(missing_line(result, seeds) or other_targets_line(result))
    parts = [part_line(result, name) for name in PARTS]
    return [line for line in (*lines, *parts, ceiling_line(result)) if line]


def missing_line(result: Mapping[str, Any], seeds: Sequence[int]) -> str:
    """What an unfinished race has not run yet of the two arms of the ratio; empty where it has."""
    found = {mode: result.get("arms", {}).get(mode, {}).get("seeds", 0) for mode in PAIR}
    if min(found.values()) >= len(seeds):
        return ""
    parts = " and ".join(
        f"{count} of {len(seeds)} seeds of {mode}" for mode, count in found.items()
    )
    return f"**The race is under way:** {parts} have been run. Nothing is claimed yet."


def ratio_line(result: Mapping[str, Any]) -> str:
    """The ratio in words, with what it rests on."""
    never = result["censored"]
    parts = [
        f"Setting `{result['setting']}`: PPO's seconds to {result['target']:.3f} over those of "
        f"streaming T-PPO: {ratio_text(result)}",
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


def other_targets_line(result: Mapping[str, Any]) -> str:
    """The ratio in words for other targets of the same rows."""
    parts = [
        f"to {one['target']:.3f} it is {one['ratio']:.2f} (seeds {one['ratio_min']:.2f} to "
        f"{one['ratio_max']:.2f}; {one['censored']} of the runs never came there)"
        for one in result["other_targets"]
    ]
    return f"Of the same rows, {', '.join(parts)}."


def part_line(result: Mapping[str, Any], name: str) -> str:
    """One of `PARTS` in words; empty until both of its arms have all seeds of the race."""
    *_, text = PARTS[name]
    found = result.get(name)
    if not found or len(found["ratio_of_seed"]) < result["arms"][PAIR[0]]["seeds"]:
        return ""
    return (
        f"{text}: {ratio_text(found)}; {found['censored']} of the runs never came there. "
        f"{other_targets_line(found)}"
    )


def ceiling_line(result: Mapping[str, Any]) -> str:
    """How near the stream is to its slower half, in words; empty until that is measured."""
    if not (found := result.get("ceiling")):
        return ""
    return (
        f"For the stream's tokens its generator alone takes {found['generator']:.2f} of the "
        f"stream's seconds, its learner alone {found['learner']:.2f}: the stream reached "
        f"{found['share']:.2f} of its ceiling (`--ceiling`, {found['runs']} of its seeds)."
    )
