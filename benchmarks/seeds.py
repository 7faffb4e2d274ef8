"""Studies that are a row a seed: the options they share, and the rows that are missing.

In: a command line, and what makes the row of a key. Out: the rows that were asked for, in order.
Promise: a study that was interrupted goes on where it stopped.
"""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.command_line import command_line, take_rows
from benchmarks.rows import Rows

Row = dict[str, Any]


def parser(
    name: str, description: str | None, rows: Path, *, seeds: int
) -> argparse.ArgumentParser:
    """`--seeds`, `--rows` and `--json` of `headrace bench NAME`."""
    made = command_line(name, description)
    made.add_argument("--seeds", type=int, default=seeds, help="models and samplings")
    take_rows(made, rows, resumes=True)
    return made


def rows_of(path: Path, wanted: Mapping[str, Callable[[], Mapping[str, Any]]]) -> list[Row]:
    """The rows of a file under these keys; what is not there is made and kept."""
    rows = Rows(path)
    for key, make in wanted.items():
        if key not in rows.rows:
            rows.add(key, make())
    return [rows.rows[key] for key in wanted]
