"""What it costs a stream that its data is old, and what helps.

In: the race's setting and its best points. Out: arms of streaming T-PPO beside its best point,
their runs, and the table of them on docs/evidence.md. Two have earlier windows in another way
(`learner.context`). The others take `MANY_STEPS` steps an update at twice the policy rate that
tuning took, as they are and with what is said to help against the age of data. Runs are evaluated
as in tuning (half as often, on half the prompts, and they end at its target), on seeds that neither
tuning nor the race has.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.crossings import compared, crossing, curve, largest_fall, restricted_mean, time_to
from benchmarks.race import Plan, Race, in_drawn_order
from benchmarks.race_settings import arm_of
from benchmarks.study_plan import Arm, Row, rows_of
from headrace.config.load import load_recipe
from headrace.install import ROOT

MODE = "streaming"
MANY_STEPS = 4
SEEDS = (31, 32, 33)
TIME_SHARE = 0.5
"""Of the training time that a run of the race has at most; who needs longer is censored."""
BEST, LARGER = "as tuned", "larger steps"
CONTEXTS = ("full", "frozen", "carried")
_RATIO = ("algorithm.ratio=null", "algorithm.ratio.kind=decoupled")
REMEDIES: Mapping[str, tuple[str, ...]] = {
    "one of the value model": ("learner.value.minibatches=1",),
    "one of the policy": ("learner.policy.minibatches=1",),
    "decoupled ratio": _RATIO,
    "decoupled ratio, masked": (*_RATIO, "algorithm.ratio.over_cap=mask"),
}
"""Whose steps they are; and weights for the age of tokens, truncated or masked (for one token, TIS
and MIS are these by another name)."""


def arms(race: Race) -> list[Arm]:
    """The best point, the same with the contexts that its recipe does not have, larger steps, and
    these with each remedy."""
    own = load_recipe(ROOT / race.setting.recipe).learner.context
    best = race.tuning.best(MODE)
    larger = {**best, "steps": MANY_STEPS, "policy_lr": 2 * best["policy_lr"]}
    limit = f"stop.train_time_s={TIME_SHARE * race.setting.train_time_s:g}"
    found = []
    for label, point, changes in (
        (BEST, best, ()),
        *(
            (f"context {name}", best, (f"learner.context={name}",))
            for name in CONTEXTS
            if name != own
        ),
        (LARGER, larger, ()),
        *((f"{LARGER}, {label}", larger, changes) for label, changes in REMEDIES.items()),
    ):
        arm = arm_of(race.setting, MODE, point, tuning=True)
        overrides = (*arm.overrides, limit, *changes)
        found.append(replace(arm, name=f"{arm.name}, {label}", overrides=overrides))
    return found


def plan(race: Race) -> Plan:
    """All arms on `SEEDS`, in drawn order."""
    return in_drawn_order(arms(race), SEEDS)


def figures(race: Race, rows: Mapping[str, Row]) -> dict[str, dict[str, Any]]:
    """By arm: seconds of training to the tuning target, these over those of the best point, and how
    far accuracy falls on the way. Arms without a run are left out."""
    target, found = race.setting.tuning_target, {}
    times = {}
    for arm in arms(race):
        by_seed = rows_of(arm, rows, SEEDS)
        if not by_seed:
            continue
        label = arm.name.partition(", ")[2]
        times[label] = {seed: time_to(row, target) for seed, row in by_seed.items()}
        common = times[label].keys() & times.get(BEST, {}).keys()
        pairs = {seed: (times[label][seed], times[BEST][seed]) for seed in sorted(common)}
        found[label] = {
            "seeds": len(by_seed),
            "censored": sum(not time.reached for time in times[label].values()),
            "seconds": restricted_mean(list(times[label].values())),
            "seconds_of_seed": {seed: time.value for seed, time in times[label].items()},
            "reached": {seed: time.reached for seed, time in times[label].items()},
            "over_best": compared(pairs),
            "fall": [fall(row, target) for row in by_seed.values()],
            "disturbed": sum(row["disturbed"] for row in by_seed.values()),
        }
    return found


def fall(row: Row, target: float) -> float:
    """How far smoothed accuracy falls from its best so far, at most, before the run comes to the
    target."""
    points = curve(row)
    crossed = crossing(points, target)
    return largest_fall(points, until=crossed.at if crossed else math.inf)


def table(race: Race, rows: Mapping[str, Row]) -> str:
    """Markdown: one line an arm."""
    found = figures(race, rows)
    if not found:
        command = f"headrace bench tppo-vs-ppo --setting {race.setting.name} --old-data"
        return f"Not measured yet: `{command}`.\n"
    seconds = f"seconds to {race.setting.tuning_target:.2f}"
    lines = [
        f"| streaming T-PPO | seeds | {seconds} | seed by seed | over those as tuned "
        "| largest fall of accuracy on the way |",
        "|---|---|---|---|---|---|",
    ]
    lines += [f"| {' | '.join(cells(label, one))} |" for label, one in found.items()]
    if disturbed := sum(one["disturbed"] for one in found.values()):
        lines += ["", f"Others disturbed {disturbed} of these runs."]
    return "\n".join(lines) + "\n"


def cells(label: str, one: Mapping[str, Any]) -> Sequence[str]:
    """One arm's cells; a run that never came to the target is over its seconds."""
    crossed = one["seeds"] - one["censored"]
    each = one["seconds_of_seed"].items()
    over = one["over_best"]
    return (
        label,
        f"{one['seeds']} ({crossed} crossed)" if one["censored"] else str(one["seeds"]),
        f"{one['seconds']:.0f}",
        ", ".join(f"{'' if one['reached'][seed] else 'over '}{value:.0f}" for seed, value in each),
        f"{over['ratio']:.2f} ({over['ratio_min']:.2f} to {over['ratio_max']:.2f})"
        if over
        else "-",
        f"{max(one['fall']):.2f}",
    )
