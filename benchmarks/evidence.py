"""Tables and plots of `docs/evidence.md`, and tables of `docs/operations.md` and
`docs/security.md`, from the rows that are checked in.

In: the files of all studies, which say what is shown of them, and their rows. Out: the parts of the
pages between `<!-- table NAME -->` and `<!-- end -->`, and one SVG a plot. Nothing is run; a study
without rows says how to get them. `--check` writes nothing and fails when a page is not what the
rows say.

What was measured stays what it is where a recipe, the code or the study has changed since: such
rows, under the month they are from, are found by their arm and seed alone.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from benchmarks.kit import study_file, study_plots
from benchmarks.kit.arms import Row, rows_of
from benchmarks.kit.command_line import command_line
from benchmarks.kit.rows import read_rows
from benchmarks.kit.study_plan import Study
from benchmarks.kit.study_plots import COLOURS, STYLE, Points, save
from benchmarks.kit.study_table import arms_table, lines_of
from benchmarks.kit.time_to_target import curve, smoothed
from benchmarks.robustness import fault_evidence
from benchmarks.studies import reward_evidence
from benchmarks.studies.comparison_figures import (
    cost_table,
    in_words,
    part_figures,
    part_table,
    race_of,
    race_table,
    summarise,
    target_of,
)
from benchmarks.versus_trl import trl
from headrace.host.install import ROOT

PAGES = tuple(ROOT / "docs" / f"{name}.md" for name in ("evidence", "operations", "security"))
IMAGES = ROOT / "docs" / "images" / "evidence"
MONTH = "2026-11"
RACE = "tppo-vs-ppo"
PART = re.compile(r"(<!-- table ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
POINTS = 60
"""Of a median over seeds, at evenly spaced seconds."""
ByArm = dict[str, dict[int, Row]]


def studies() -> list[Study]:
    """All studies whose arms are one table."""
    found = (Study.load(name) for name in study_file.names() if not _has_settings(name))
    return [one for one in found if one.file.retired is None and one.name != "schedule"]


def races() -> list[Study]:
    """The race in each of its settings."""
    return [
        Study.load(RACE, setting)
        for setting in study_file.settings(study_file.FOLDER / f"{RACE}.toml")
    ]


def _has_settings(name: str) -> bool:
    return bool(study_file.settings(study_file.FOLDER / f"{name}.toml"))


def missing(command: str) -> str:
    """What stands where there are no rows."""
    return f"Not measured yet: `headrace bench {command}`.\n"


def images(study: Study) -> str:
    """Markdown of a study's plots."""
    return "".join(f"![{p.caption}](images/evidence/{p.file}.svg)\n\n" for p in study.file.plots)


# -- studies ---------------------------------------------------------------------------------------


def measured(path: Path) -> ByArm:
    """The rows of a file by arm and seed, in the order of their first ones."""
    found: ByArm = {}
    for row in read_rows(path).values():
        found.setdefault(row["arm"], {})[row["seed"]] = row
    return found


def rows_by_arm(study: Study) -> ByArm:
    """The rows of the study's arms, where there are any."""
    file = study.file
    if file.measured is not None:
        there = measured(study.folder / file.measured / study.path().name)
        return {mode: there[mode] for mode in file.arms if mode in there}
    rows = read_rows(study.path())
    found = {mode: rows_of(study.arm(mode), rows) for mode in file.arms}
    return {mode: own for mode, own in found.items() if own}


def study_part(study: Study) -> str:
    """Markdown of a study: its plots, its table and how many of its runs others disturbed; or how
    to get them."""
    file, found = study.file, rows_by_arm(study)
    if not found:
        return missing(study.name)
    lines = lines_of(found, reference=file.reference, columns=file.columns)
    table = arms_table(lines, reference=file.reference, columns=file.columns).markdown()
    if file.measured is not None:  # its plots stand elsewhere on the page
        return table
    runs = [row for own in found.values() for row in own.values()]
    disturbed = sum(row["disturbed"] for row in runs)
    beside = f"\nOthers disturbed {disturbed} of {len(runs)} runs.\n" if disturbed else ""
    return images(study) + table + beside


def part_before(study: Study, reference: str) -> str:
    """Markdown of what was measured with the arms that the study had before."""
    lines = lines_of(measured(study.folder / MONTH / study.path().name), reference=reference)
    return arms_table(lines, reference=reference).markdown()


