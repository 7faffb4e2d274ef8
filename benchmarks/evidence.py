"""Claims and plots of the README and `docs/evidence.md`, generated from the rows.

In: `claims.toml`, and the rows that are checked in. Out: the parts of the pages between
`<!-- table NAME -->` and `<!-- end -->`: `claims` (a line for each), `measured` (those of the
README), the tables of the `race` and `plots`; and one SVG per plot. Nothing is run. `--check`
writes nothing and fails when a page differs from the rows.

A claim names a file of rows, the condition `where` that they have to meet, and whether only the
`newest` counts. Its `figure` and `spread` are f-strings over these rows and `formula_names`.
"""

import re
import statistics
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from benchmarks.kit import study_file, study_plots
from benchmarks.kit.arms import Row, rows_of
from benchmarks.kit.command_line import command_line
from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.kit.study_plan import Study
from benchmarks.kit.study_plots import STYLE, curves, save
from benchmarks.kit.study_table import Table
from benchmarks.kit.time_to_target import curve, interval_text, smooth
from benchmarks.robustness import chaos_figures
from benchmarks.studies.comparison_figures import (
    by_target,
    course_table,
    part_figures,
    race_of,
    race_table,
    ratio_table,
    summarise,
    target_of,
)
from benchmarks.versus_trl import trl
from headrace.host.install import ROOT

