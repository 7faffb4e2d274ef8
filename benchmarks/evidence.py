"""Tables and plots of `docs/evidence.md` from the rows that `benchmarks.archive` has.

In: the rows of all studies. Out: the parts of the page between `<!-- table NAME -->` and
`<!-- end -->`, and one SVG a plot. Nothing is run. `--check` writes nothing and fails when the page
is not what the rows say.
"""

import argparse
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from benchmarks import dapo_parts, egae, egae_bias, staleness, untuned_race, vapo_parts, vcppo
from benchmarks.archive import rows_in, study_rows
from benchmarks.censored import spread_text
from benchmarks.crossings import interval_text
from benchmarks.egae_bias_evidence import bias_table, draw_egae_bias
from benchmarks.plots import (
    STYLE,
    accuracy_over_seconds,
    accuracy_over_tokens,
    accuracy_over_updates,
    against,
    curves,
    dots,
    length_over_updates,
    metric_over_updates,
    save,
)
from benchmarks.race import Race
from benchmarks.race_settings import ARMS, SETTINGS
from benchmarks.rows import read_rows
from benchmarks.study import Row, Study, rows_of, table, text
from benchmarks.tppo_vs_ppo import race_path, ratio_line, summarise
from benchmarks.tuning import words
from headrace.install import ROOT

