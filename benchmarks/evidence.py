"""Tables and plots of `docs/evidence.md`, and tables of `docs/operations.md` and
`docs/security.md`, from the rows that are checked in.

In: the rows of all studies; what was measured before a study changed is in `benchmarks.archive`.
Out: the parts of the pages between `<!-- table NAME -->` and `<!-- end -->`, and one SVG a plot.
Nothing is run; a study without rows says how to get them. `--check` writes nothing and fails when
a page is not what the rows say.
"""

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from benchmarks import (
    code_prm,
    dapo_parts,
    egae,
    egae_bias,
    fault_evidence,
    reward_evidence,
    staleness,
    untuned_race,
    vapo_parts,
    vcppo,
)
from benchmarks.archive import MONTH, measured_arms, rows_in, study_rows
from benchmarks.censored import spread_text
from benchmarks.crossings import interval_text
from benchmarks.egae_bias_evidence import bias_table, draw_egae_bias
from benchmarks.plots import STYLE, accuracy_over_seconds, against, curves, save
from benchmarks.race import Race
from benchmarks.race_settings import ARMS, PAIR, SETTINGS
from benchmarks.rows import Rows, read_rows
from benchmarks.study import Column, Row, Study, cells, lines_of, rows_of, table, text
from benchmarks.study_plots import PLOTS as STUDY_PLOTS
from benchmarks.tppo_vs_ppo import race_path, ratio_line, summarise
from benchmarks.tuning import words
from headrace.install import ROOT

