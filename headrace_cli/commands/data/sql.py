"""`headrace sql`: one SELECT about a run, answered as a table, CSV or JSON.

In: a run, a query. Out: the answer on standard output, and nothing else there.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from decimal import Decimal
from itertools import chain, islice
from pathlib import Path
from threading import TIMEOUT_MAX
from typing import Any

from headrace.errors import UserError, visible
from headrace.run_files import run_folder
from headrace_cli.commands.data.tables import align_columns

MAX_CELL_CHARACTERS = 60
ResultRow = Sequence[Any]


def sql(arguments: argparse.Namespace) -> int:
    if arguments.limit < 0 or arguments.memory < 1:
        raise UserError("--limit is at least 0, and --memory at least 1")
    if not 0 <= arguments.seconds <= TIMEOUT_MAX:
        raise UserError("--seconds is a number of seconds from 0 on")
    run_dir = run_folder.find_run(Path(arguments.root or "runs"), arguments.name)
    query = sys.stdin.read() if arguments.query == "-" else arguments.query
    from storage.queries import ask

    asking = ask(run_dir, query, seconds=arguments.seconds, memory_mib=arguments.memory)
    with asking as answer:
        if arguments.format == "csv":
            _print_csv(answer.columns, answer.rows, safe=arguments.csv_safe)
        elif arguments.format == "json":
            _print_json(answer.columns, answer.rows)
        else:
            _print_table(answer.columns, answer.rows, arguments.limit)
    return 0


def _print_csv(names: Sequence[str], rows: Iterator[ResultRow], *, safe: bool) -> None:
    """Text is in quotes, so that none is read as a number or as nothing."""
    from storage.exports.text import FORMULA

    def cell(value: Any) -> str:
        if value is None or isinstance(value, int | float | Decimal):
            return "" if value is None else str(value)
        text = str(value).replace('"', '""')
        mark = "'" if safe and text.startswith(tuple(FORMULA)) else ""
        return f'"{mark}{text}"'

    for row in chain([names], rows):
        print(",".join(map(cell, row)))


def _print_json(names: Sequence[str], rows: Iterator[ResultRow]) -> None:
    """A list with an object for each row. Values of one name: the last one counts."""
    begun = False
    for row in rows:
        print(",\n" if begun else "[\n", end="")
        values = {name: _plain(value) for name, value in zip(names, row, strict=True)}
        print(json.dumps(values, ensure_ascii=False, default=str), end="")
        begun = True
    print("\n]" if begun else "[]")


def _plain(value: Any) -> Any:
    """The value without numbers that JSON does not have."""
    value = float(value) if isinstance(value, Decimal) else value
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return value


def _print_table(names: Sequence[str], rows: Iterator[ResultRow], limit: int) -> None:
    shown = list(islice(rows, limit) if limit else rows)
    cells = [[_cell(value) for value in row] for row in shown]
    for line in align_columns(names, cells, shown):
        print(line)
    if limit and next(rows, None) is not None:
        print("... and more: --limit 0 prints all of them", file=sys.stderr)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    text = visible(" ".join(str(value).splitlines()))
    return text if len(text) <= MAX_CELL_CHARACTERS else text[: MAX_CELL_CHARACTERS - 3] + "..."
