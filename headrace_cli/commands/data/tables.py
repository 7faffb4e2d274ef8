"""Figures as text: names with values, and tables.

In: nested figures as JSON has them. Out: lines for a terminal. A dict is a name for each of its
figures; a list of dicts, or a dict of dicts that have the same keys, is a table.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headrace.errors import moment, visible

_NAME_WIDTH = 28
_MOMENTS = ("at", "started_at")


def figure_lines(row: Mapping[str, Any]) -> Iterator[str]:
    """All figures: first those that are single values, then the tables, each under its name."""
    figures = [(name, value, _rows(value)) for name, value in _leaves(row)]
    width = max([_NAME_WIDTH, *(len(name) for name, _, rows in figures if rows is None)])
    for name, value, rows in figures:
        if rows is None:
            texts = value if isinstance(value, list) and value else [cell(value, name)]
            yield from (visible(f"{name:<{width}} {text}") for text in texts)
    for name, _, rows in figures:
        if rows is not None:
            yield ""
            yield name
            yield from (f"  {line}" for line in table_lines(rows))


def table_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield rows under column names, numbers to the right, columns without any value left out."""
    names = [name for name in rows[0] if any(row.get(name) is not None for row in rows)]
    cells = [[cell(row.get(name), name) for name in names] for row in rows]
    values = [[row.get(name) for name in names] for row in rows]
    return align_columns(names, cells, values)


def align_columns(
    names: Sequence[str], cells: Sequence[Sequence[str]], values: Sequence[Sequence[Any]]
) -> Iterator[str]:
    """Cells under the names of their columns; those whose `values` are numbers to the right."""
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    right = [_is_number(column) for column in zip(*values, strict=True)] or [False] * len(names)
    for line in [names, *cells]:
        parts = [
            f"{text:>{width}}" if to_right else f"{text:<{width}}"
            for text, width, to_right in zip(line, widths, right, strict=True)
        ]
        yield "  ".join(parts).rstrip()


def cell(value: Any, name: str = "") -> str:
    """One value as text; what is not known is a dash."""
    if value is None or value in ({}, [], ""):
        return "-"
    if name.split(" ")[-1] in _MOMENTS and isinstance(value, int | float):
        return moment(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return visible(str(value))
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def _leaves(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Names with what is no further dict of single values."""
    if isinstance(value, Mapping) and value and _rows(value) is None:
        for key, inner in value.items():
            yield from _leaves(inner, f"{prefix} {key}".strip())
    else:
        yield prefix, value


def _rows(value: Any) -> list[Mapping[str, Any]] | None:
    """The rows of what is a table; None for anything else."""
    if isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
        return list(value)
    if not isinstance(value, Mapping) or not value:
        return None
    inner = list(value.values())
    if not all(isinstance(item, Mapping) for item in inner):
        return None
    if len({tuple(item) for item in inner}) != 1 or not inner[0]:
        return None
    if any(isinstance(part, Mapping | list) for item in inner for part in item.values()):
        return None
    return [{"name": name, **item} for name, item in value.items()]


def _is_number(values: Sequence[Any]) -> bool:
    known = [value for value in values if value is not None]
    return bool(known) and all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in known
    )