CLAIMS = ROOT / "benchmarks" / "claims.toml"
PAGES = (ROOT / "README.md", ROOT / "docs" / "evidence.md")
IMAGES = ROOT / "docs" / "images" / "evidence"
MONTH = "2026-11"
"""The folder of rows that are older than the protocol of comparisons."""
RACES = (("race", None), ("tppo-vs-ppo", "long"))
"""The race and the older one that it repeats: study and setting."""
PART = re.compile(r"(<!-- table ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


# -- claims ----------------------------------------------------------------------------------------


def formula_names(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the names that a claim's formulas can use.

    Its `rows`, the newest as `last`, the rows `of` an arm by seed and `pairs` of two arms at their
    common seeds; figures of the race, of its parts, of TRL and faults; and formats of numbers."""

    def of(arm: str) -> dict[int, Row]:
        return {row["seed"]: row for row in rows if row["arm"] == arm}

    def pairs(one: str, other: str) -> list[tuple[Row, Row]]:
        a, b = of(one), of(other)
        return [(a[seed], b[seed]) for seed in sorted(a.keys() & b.keys())]

    return {
        "rows": rows,
        "last": rows[-1],
        "of": of,
        "pairs": pairs,
        "less": lambda one, other: [a["mean"] - b["mean"] for a, b in pairs(one, other)],
        "race": partial(race_figures, *RACES[0]),
        "old_race": partial(race_figures, *RACES[1]),
        "beside_race": race_part,
        "by_target": by_target,
        "interval_text": interval_text,
        "trl": trl_figures,
        "faults": lambda: chaos_figures.total_figures(rows),
        "after_kills": lambda role: [
            seconds
            for row in chaos_figures.single_job_rows(rows)
            for seconds in row.get("recovery_kill_s", {}).get(role, [])
        ],
        "median": statistics.median,
        "between": between,
        "each": lambda values, form: ", ".join(format(value, form) for value in values),
        "by_seed": lambda r, kind="": (
            f"{r['ratio_min']:.2f} to {r['ratio_max']:.2f}; "
            f"95 % {interval_text(r[f'{kind}interval'])}"
        ),
        **{function.__name__: function for function in (sum, len, min, sorted, str)},
    }


def between(values: Iterable[float], form: str) -> str:
    """Return the least and the largest; one number where both have the same text."""
    least, most = (format(bound(values := list(values)), form) for bound in (min, max))
    return least if least == most else f"{least} to {most}"


@cache
def race_figures(name: str, setting: str | None) -> dict[str, Any]:
    """Return the result of a race, of the arms whose seeds were all run."""
    study = Study.load(name, setting)
    finished = finished_arms(study)
    arms = [mode for mode in study.file.arms if mode in finished]
    return summarise(study, read_rows(study.path()), arms, study.file.seeds)


@cache
def race_part(name: str) -> dict[str, dict[str, Any]]:
    """Return figures of a part of the older race's study, by arm."""
    study = Study.load(*RACES[1])
    return part_figures(study, name, read_rows(study.path(name)), study.target)


@cache
def trl_figures() -> dict[str, Any]:
    """Return the result of the comparison with TRL."""
    found = trl.TrlComparison(read_rows(trl.ROWS))
    return trl.summarise(found, found.seeds)


def source(rows: Sequence[Row]) -> str:
    """Return the newest row's commit, the number of other commits, and all processors."""
    newest = max(rows, key=lambda row: int(row["at"]))
    commits = {row.get("commit", "")[:7] for row in rows}
    more = f"+{len(commits) - 1}" if len(commits) > 1 else ""
    names = {"Xeon" if "Xeon" in row["machine"]["processor"] else "EPYC" for row in rows}
    return f"{newest.get('commit', MONTH)[:7]}{more}, {'/'.join(sorted(names))}"


def lines() -> list[tuple[dict[str, Any], tuple[str, ...]]]:
    """Return each claim, and its cells. UserError where a formula fails."""
    found: list[tuple[dict[str, Any], tuple[str, ...]]] = []
    for claim in tomllib.loads(CLAIMS.read_text(encoding="utf-8"))["claim"]:
        rows = list(read_rows(RESULTS / f"{claim['rows']}.jsonl").values())
        rows = [r for r in rows if study_file.value_of(claim.get("where", "True"), {"row": r})]
        rows = rows[-1:] if claim.get("newest") else rows
        figure, spread = (
            study_file.value_of(f'f"""{claim.get(name, "")}"""', formula_names(rows))
            for name in ("figure", "spread")
        )
        cells = (claim["says"], figure, spread, f"`{claim['command']}`", source(rows))
        found.append((claim, cells))
    return found


# -- plots -----------------------------------------------------------------------------------------


def plots() -> dict[str, tuple[str, Callable[[Path], object]]]:
    """Return caption and drawing function of each plot that has rows, by file name."""
    found: dict[str, tuple[str, Callable[[Path], object]]] = {}
    for name, setting in RACES:
        race = Study.load(name, setting)
        if arms := finished_arms(race):
            caption = f"Study {name}: accuracy over seconds of training"
            found[f"race-{setting}" if setting else name] = caption, partial(draw_race, race, arms)
    for study in studies():
        rows = read_rows(study.path())
        own = {mode: list(rows_of(study.arm(mode), rows).values()) for mode in study.file.arms}
        by_arm = {mode: mine for mode, mine in own.items() if mine}
        for plot in study.file.plots if by_arm else ():
            found[plot.file] = plot.caption, partial(study_plots.draw, plot, by_arm)
    return found | trl.plots()


def studies() -> list[Study]:
    """Return all studies whose arms are one table."""
    paths = {name: study_file.FOLDER / f"{name}.toml" for name in study_file.names()}
    found = [Study.load(name) for name, path in paths.items() if not study_file.settings(path)]
    return [one for one in found if one.name != "schedule"]


def finished_arms(study: Study) -> dict[str, list[Row]]:
    """Return rows of the arms whose seeds were all run, the two of the ratio first.

    Empty until those two are among them."""
    rows, seeds = read_rows(study.path()), study.file.seeds
    pair = (study.file.reference, race_of(study).ratio)
    modes = [*pair, *(mode for mode in study.file.arms if mode not in pair)]
    found = {mode: list(rows_of(study.arm(mode), rows, seeds).values()) for mode in modes}
    over = {mode: own for mode, own in found.items() if len(own) == len(seeds)}
    return over if over.keys() >= set(pair) else {}


def draw_race(study: Study, arms: Mapping[str, Sequence[Row]], path: Path) -> None:
    """Draw the smoothed curves that crossings are read from.

    One line per seed, their median while all run, and the target."""
    target = target_of(race_of(study), dict(enumerate(arms[study.file.reference])))
    figure, axes = plt.subplots(figsize=(6.4, 3.6))
    axes.axhline(target, color="black", linewidth=0.8, linestyle=":", label="target")
    curves(axes, arms, lambda row: smooth(curve(row)))
    axes.set(xlabel="seconds of training", ylabel="held-out accuracy")
    save(figure, path)


# -- the pages -------------------------------------------------------------------------------------


def parts() -> dict[str, str]:
    """Return every generated part of the pages, by name."""
    claims = lines()
    titles = ("claim", "figure", "least to most", "command", "commit, processor")
    readme = [
        (says, f"{figure} ({spread})" if spread else figure, command)
        for claim, (says, figure, spread, command, _) in claims
        if claim.get("readme")
    ]
    return {
        "claims": Table(titles, [cells for _, cells in claims]).markdown(),
        "measured": Table(("figure", "value (least to most)", "command"), readme).markdown(),
        "race": race_tables(Study.load(*RACES[0]), race_figures(*RACES[0])),
        "plots": "".join(
            f"![{caption}](images/evidence/{name}.svg)\n" for name, (caption, _) in plots().items()
        ),
    }


def race_tables(study: Study, result: Mapping[str, Any]) -> str:
    """Return the tables of a race: cost and course of each arm, ratios at every target."""
    tables = (race_table(result), course_table(result), ratio_table(study, result))
    return "\n".join(table.markdown() for table in tables)


def page(old: str, generated: Mapping[str, str]) -> str:
    """Return a page with its generated parts replaced. KeyError for an unknown part."""
    return PART.sub(lambda match: match[1] + generated[match[2]] + match[3], old)


def main(argv: list[str]) -> int:
    """Write the pages' parts and the plots, or check the pages."""
    parser = command_line("evidence", __doc__, json=False)
    parser.add_argument("--check", action="store_true", help="write nothing, compare the pages")
    options = parser.parse_args(argv)
    generated, stale = parts(), []
    for path in PAGES:
        old = path.read_text(encoding="utf-8")
        new = page(old, generated)
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
    with plt.rc_context(STYLE):
        for name, (_, draw) in plots().items():
            draw(IMAGES / f"{name}.svg")
            print(f"wrote {(IMAGES / name).relative_to(ROOT)}.svg")
    return 0