PAGE = ROOT / "docs" / "evidence.md"
IMAGES = ROOT / "docs" / "images" / "evidence"
STUDIES = (vapo_parts.STUDY, vcppo.STUDY, egae.STUDY, staleness.STUDY, dapo_parts.STUDY)
PART = re.compile(r"(<!-- table ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
Arms = dict[str, list[Row]]


def arms_of(study: Study) -> Arms:
    """The rows of the study's arms, arm by arm, where there are any."""
    found = study_rows(study).rows
    return {arm.name: list(rows.values()) for arm in study.arms if (rows := rows_of(arm, found))}


def study_table(study: Study) -> str:
    """Markdown: one line an arm, medians with least and largest; mean accuracy also as the
    difference to the reference, seed by seed."""
    plan = [(arm, seed) for arm in study.arms for seed in range(study.seeds)]
    lines = [
        "| arm | seeds | final accuracy | mean accuracy "
        f"| less that of *{study.reference}* | final length | tokens generated |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {line['arm']} | {line['seeds']} | {text(line['final'], '.3f')} "
        f"| {text(line['mean'], '.3f')} "
        f"| {text(line['against'], '+.3f')} | {text(line['final_length'], '.0f')} "
        f"| {text(line['generated'], ',.0f')} |"
        for line in table(plan, study_rows(study), reference=study.reference)
    ]
    return "\n".join(lines) + "\n"


def race_table(name: str) -> str:
    """Markdown of the race in a setting: one line an arm; what is not measured says so."""
    setting, rows = SETTINGS[name], read_rows(race_path(name))
    if not rows:
        return f"Not measured yet: `headrace bench tppo-vs-ppo --setting {name}`.\n"
    result = summarise(Race(setting), rows, list(ARMS), setting.seeds)
    lines = [
        "| arm | seeds | seconds to target | CPU seconds | tokens | PPO's seconds over its own "
        "| 95 % interval | final accuracy | on long prompts | context share | best setting |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for mode, arm in result.get("arms", {}).items():
        crossed = arm["seeds"] - arm["censored"]
        some = f" ({crossed} crossed)" if arm["censored"] else ""
        against = arm["against_ppo"]
        ratio = f"{against['ratio']:.2f}" if against else "-"
        lines.append(
            f"| {mode} | {arm['seeds']}{some} | {arm['seconds']:.1f} | {arm['cpu_s']:.1f} "
            f"| {arm['tokens']:,.0f} | {ratio} | {interval_text(against.get('interval'))} "
            f"| {text(arm['final'], '.3f')} | {text(arm['final_on_long_prompts'], '.3f')} "
            f"| {arm['context_share']:.2f} | {words(arm['point'])} |"
        )
    if result["ratio"] is not None:
        lines += ["", ratio_line(result)]
    lines += [
        "",
        "| arm | wall seconds of a run | CPU seconds of it, by role | idle generator, learner "
        "| staleness | left out for age, from the shortest tenth of the answers to the longest |",
        "|---|---|---|---|---|---|",
    ]
    for mode, arm in result.get("arms", {}).items():
        roles = ", ".join(f"{role} {s:.0f}" for role, s in arm["cpu_s_by_role"].items())
        stale = " ".join(f"{share:.2f}" for share in arm["stale_by_tenth"])
        idle = arm["idle_share"]
        lines.append(
            f"| {mode} | {arm['wall_s']:.0f} | {roles} | {idle['generator']:.2f}, "
            f"{idle['learner']:.2f} | {arm['staleness']:.2f} | {stale} |"
        )
    return "\n".join(lines) + "\n"


def untuned_race_table(result: Mapping[str, Any]) -> str:
    """Markdown of the first race: settings by arms."""
    lines = [
        "| setting | arm | seeds | seconds to target | tokens to target | PPO's seconds over its "
        "own | final accuracy | longest over mean | idle generator, learner | tokens trained a "
        "second | speed |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, setting in result["settings"].items():
        for mode, arm in setting["arms"].items():
            idle = arm["idle_share"]
            crossed = arm["seeds"] - arm["never_crossed"]
            # What is not evaluated on the way cannot cross; who never crossed counts as later.
            target = f", target {setting['target']:.3f}" if setting["raced"] else ""
            some = f" ({crossed} crossed)" if setting["raced"] and arm["never_crossed"] else ""
            lines.append(
                f"| {name}{target} | {mode} | {arm['seeds']}{some} "
                f"| {spread_text(arm['seconds'], '.1f')} | {spread_text(arm['tokens'], ',.0f')} "
                f"| {spread_text(arm['ratio'], '.2f')} | {text(arm['final'], '.3f')} "
                f"| {text(arm['tail'], '.1f')} | {idle['generator']:.2f}, {idle['learner']:.2f} "
                f"| {text(arm['trained_tokens_per_s'], ',.0f')} | {text(arm['speed'], '.2f')} |"
            )
    if result["ratio"]:
        lines += ["", untuned_race.ratio_line(result)]
    return "\n".join(lines) + "\n"


def tables() -> dict[str, str]:
    """Every part of the page that is made, by name."""
    untuned = untuned_race.summarise(study_rows(untuned_race.STUDY).rows)
    return {
        **{f"race-{name}": race_table(name) for name in SETTINGS},
        untuned_race.STUDY.name: untuned_race_table(untuned),
        **{study.name: study_table(study) for study in STUDIES},
        "egae-bias": bias_table(rows_in(egae_bias.ROWS.name)),
    }


def page(old: str) -> str:
    """The page with its made parts as the rows say. KeyError for a part of an unknown name."""
    parts = tables()
    return PART.sub(lambda match: match[1] + parts[match[2]] + match[3], old)


def pick(arms: Arms, *names: str) -> Arms:
    """Those of the arms that have rows."""
    return {name: arms[name] for name in names if name in arms}


def draw_race(path: Path) -> None:
    found = arms_of(untuned_race.STUDY)
    main_arms = {mode: found.get(untuned_race.MAIN.arm(mode).name) for mode in untuned_race.ARMS}
    figure, axes = plt.subplots(figsize=(6.4, 3.6))
    curves(axes, {mode: rows for mode, rows in main_arms.items() if rows}, accuracy_over_seconds)
    axes.set(xlabel="seconds of training", ylabel="held-out accuracy")
    save(figure, path)


def draw_speedups(path: Path) -> None:
    """Speed-up against batch and against tail."""
    settings = untuned_race.summarise(study_rows(untuned_race.STUDY).rows)["settings"]
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.6, 3.2), sharey=True)
    for axes, prefix in ((left, "batch"), (right, "tail")):
        points = sorted(
            (
                one["batch"] if prefix == "batch" else one["arms"]["synchronous"]["tail"]["median"],
                one["speed"],
            )
            for name, one in settings.items()
            if (name == "main" or name.startswith(prefix)) and one["speed"]
        )
        if points:
            xs = [x for x, _ in points]
            ratios = [[r["min"], r["median"], r["max"]] for _, r in points]
            against(axes, xs, ratios, label="streaming T-PPO over PPO", index=0)
        axes.axhline(1.0, color="black", linewidth=0.8)
    left.set(xlabel="trajectories in an update", ylabel="tokens a second, ratio", xscale="log")
    right.set(xlabel="longest over mean response")
    save(figure, path)


def draw_vapo(path: Path) -> None:
    _dots(arms_of(vapo_parts.STUDY), path)


def draw_vcppo(path: Path) -> None:
    arms = arms_of(vcppo.STUDY)
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.4))
    cures = pick(arms, *(arm.name for arm in vcppo.CURES))
    curves(left, cures, length_over_updates)
    left.set(xlabel="updates of the policy", ylabel="mean response length, tokens")
    curves(right, cures, accuracy_over_updates)
    right.set(xlabel="updates of the policy", ylabel="held-out accuracy")
    save(figure, path)


