"""Studies that are a row a seed, each of which passes a gate or fails it.

In: a command line, and what makes the row of a key. Out: the rows that were asked for, shown in
order. Promise: a study that was interrupted goes on where it stopped.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers.utils.logging import disable_progress_bar

from benchmarks.kit.command_line import command_line, take_rows
from benchmarks.kit.rows import Rows, result_line

Row = dict[str, Any]


def parser(
    name: str, description: str | None, rows: Path, *, seeds: int
) -> argparse.ArgumentParser:
    """`--seeds`, `--rows` and `--json` of `headrace bench NAME`."""
    made = command_line(name, description)
    made.add_argument("--seeds", type=int, default=seeds, help="models and samplings")
    take_rows(made, rows, resumes=True)
    return made


def conclude(
    name: str,
    options: argparse.Namespace,
    wanted: Mapping[str, Callable[[], Row]],
    show: Callable[[Sequence[Row]], None],
) -> int:
    """Make the wanted rows that `--rows` lacks, show all; 1 where one fails its gate."""
    torch.set_num_threads(1)
    disable_progress_bar()
    rows = Rows(options.rows)
    for key, make in wanted.items():
        if key not in rows.rows:
            rows.add(key, make())
    found = [rows.rows[key] for key in wanted]
    show(found)
    if options.json:
        print(result_line({"name": name, "rows": found}))
    return 0 if all(row["passed"] for row in found) else 1