# -- the race --------------------------------------------------------------------------------------


def race_part(study: Study) -> str:
    """Markdown of the race: its plot, if it is over, its tables and what they say."""
    rows = read_rows(study.path())
    if not rows:
        return missing(f"{study.name} --setting {study.setting}")
    name, seeds = study.setting, study.file.seeds
    result = summarise(study, rows, list(study.file.arms), seeds)
    plot = f"![Accuracy over seconds of training, setting {name}](images/evidence/race-{name}.svg)"
    paragraphs = (f"{line}\n" for line in in_words(study, result, seeds))
    parts = (race_table(result).markdown(), *paragraphs, cost_table(result).markdown())
    return (f"{plot}\n\n" if finished_arms(study) else "") + "\n".join(parts)


def race_parts(study: Study) -> dict[str, str]:
    """Markdown of what is run beside the race and has its place on the page."""
    found = {}
    for name, part in study.file.parts.items():
        if part.title is None:
            continue
        rows = read_rows(study.path(name))
        figures = part_figures(study, name, rows, study.target)
        text = part_table(study, name, figures).markdown()
        if disturbed := sum(one["disturbed"] for one in figures.values()):
            text += f"\nOthers disturbed {disturbed} of these runs.\n"
        command = f"{study.name} --setting {study.setting} --{name}"
        found[f"{name}-{study.setting}"] = text if figures else missing(command)
    return found


def finished_arms(study: Study) -> dict[str, list[Row]]:
    """Rows of the arms whose seeds were all run, the two of the ratio first; empty until those two
    are among them."""
    rows, seeds = read_rows(study.path()), study.file.seeds
    pair = (study.file.reference, race_of(study).ratio)
    modes = [*pair, *(mode for mode in study.file.arms if mode not in pair)]
    found = {mode: list(rows_of(study.arm(mode), rows, seeds).values()) for mode in modes}
    over = {mode: own for mode, own in found.items() if len(own) == len(seeds)}
    return over if over.keys() >= set(pair) else {}


def draw_race(study: Study, arms: Mapping[str, Sequence[Row]], path: Path) -> None:
    """The smoothed curves that crossings are read from: a line a seed, up to its run's end, their
    median while all run, and the target."""
    target = target_of(race_of(study), dict(enumerate(arms[study.file.reference])))
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


# -- the pages -------------------------------------------------------------------------------------


def tables() -> dict[str, str]:
    """Every part of the pages that is made, by name."""
    found = {
        "trl": trl.part(),
        "faults": fault_evidence.figures_table(),
        "chaos": fault_evidence.chaos_table(),
        "fuzz": fault_evidence.fuzz_table(),
        "dashboard": fault_evidence.pages_table(),
        **{name: reward_evidence.part(name) for name in reward_evidence.STUDIES},
    }
    for study in races():
        found |= {f"race-{study.setting}": race_part(study), **race_parts(study)}
    for study in studies():
        found[study.name] = study_part(study)
        if study.file.before is not None:
            found[f"{study.name}-{MONTH}"] = part_before(study, study.file.before)
    return found


def page(old: str, parts: Mapping[str, str]) -> str:
    """A page with its made parts as the rows say. KeyError for a part of an unknown name."""
    return PART.sub(lambda match: match[1] + parts[match[2]] + match[3], old)


def draw(folder: Path) -> list[Path]:
    """Draw every plot that there are rows for; the files."""
    drawn = []
    with plt.rc_context(STYLE):
        for study in races():
            if arms := finished_arms(study):
                drawn.append(folder / f"race-{study.setting}.svg")
                draw_race(study, arms, drawn[-1])
        for study in studies():
            by_arm = {mode: list(own.values()) for mode, own in rows_by_arm(study).items()}
            for plot in study.file.plots if by_arm else ():
                drawn.append(folder / f"{plot.file}.svg")
                study_plots.draw(plot, by_arm, drawn[-1])
        drawn += reward_evidence.draw(folder)
        drawn += trl.draw(folder)
    return drawn


def main(argv: list[str]) -> int:
    """Write the pages' parts and the plots, or check the pages."""
    parser = command_line("evidence", __doc__, json=False)
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