def draw_vcppo_sweeps(path: Path) -> None:
    arms = arms_of(vcppo.STUDY)
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.2), sharey=True)
    cured = "low, both cures"
    lambdas = {float(lam): f"lambda {lam}" for lam in ("0.90", "0.98", "0.99", "1.00")}
    steps = {float(count): f"pretraining {count}" for count in (2, 4, 24, 48)}
    lambdas = dict(sorted({**lambdas, 0.95: cured}.items()))
    steps = dict(sorted({**steps, 0.0: "low, decoupled", 8.0: cured}.items()))
    for axes, sweep, label in ((left, lambdas, "lambda"), (right, steps, "pretraining updates")):
        _sweep(axes, arms, sweep, "mean", index=0, label="mean accuracy")
        _sweep(axes, arms, sweep, "final", index=1, label="final accuracy")
        axes.set(xlabel=label)
    save(figure, path)


def draw_egae(path: Path) -> None:
    _dots(arms_of(egae.STUDY), path)


def draw_egae_tokens(path: Path) -> None:
    """The same runs by updates and by what they generated."""
    windows = pick(arms_of(egae.STUDY), *(arm.name for arm in egae.WINDOWS))
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.4), sharey=True)
    curves(left, windows, accuracy_over_updates)
    left.set(xlabel="updates of the policy", ylabel="held-out accuracy")
    curves(right, windows, accuracy_over_tokens)
    right.set(xlabel="tokens generated")
    save(figure, path)


def draw_bias(path: Path) -> None:
    draw_egae_bias(rows_in(egae_bias.ROWS.name), path)


def draw_staleness(path: Path) -> None:
    arms = arms_of(staleness.STUDY)
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.2), sharey=True)
    for index, ratio in enumerate(staleness.RATIOS):
        sweep = {float(b): f"staleness {b}, {ratio}" for b in (0, 1, 2, 4, 8)}
        _sweep(left, arms, sweep, "mean", index=index, label=ratio)
        _sweep(right, arms, sweep, "final", index=index, label=ratio)
    left.set(xlabel="bound on staleness, updates", ylabel="mean accuracy")
    right.set(xlabel="bound on staleness, updates", ylabel="final accuracy")
    save(figure, path)


def draw_dapo(path: Path) -> None:
    arms = arms_of(dapo_parts.STUDY)
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.8, 3.4))
    chosen = pick(arms, "dapo", "without clip-higher", "without dynamic sampling", "grpo")
    curves(left, chosen, metric_over_updates("actor/entropy"))
    left.set(xlabel="updates of the policy", ylabel="entropy, nats")
    dots(right, arms, "mean")
    right.set(xlabel="mean accuracy")
    save(figure, path)


def _dots(arms: Arms, path: Path) -> None:
    height = 0.9 + 0.27 * len(arms)
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, height), sharey=True)
    dots(left, arms, "mean")
    dots(right, arms, "final")
    left.set(xlabel="mean accuracy over the run")
    right.set(xlabel="final accuracy")
    right.invert_yaxis()
    save(figure, path)


def _sweep(
    axes: Any, arms: Arms, sweep: Mapping[float, str], figure: str, *, index: int, label: str
) -> None:
    points = [(x, [row[figure] for row in arms[name]]) for x, name in sweep.items() if name in arms]
    if points:
        xs, values = zip(*points, strict=True)
        against(axes, xs, values, label=label, index=index)


PLOTS: dict[str, Callable[[Path], None]] = {
    "tppo-vs-ppo": draw_race,
    "speed-ups": draw_speedups,
    "vapo-parts": draw_vapo,
    "vcppo": draw_vcppo,
    "vcppo-sweeps": draw_vcppo_sweeps,
    "egae": draw_egae,
    "egae-tokens": draw_egae_tokens,
    "egae-bias": draw_bias,
    "staleness": draw_staleness,
    "dapo-parts": draw_dapo,
}


def main(argv: list[str]) -> int:
    """Write the page's parts and the plots, or check the page."""
    parser = argparse.ArgumentParser(prog="headrace bench evidence", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, compare the page")
    options = parser.parse_args(argv)
    old = PAGE.read_text(encoding="utf-8")
    new = page(old)
    if options.check:
        if new != old:
            print(
                f"{PAGE.relative_to(ROOT)} is not what the rows say; run headrace bench evidence",
                file=sys.stderr,
            )
        return int(new != old)
    PAGE.write_text(new, encoding="utf-8")
    with plt.rc_context(STYLE):
        for name, draw in PLOTS.items():
            draw(IMAGES / f"{name}.svg")
            print(f"wrote {(IMAGES / name).relative_to(ROOT)}.svg")
    return 0
