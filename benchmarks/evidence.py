"""Tables and plots of `docs/evidence.md`, and tables of `docs/operations.md` and
`docs/security.md`, from the rows that are checked in.

In: the rows of all studies; what was measured before a study changed is in `benchmarks.archive`.
Out: the parts of the pages between `<!-- table NAME -->` and `<!-- end -->`, and one SVG a plot.
Nothing is run; a study without rows says how to get them. `--check` writes nothing and fails when
a page is not what the rows say.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt

from benchmarks import (
    code_prm,
    dapo_parts,
    dashboard_evidence,
    egae,
    egae_bias,
    fault_evidence,
    race_evidence,
    reward_evidence,
    staleness,
    trl_evidence,
    untuned_race,
    vapo_parts,
    vcppo,
)
from benchmarks.archive import MONTH, measured_arms, rows_in, study_rows
from benchmarks.command_line import command_line
from benchmarks.egae_bias_evidence import bias_table, draw_egae_bias
from benchmarks.plots import STYLE
from benchmarks.race_settings import SETTINGS
from benchmarks.rows import Rows, read_rows
from benchmarks.study_plan import Column, Row, Study, rows_of
from benchmarks.study_plots import PLOTS as STUDY_PLOTS
from benchmarks.study_table import cells, lines_of, table
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


def tables() -> dict[str, str]:
    """Every part of the pages that is made, by name."""
    return {
        **{f"race-{name}": race_evidence.part(name) for name in SETTINGS},
        **{f"old-data-{name}": race_evidence.old_data_part(name) for name in SETTINGS},
        untuned_race.STUDY.name: race_evidence.untuned_table(),
        **{study.name: study_part(study) for study in (*STUDIES, *NEW_STUDIES)},
        **{f"{study.name}-{MONTH}": table_then(study) for study in STUDIES},
        egae.STUDY.name: study_table(egae.STUDY, study_rows(egae.STUDY)),
        "egae-bias": bias_table(rows_in(egae_bias.ROWS.name)),
        "code-prm-parts": code_prm.parts_table(read_rows(code_prm.PARTS_ROWS)),
        "trl": trl_evidence.part(),
        "faults": fault_evidence.figures_table(),
        "chaos": fault_evidence.chaos_table(),
        "fuzz": fault_evidence.fuzz_table(),
        "dashboard": dashboard_evidence.pages_table(),
        **{name: reward_evidence.part(name) for name in reward_evidence.STUDIES},
    }


def page(old: str, parts: Mapping[str, str]) -> str:
    """A page with its made parts as the rows say. KeyError for a part of an unknown name."""
    return PART.sub(lambda match: match[1] + parts[match[2]] + match[3], old)


def draw(folder: Path) -> list[Path]:
    """Draw every plot that there are rows for; the files."""
    drawn = []
    with plt.rc_context(STYLE):
        drawn += race_evidence.draw(folder)
        drawn.append(folder / "egae-bias.svg")
        draw_egae_bias(rows_in(egae_bias.ROWS.name), drawn[-1])
        studies = (*STUDIES, *NEW_STUDIES)
        measured = {study.name: arms_of(study, Rows(study.rows_path)) for study in studies}
        measured[egae.STUDY.name] = arms_of(egae.STUDY, study_rows(egae.STUDY))
        for study, arms in measured.items():
            for name, plot in STUDY_PLOTS[study].items() if arms else ():
                drawn.append(folder / f"{name}.svg")
                plot.draw(arms, drawn[-1])
        drawn += reward_evidence.draw(folder)
        drawn += trl_evidence.draw(folder)
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
