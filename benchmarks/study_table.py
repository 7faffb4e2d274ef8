"""The table of a study: one line an arm, over its seeds.

In: rows by arm and seed. Out: lines as data, as cells of text, and on the terminal.
"""

import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.table import Table

from benchmarks import tries
from benchmarks.rows import Rows
from benchmarks.study_plan import Arm, Column, Row, Study, key


def table(study: Study, plan: Iterable[tuple[Arm, int]], rows: Rows) -> list[Row]:
    """One line an arm over the seeds that are there: `lines_of` with the study's columns."""
    by_arm: dict[str, dict[int, Row]] = {}
    for arm, seed in plan:
        if row := tries.row_of(key(arm, seed), rows.rows):
            by_arm.setdefault(arm.name, {})[seed] = row
    return lines_of(by_arm, reference=study.reference, columns=study.columns)


def lines_of(
    by_arm: Mapping[str, Mapping[int, Row]], *, reference: str, columns: Sequence[Column] = ()
) -> list[Row]:
    """One line for each arm's rows by seed. `against`: mean accuracy less that of the arm
    `reference` at the same seed, None without a common seed."""
    other = by_arm.get(reference, {})
    lines = []
    for name, found in by_arm.items():
        line: Row = {"arm": name, "seeds": len(found)}
        for figure in ("final", "mean", "final_length"):
            line[figure] = spread([row[figure] for row in found.values()])
        line["generated"] = spread([row["tokens"]["generated"] for row in found.values()])
        common = [seed for seed in found if seed in other and name != reference]
        differences = [found[seed]["mean"] - other[seed]["mean"] for seed in common]
        line["against"] = spread(differences) if common else None
        for column in columns:
            line[column.title] = spread([column.figure(row) for row in found.values()])
        lines.append(line)
    return lines


def beside(rows: Sequence[Row]) -> dict[str, float]:
    """The most that others and the host took during one of the runs, in cores, and how many runs
    others disturbed."""
    return {
        "others_cpu_share": max(row["others_cpu_share"] for row in rows),
        "steal_share": max(row["steal_share"] for row in rows),
        "disturbed": sum(row["disturbed"] for row in rows),
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, least and largest."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def show(study: Study, lines: list[Row]) -> None:
    """The table on the terminal."""
    shown = Table(title=study.name, title_justify="left")
    against = f"against {study.reference}"
    titles = ("arm", "seeds", "final accuracy", "mean accuracy", against, "length", "tokens")
    for title in (*titles, *(column.title for column in study.columns)):
        shown.add_column(title, no_wrap=True)
    for line in lines:
        shown.add_row(*cells(line, study.columns))
    Console(width=None if sys.stdout.isatty() else 200).print(shown)


def cells(line: Row, columns: Sequence[Column] = ()) -> list[str]:
    """A line of a table: arm, seeds, final and mean accuracy, mean accuracy less that of the
    reference, final length, tokens generated, and the study's own columns."""
    return [
        line["arm"],
        str(line["seeds"]),
        text(line["final"], ".3f"),
        text(line["mean"], ".3f"),
        text(line["against"], "+.3f"),
        text(line["final_length"], ".0f"),
        text(line["generated"], ",.0f"),
        *(text(line[column.title], column.form) for column in columns),
    ]


def text(values: Mapping[str, float] | None, form: str) -> str:
    """`median (least to most)`; `-` where there is nothing."""
    if values is None:
        return "-"
    median, least, most = (format(values[k], form) for k in ("median", "min", "max"))
    return median if least == most else f"{median} ({least} to {most})"


def line_of(row: Row) -> str:
    """A finished run in a line."""
    curve = " ".join(f"{accuracy:.2f}@{version}" for version, _, accuracy, _ in row["evaluations"])
    beside = f"; others took {row['others_cpu_share']:.2f} cores" if row.get("disturbed") else ""
    return f"{row['arm']} seed {row['seed']}: {curve}; {row['final_length']:.0f} tokens{beside}"