PAGES = tuple(ROOT / "docs" / f"{name}.md" for name in ("evidence", "operations", "security"))
PAGE = PAGES[0]
IMAGES = ROOT / "docs" / "images" / "evidence"
STUDIES = (vapo_parts.STUDY, vcppo.STUDY, staleness.STUDY, dapo_parts.STUDY)
NEW_STUDIES = (code_prm.STUDY,)
"""Nothing of them was measured before."""
REFERENCES_THEN = {
    vapo_parts.STUDY.name: "vapo",
    vcppo.STUDY.name: "ppo",
    staleness.STUDY.name: "staleness 0, behaviour",
    dapo_parts.STUDY.name: "dapo",
}
"""These were measured with other arms before; then this arm was what the others are compared
with."""
PART = re.compile(r"(<!-- table ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
Arms = dict[str, list[Row]]


def arms_of(study: Study, rows: Rows) -> Arms:
    """The rows of the study's arms, arm by arm, where there are any."""
    found = {arm.name: rows_of(arm, rows.rows) for arm in study.arms}
    return {name: list(mine.values()) for name, mine in found.items() if mine}


def study_part(study: Study) -> str:
    """Markdown of a study: its plots, its table and how many of its runs others disturbed; or how
    to get them."""
    rows = Rows(study.rows_path)
    arms = arms_of(study, rows)
    if not arms:
        return f"Not measured yet: `headrace bench {study.name}`.\n"
    plots = STUDY_PLOTS[study.name].items()
    images = [f"![{plot.caption}](images/evidence/{name}.svg)\n\n" for name, plot in plots]
    runs = [row for mine in arms.values() for row in mine]
    disturbed = sum(row["disturbed"] for row in runs)
    beside = f"\nOthers disturbed {disturbed} of {len(runs)} runs.\n" if disturbed else ""
    return "".join(images) + study_table(study, rows) + beside


def study_table(study: Study, rows: Rows) -> str:
    """Markdown: one line an arm that has rows."""
    plan = [(arm, seed) for arm in study.arms for seed in range(study.seeds)]
    return arms_table(table(study, plan, rows), study.reference, study.columns)


def table_then(study: Study) -> str:
    """Markdown of what was measured with the arms that the study had before."""
    reference = REFERENCES_THEN[study.name]
    return arms_table(lines_of(measured_arms(study), reference=reference), reference)


def arms_table(lines: Sequence[Row], reference: str, columns: Sequence[Column] = ()) -> str:
    """Markdown: one line an arm, medians with least and largest; mean accuracy also as the
    difference to the reference, seed by seed."""
    titles = [
        *("arm", "seeds", "final accuracy", "mean accuracy", f"less that of *{reference}*"),
        *("final length", "tokens generated"),
        *(column.title for column in columns),
    ]
    head = [f"| {' | '.join(titles)} |", "|" + "---|" * len(titles)]
    rows = [f"| {' | '.join(cells(line, columns))} |" for line in lines]
    return "\n".join([*head, *rows]) + "\n"


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
    if missing := _missing(result, setting.seeds):
        lines += ["", missing]
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


def _missing(result: Mapping[str, Any], seeds: Sequence[int]) -> str:
    """What an unfinished race has not run yet of the two arms of the ratio; empty where it has."""
    found = {mode: result.get("arms", {}).get(mode, {}).get("seeds", 0) for mode in PAIR}
    if min(found.values()) >= len(seeds):
        return ""
    parts = " and ".join(
        f"{count} of {len(seeds)} seeds of {mode}" for mode, count in found.items()
    )
    return f"**The race is under way:** {parts} have been run. Nothing is claimed yet."


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
    """Every part of the pages that is made, by name."""
    untuned = untuned_race.summarise(study_rows(untuned_race.STUDY).rows)
    return {
        **{f"race-{name}": race_table(name) for name in SETTINGS},
        untuned_race.STUDY.name: untuned_race_table(untuned),
        **{study.name: study_part(study) for study in (*STUDIES, *NEW_STUDIES)},
        **{f"{study.name}-{MONTH}": table_then(study) for study in STUDIES},
        egae.STUDY.name: study_table(egae.STUDY, study_rows(egae.STUDY)),
        "egae-bias": bias_table(rows_in(egae_bias.ROWS.name)),
        "code-prm-parts": code_prm.parts_table(read_rows(code_prm.PARTS_ROWS)),
        "faults": fault_evidence.figures_table(),
        "chaos": fault_evidence.chaos_table(),
        "fuzz": fault_evidence.fuzz_table(),
        **{name: reward_evidence.part(name) for name in reward_evidence.STUDIES},
    }


def page(old: str, parts: Mapping[str, str]) -> str:
    """A page with its made parts as the rows say. KeyError for a part of an unknown name."""
    return PART.sub(lambda match: match[1] + parts[match[2]] + match[3], old)


def draw_race(path: Path) -> None:
    found = arms_of(untuned_race.STUDY, study_rows(untuned_race.STUDY))
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


def draw_bias(path: Path) -> None:
    draw_egae_bias(rows_in(egae_bias.ROWS.name), path)


PLOTS: dict[str, Callable[[Path], None]] = {
    "tppo-vs-ppo": draw_race,
    "speed-ups": draw_speedups,
    "egae-bias": draw_bias,
}
"""Beside those of the studies."""


def draw(folder: Path) -> list[Path]:
    """Draw every plot that there are rows for; the files."""
    drawn = []
    with plt.rc_context(STYLE):
        for name, draw_into in PLOTS.items():
            drawn.append(folder / f"{name}.svg")
            draw_into(drawn[-1])
        studies = (*STUDIES, *NEW_STUDIES)
        measured = {study.name: arms_of(study, Rows(study.rows_path)) for study in studies}
        measured[egae.STUDY.name] = arms_of(egae.STUDY, study_rows(egae.STUDY))
        for study, arms in measured.items():
            for name, plot in STUDY_PLOTS[study].items() if arms else ():
                drawn.append(folder / f"{name}.svg")
                plot.draw(arms, drawn[-1])
        drawn += reward_evidence.draw(folder)
    return drawn


def main(argv: list[str]) -> int:
    """Write the pages' parts and the plots, or check the pages."""
    parser = argparse.ArgumentParser(prog="headrace bench evidence", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, compare the pages")
    options = parser.parse_args(argv)
    parts, stale = tables(), []
    for path in PAGES:
        old = path.read_text(encoding="utf-8")
        new = page(old, parts)
        if new != old:
            stale.append(path)
        if not options.check:
            path.write_text(new, encoding="utf-8")
    if options.check:
        for path in stale:
            print(
                f"{path.relative_to(ROOT)} is not what the rows say; run headrace bench evidence",
                file=sys.stderr,
            )
        return int(bool(stale))
    for path in draw(IMAGES):
        print(f"wrote {path.relative_to(ROOT)}")
    return 0
