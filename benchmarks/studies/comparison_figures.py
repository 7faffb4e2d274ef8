"""Figures of a race: of each arm, and of one arm against another.

In: a study with a race, and rows by arm and seed. Out: `summarise`, the result as `--json` prints
it; `part_figures` of the study's parts; and the tables of them. Nothing is run.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from benchmarks.kit.arm_run import metric_of, tokens_at
from benchmarks.kit.arms import Row, rows_of
from benchmarks.kit.rows import ResultFile
from benchmarks.kit.study_file import Race
from benchmarks.kit.study_plan import Study, score
from benchmarks.kit.study_table import Table, beside, spread, text
from benchmarks.kit.time_to_target import (
    TimeToTarget,
    brief_text,
    compare_times,
    crossing,
    curve,
    largest_fall,
    ratio_text,
    restricted_mean,
    spent_at,
    time_to,
)
from benchmarks.kit.tuning import point_text

LEAST_PROMPTS = 1024
COSTS = {
    "generated": ("ledger/generated",),
    "trained": ("ledger/trained_policy", "ledger/trained_value"),
}
"""Costs that arms are compared by beside seconds: tokens, as sums of the ledger's."""
Arms = Mapping[str, Mapping[int, Row]]
"""Rows by arm and seed."""


def race_of(study: Study) -> Race:
    assert study.file.race is not None
    return study.file.race


def summarise(
    study: Study, rows: Mapping[str, Row], modes: Sequence[str], seeds: Sequence[int]
) -> dict[str, Any]:
    """Return the result: the ratio's figures (None until both arms ran), then arms."""
    race, first, tuning = race_of(study), study.file.reference, study.tuning()
    found = {mode: rows_of(study.arm(mode), rows, seeds) for mode in modes}
    found = {mode: by_seed for mode, by_seed in found.items() if by_seed}
    shown = sorted({seed for by_seed in found.values() for seed in by_seed})
    result: dict[str, Any] = {
        "name": study.name,
        "setting": study.setting,
        **{name: None for name in ("ratio", "ratio_min", "ratio_max", "interval", "censored")},
        "tuned": tuning.is_fair(list(found), shown),
        "seeds": shown,
        "tuning_target": study.target,
    }
    if first not in found:
        return result
    target = target_of(race, found[first])
    result |= {
        "target": target,
        "arms": {
            mode: {"arm": mode, "point": dict(tuning.best(mode)), **arm_figures(by_seed, target)}
            for mode, by_seed in found.items()
        },
    }
    for mode in found:
        result["arms"][mode]["against_ppo"] = compare(found, first, mode, target)
        result["arms"][mode]["points"] = len(list(tuning.tried([mode])))
    if race.ratio in found:
        result |= _at_all_targets(race, found, first, race.ratio, target)
    for name, (over, under, _) in race.quotients.items():
        if {over, under} <= set(found):
            result[name] = _at_all_targets(race, found, over, under, target)
    return result


def target_of(race: Race, reference: Mapping[int, Row]) -> float:
    """Return the target: a share of the median final accuracy of the reference's runs."""
    return race.share * statistics.median(row["final"] for row in reference.values())


def _at_all_targets(
    race: Race, found: Arms, over: str, under: str, target: float
) -> dict[str, Any]:
    """`compare` at the race's target, and at the others in `other_targets`."""
    others = [share / race.share * target for share in race.other_shares]
    main, *rest = ({"target": t, **compare(found, over, under, t)} for t in (target, *others))
    return main | {"other_targets": rest}


