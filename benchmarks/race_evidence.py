"""The race of T-PPO against PPO on `docs/evidence.md`: tables and plots from its rows.

In: the rows of each setting that is tuned, and those of the first race, which was not. Out: parts
of the page in Markdown, and SVG files. A race that is not over says so, and has no plot.
"""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from benchmarks import old_data, untuned_race
from benchmarks.archive import study_rows
from benchmarks.censored import spread_text
from benchmarks.crossings import curve, interval_text, smoothed
from benchmarks.plots import COLOURS, Points, accuracy_over_seconds, against, curves, save
from benchmarks.race import Race
from benchmarks.race_figures import (
    SHARE_OF_FINAL,
    in_words,
    race_path,
    summarise,
)
from benchmarks.race_settings import ARMS, PAIR, SETTINGS
from benchmarks.rows import read_rows
from benchmarks.study_plan import Row, rows_of
from benchmarks.study_table import text
from benchmarks.tuning import words

POINTS = 60
"""Of a median over seeds, at evenly spaced seconds."""


def part(name: str) -> str:
    """Markdown of the race in a setting: its plot, if the race is over, and its tables."""
    plot = f"![Accuracy over seconds of training, setting {name}](images/evidence/race-{name}.svg)"
    return (f"{plot}\n\n" if finished_arms(name) else "") + race_table(name)


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
    for line in in_words(result, setting.seeds):
        lines += ["", line]
    lines += [
        "",
        "| arm | wall seconds of a run | CPU seconds of it, by role | idle generator, learner "
        "| staleness | seconds to the policy's first update | largest fall of smoothed accuracy "
        "| left out for age, from the shortest tenth of the answers to the longest |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for mode, arm in result.get("arms", {}).items():
        roles = ", ".join(f"{role} {s:.0f}" for role, s in arm["cpu_s_by_role"].items())
        stale = " ".join(f"{share:.2f}" for share in arm["stale_by_tenth"])
        idle = arm["idle_share"]
        lines.append(
            f"| {mode} | {arm['wall_s']:.0f} | {roles} | {idle['generator']:.2f}, "
            f"{idle['learner']:.2f} | {arm['staleness']:.2f} "
            f"| {text(arm['first_update_s'], '.1f')} | {text(arm['fall'], '.2f')} | {stale} |"
        )
    return "\n".join(lines) + "\n"


def old_data_part(name: str) -> str:
    """Markdown of what the age of a stream's data costs in a setting."""
    race = Race(SETTINGS[name])
    return old_data.table(race, race.known("old_data"))


def untuned_table() -> str:
    """Markdown of the first race: settings by arms."""
    result = untuned_race.summarise(study_rows(untuned_race.STUDY).rows)
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


def finished_arms(name: str) -> dict[str, list[Row]]:
    """Rows of the arms in a setting whose seeds were all run, the two of the ratio first; empty
    until those two are among them."""
    race, rows = Race(SETTINGS[name]), read_rows(race_path(name))
    modes = [*PAIR, *(mode for mode in ARMS if mode not in PAIR)]
    found = {
        mode: list(rows_of(race.arm(mode), rows, race.setting.seeds).values()) for mode in modes
    }
    over = {mode: mine for mode, mine in found.items() if len(mine) == len(race.setting.seeds)}
    return over if over.keys() >= set(PAIR) else {}


def draw(folder: Path) -> list[Path]:
    """Every plot that there are rows for; the files."""
    drawn = []
    for name in SETTINGS:
        if arms := finished_arms(name):
            drawn.append(folder / f"race-{name}.svg")
            draw_race(arms, drawn[-1])
    drawn += [folder / "tppo-vs-ppo.svg", folder / "speed-ups.svg"]
    draw_untuned(drawn[-2])
    draw_speedups(drawn[-1])
    return drawn


def draw_race(arms: Mapping[str, Sequence[Row]], path: Path) -> None:
    """The smoothed curves that crossings are read from: a line a seed, up to its run's end, their
    median while all run, and the target."""
    target = SHARE_OF_FINAL * statistics.median(row["final"] for row in arms[PAIR[0]])
    figure, axes = plt.subplots(figsize=(6.4, 3.6))
    for colour, (mode, rows) in zip(COLOURS, arms.items(), strict=False):
        lines = [smoothed(curve(row)) for row in rows]
        for line in lines:
            axes.plot(*zip(*line, strict=True), color=colour, alpha=0.3, linewidth=0.8)
        middle = median_line(lines)
        axes.plot(*zip(*middle, strict=True), color=colour, linewidth=2, label=mode)
    axes.axhline(target, color="black", linewidth=0.8, linestyle=":", label="target")
    axes.set(xlabel="seconds of training", ylabel="held-out accuracy")
    axes.legend(loc="lower right")
    save(figure, path)


def median_line(lines: Sequence[Points]) -> Points:
    """The median of lines whose points lie at different x, from where all have begun to where the
    first one ends, linear between points."""
    begin, end = max(line[0][0] for line in lines), min(line[-1][0] for line in lines)
    xs = [begin + (end - begin) * i / (POINTS - 1) for i in range(POINTS)]
    each = [np.interp(xs, [x for x, _ in line], [y for _, y in line]) for line in lines]
    return [(x, float(y)) for x, y in zip(xs, np.median(each, axis=0), strict=True)]


def draw_untuned(path: Path) -> None:
    """The first race."""
    rows = study_rows(untuned_race.STUDY).rows
    found = {m: rows_of(untuned_race.MAIN.arm(m), rows) for m in untuned_race.ARMS}
    figure, axes = plt.subplots(figsize=(6.4, 3.6))
    lines = {mode: list(mine.values()) for mode, mine in found.items() if mine}
    curves(axes, lines, accuracy_over_seconds)
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
