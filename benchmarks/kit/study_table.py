"""Tables of studies: figures of rows by formulas, one line per arm over its seeds.

In: rows by arm and seed. Out: lines as data; a `Table` of cells, as Markdown or on the terminal.
`final` of a row is the mean accuracy of its last two evaluations, `mean` the area under accuracy
against the policy's updates (`benchmarks.kit.arm_run`).
"""

import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

from rich import table as rich_table
from rich.console import Console

from benchmarks.kit.arm_run import metric_of, tokens_at
from benchmarks.kit.arms import Row
from benchmarks.kit.study_file import StudyColumn, value_of

TENTHS = [(i + 0.5) / 10 for i in range(10)]


class Table(NamedTuple):
    """A table's titles and cells."""

    titles: Sequence[str]
    lines: Sequence[Sequence[str]]

    @classmethod
    def of(cls, items: Iterable[Any], columns: Mapping[str, Callable[[Any], str]]) -> Self:
        """Return a table with a line per item; `columns`: by title, the function of its cells."""
        return cls(tuple(columns), [tuple(f(item) for f in columns.values()) for item in items])

    def markdown(self) -> str:
        head = [f"| {' | '.join(self.titles)} |", "|" + "---|" * len(self.titles)]
        return "".join(
            f"{line}\n" for line in (*head, *(f"| {' | '.join(x)} |" for x in self.lines))
        )

    def show(self, title: str) -> None:
        shown = rich_table.Table(title=title, title_justify="left")
        for name in self.titles:
            shown.add_column(name, no_wrap=True)
        for line in self.lines:
            shown.add_row(*line)
        Console(width=None if sys.stdout.isatty() else 200).print(shown)


def figure_of(row: Row, formula: str) -> Any:
    """Evaluate a formula for a row.

    It names the row's fields, and lists: of each evaluation the policy's `versions`, `seconds` of
    training, `accuracies`, `lengths` of answers, tokens `generated` until then (those of the value
    model's warm-up included); `metric(NAME)` at the updates `updates_of(NAME)` of the policy; the
    middles of ten `tenths`; and an `average`."""
    points = row.get("evaluations", ())
    known = {
        **row,
        "versions": [float(version) for version, *_ in points],
        "seconds": [at for _, at, *_ in points],
        "accuracies": [accuracy for _, _, accuracy, _ in points],
        "lengths": [length for *_, length in points],
        "metric": lambda name: [value for _, value in metric_of(row, name)],
        "updates_of": lambda name: [float(update) for update, _ in metric_of(row, name)],
        "tenths": TENTHS,
        "average": statistics.fmean,
    }
    if "ledger/generated" in row.get("series", ()):
        known["generated"] = [tokens_at(row, version) for version, *_ in points]
    return value_of(formula, known)


def lines_of(
    by_arm: Mapping[str, Mapping[int, Row]], *, reference: str, columns: Sequence[StudyColumn] = ()
) -> list[Row]:
    """Return one line for each arm's rows by seed.

    `against`: mean accuracy less that of the arm `reference` at the same seed, None without one."""
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
            values = [float(figure_of(row, column.figure)) for row in found.values()]
            line[column.title] = spread(values)
        lines.append(line)
    return lines


def arms_table(
    lines: Iterable[Row], *, reference: str, columns: Sequence[StudyColumn] = ()
) -> Table:
    """Return a table with one line per arm: medians with least and largest.

    Mean accuracy also less that of the reference, seed by seed; and the study's own columns."""
    figures = {
        "final accuracy": ("final", ".3f"),
        "mean accuracy": ("mean", ".3f"),
        f"less that of *{reference}*": ("against", "+.3f"),
        "final length": ("final_length", ".0f"),
        "tokens generated": ("generated", ",.0f"),
        **{column.title: (column.title, column.form) for column in columns},
    }
    cells = [
        (
            line["arm"],
            str(line["seeds"]),
            *(text(line[name], form) for name, form in figures.values()),
        )
        for line in lines
    ]
    return Table(("arm", "seeds", *figures), cells)


def beside(rows: Sequence[Row]) -> dict[str, float]:
    """Return others' and the host's maximum usage in cores, and disturbed runs."""
    return {
        "others_cpu_share": max(row["others_cpu_share"] for row in rows),
        "steal_share": max(row["steal_share"] for row in rows),
        "disturbed": sum(row["disturbed"] for row in rows),
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def text(values: Mapping[str, float] | None, form: str) -> str:
    """Format as `median (least to most)`; `-` where there is nothing."""
    if values is None:
        return "-"
    median, least, most = (format(values[k], form) for k in ("median", "min", "max"))
    return median if least == most else f"{median} ({least} to {most})"


def line_of(row: Row) -> str:
    """Describe a finished run in a line."""
    points = " ".join(f"{accuracy:.2f}@{version}" for version, _, accuracy, _ in row["evaluations"])
    beside = f"; others took {row['others_cpu_share']:.2f} cores" if row.get("disturbed") else ""
    return f"{row['arm']} seed {row['seed']}: {points}; {row['final_length']:.0f} tokens{beside}"