def by_target(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the figures of two arms at each target, the lowest first."""
    return sorted([found, *found["other_targets"]], key=lambda one: one["target"])


def compare(found: Arms, over: str, under: str, target: float) -> dict[str, Any]:
    """Compare seconds of the arm `over` with those of `under`, at their common seeds.

    And by `COSTS`, where all rows have them."""
    pairs = {s: (found[over][s], found[under][s]) for s in found[over] if s in found[under]}
    rows = [row for pair in pairs.values() for row in pair]

    def compared(cost: Callable[[Row], TimeToTarget]) -> dict[str, Any]:
        return compare_times({s: (cost(a), cost(b)) for s, (a, b) in sorted(pairs.items())})

    return compared(lambda row: time_to(row, target)) | {
        name: compared(partial(tokens_to, target=target, ledger=ledger))
        for name, ledger in COSTS.items()
        if rows and all(one in row["series"] for one in ledger for row in rows)
    }


def tokens_to(row: Row, target: float, ledger: Sequence[str]) -> TimeToTarget:
    """Return the tokens of these sums of the ledger up to the target."""
    spent = [sum(tokens_at(row, v, name) for name in ledger) for v, *_ in row["evaluations"]]
    return spent_at(row, target, spent)


def arm_figures(rows: Mapping[int, Row], target: float) -> dict[str, Any]:
    """Return figures of one arm over its seeds."""
    each = list(rows.values())
    times = {seed: time_to(row, target) for seed, row in rows.items()}
    crossings = [crossing(curve(row), target) for row in each]
    tokens = [tokens_to(row, target, COSTS["generated"]) for row in each]
    cpu = [spent_at(row, target, row["evaluation_cpu_s"]) for row in each]
    return {
        "seeds": len(each),
        "censored": sum(not time.reached for time in times.values()),
        "seconds": restricted_mean(list(times.values())),
        "seconds_of_seed": {seed: time.value for seed, time in times.items()},
        "tokens": restricted_mean(tokens),
        "cpu_s": restricted_mean(cpu),
        "dense": all(one.is_dense for one in crossings if one),
        "prompts": min(row["num_prompts"] for row in each),
        "final": spread([row["final"] for row in each]),
        "fall": spread([fall(row, target) for row in each]),
        "explained": [statistics.median(q) for q in zip(*map(_explained, each), strict=False)],
        "context_share": statistics.median(
            statistics.fmean([share for _, share in metric_of(row, "perf/context_share")] or [0.0])
            for row in each
        ),
        **beside(each),
    }


def _explained(row: Row) -> list[float]:
    """Return the median explained variance in each quarter of the policy's updates."""
    values = [value for _, value in metric_of(row, "critic/vf_explained_var")]
    ends = [len(values) * quarter // 4 for quarter in range(5)]
    return [statistics.median(values[begin:end]) for begin, end in pairwise(ends) if begin < end]


def part_figures(
    study: Study, name: str, rows: Mapping[str, Row], target: float
) -> dict[str, dict[str, Any]]:
    """Return figures of a part by arm; arms without a run are left out.

    Seconds of training to the target, these over those of the arm that it is compared with, the
    fall of accuracy on the way."""
    part, arms, found = study.file.parts[name], study.part(name), {}
    by_label = {label: rows_of(arm, rows, part.seeds) for label, (_, arm) in arms.items()}
    for label, own in by_label.items():
        if not own:
            continue
        variant, _ = arms[label]
        other = by_label.get(variant.against or part.against or "", {})
        aim = target_of(race_of(study), other) if variant.own_target and other else target
        times = {seed: time_to(row, aim) for seed, row in own.items()}
        common = sorted(own.keys() & other.keys())
        pairs = {seed: (times[seed], time_to(other[seed], aim)) for seed in common}
        found[label] = {
            "target": aim,
            "seeds": len(own),
            "censored": sum(not time.reached for time in times.values()),
            "seconds": restricted_mean(list(times.values())),
            "seconds_of_seed": {seed: time.value for seed, time in times.items()},
            "reached": {seed: time.reached for seed, time in times.items()},
            "over": compare_times(pairs),
            "fall": [fall(row, aim) for row in own.values()],
            "final": spread([row["final"] for row in own.values()]),
            "speed": spread(
                [row["tokens"]["trained_policy"] / row["train_time_s"] for row in own.values()]
            ),
            "disturbed": sum(row["disturbed"] for row in own.values()),
        }
    return found


def fall(row: Row, target: float) -> float:
    """Return the largest fall of smoothed accuracy from its best before the target."""
    return largest_fall(curve(row), until=time_to(row, target).value)


# -- tables ----------------------------------------------------------------------------------------


def race_table(result: Mapping[str, Any]) -> Table:
    """Return a table of each arm's cost to the target."""
    return Table.of(
        result.get("arms", {}).values(),
        {
            "arm": lambda arm: arm["arm"],
            "seeds": _seeds_text,
            "seconds to target": lambda arm: f"{arm['seconds']:.1f}",
            "CPU seconds": lambda arm: f"{arm['cpu_s']:.1f}",
            "tokens": lambda arm: f"{arm['tokens']:,.0f}",
            "PPO's seconds over its own": lambda arm: brief_text(arm["against_ppo"]),
            "context share": lambda arm: f"{arm['context_share']:.2f}",
        },
    )


def course_table(result: Mapping[str, Any]) -> Table:
    """Return a table of each arm's accuracy on the way and at the end, and of its tuning."""
    return Table.of(
        result.get("arms", {}).values(),
        {
            "arm": lambda arm: arm["arm"],
            "final accuracy": lambda arm: text(arm["final"], ".3f"),
            "largest fall on the way": lambda arm: text(arm["fall"], ".2f"),
            "explained, by quarter": lambda arm: " ".join(f"{x:.2f}" for x in arm["explained"]),
            "tuning points": lambda arm: str(arm["points"]),
            "best setting": lambda arm: point_text(arm["point"]),
        },
    )


def ratio_table(study: Study, result: Mapping[str, Any]) -> Table:
    """Return a table of the race's ratios at every target: by means, and by log of each cost."""
    race = race_of(study)
    pairs = {(study.file.reference, race.ratio): result}
    pairs |= {pair[:2]: result[name] for name, pair in race.quotients.items() if name in result}
    lines = [
        {"pair": " over ".join(pair), **one}
        for pair, found in pairs.items()
        for one in by_target(found)
    ]

    return Table.of(
        lines,
        {
            "ratio of": lambda line: line["pair"],
            "to": lambda line: f"{line['target']:.3f}",
            "censored": lambda line: " + ".join(map(str, line["censored_sides"])),
            "seconds": brief_text,
            "by log": lambda line: brief_text(line, "log_"),
            "tokens generated": lambda line: brief_text(line.get("generated", {}), "log_"),
            "tokens trained": lambda line: brief_text(line.get("trained", {}), "log_"),
        },
    )


def _seeds_text(arm: Mapping[str, Any]) -> str:
    crossed = arm["seeds"] - arm["censored"]
    return f"{arm['seeds']} ({crossed} crossed)" if arm["censored"] else str(arm["seeds"])


def part_table(study: Study, name: str, figures: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return a table of a part's arms; `over`: a run never reached the target."""
    part = study.file.parts[name]

    def each(arm: Mapping[str, Any]) -> str:
        times = arm["seconds_of_seed"].items()
        return ", ".join(f"{'' if arm['reached'][s] else 'over '}{v:.0f}" for s, v in times)

    def over_text(arm: Mapping[str, Any]) -> str:
        over = arm["over"]
        bounds = over and f"({over['ratio_min']:.2f} to {over['ratio_max']:.2f})"
        return f"{over['ratio']:.2f} {bounds}" if over else "-"

    others = (part.against or "of another arm").partition(", ")[2] or "of what it is compared with"
    targets = {f"{one['target']:.2f}" for one in figures.values()}
    target = targets.pop() if len(targets) == 1 else "the target"
    columns: dict[str, Callable[[Any], str]] = {
        part.title or "arm": lambda arm: arm["arm"],
        "seeds": _seeds_text,
        f"seconds to {target}": lambda arm: f"{arm['seconds']:.0f}",
        "seed by seed": each,
        f"over those {others}": over_text,
        "largest fall of accuracy on the way": lambda arm: f"{max(arm['fall']):.2f}",
    }
    if not part.title:
        columns["final accuracy"] = lambda arm: text(arm["final"], ".3f")
        columns["tokens trained a second"] = lambda arm: text(arm["speed"], ",.0f")
    names = {label: label.partition(", ")[2] if part.title else label for label in figures}
    return Table.of([{"arm": names[label], **one} for label, one in figures.items()], columns)


def tuning_lines(study: Study, modes: Sequence[str], rows: ResultFile) -> list[dict[str, Any]]:
    """Return a line per point that was run: arm, point, score, is it the best."""
    points = study.tuning(rows).tried(modes)
    tried = [(one, *score(one.rows, target=study.target)) for one in points]
    return [
        {
            "arm": one.mode,
            "point": dict(one.point),
            "seeds": len(one.rows),
            "crossed": len(one.rows) - int(missed),
            "seconds": seconds,
            "final": -final,
            "best": one.best,
        }
        for one, missed, seconds, final in tried
    ]


def tuning_table(lines: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of every point that was run."""
    return Table.of(
        lines,
        {
            "arm": lambda line: line["arm"],
            "point": lambda line: point_text(line["point"]),
            "seeds": lambda line: str(line["seeds"]),
            "crossed": lambda line: str(line["crossed"]),
            "seconds": lambda line: f"{line['seconds']:.1f}",
            "final accuracy": lambda line: f"{line['final']:.3f}",
            "": lambda line: "best" if line["best"] else "",
        },
    )


# -- in words --------------------------------------------------------------------------------------


def ratio_line(result: Mapping[str, Any], pair: Sequence[str]) -> str:
    """Describe the ratio in words, with its basis."""
    never = result["censored"]
    task = result["setting"] or result["name"]
    parts = [
        f"{task}: PPO's seconds to {result['target']:.3f} over those of streaming T-PPO: "
        f"{ratio_text(result)}",
        f"{never} of these runs never came there" if never else "every run came there",
        "both sides' tuning passes have as many points" if result["tuned"] else "not tuned alike",
    ]
    arms = [result["arms"][mode] for mode in pair]
    if not all(arm["dense"] for arm in arms):
        parts.append("evaluations lie more than a tenth of a crossing time apart")
    if any(arm["prompts"] < LEAST_PROMPTS for arm in arms):
        parts.append(f"on fewer than {LEAST_PROMPTS} prompts")
    if disturbed := sum(arm["disturbed"] for arm in arms):
        parts.append(f"{disturbed} runs beside others that took more than a twentieth of a core")
    return "; ".join(parts) + "."
