"""`headrace export`: what a run holds, as a file.

In: a run, a kind of rows, a path. Out: the file, and what is in it as a line; on a terminal a bar
while it is made.
"""

import argparse
import gc
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import UserError
from headrace.run_files import run_folder
from headrace_cli.launch.display.units import duration, size

LARGE_ROW_BYTES = 200
"""Estimated bytes per token row: reached only by text with most of the columns."""

if TYPE_CHECKING:
    from storage.exports import ExportProgress as ExportProgress


def export(arguments: argparse.Namespace) -> int:
    run_dir = run_folder.find_run(Path(arguments.root or "runs"), arguments.name)
    named = arguments.format or arguments.out.suffix or os.path.isdir(arguments.out)
    if not named:
        raise UserError("name the format: --format parquet, or an --out that ends in .parquet")
    columns = arguments.columns and [name.strip() for name in arguments.columns.split(",")]
    same = ("out", "where", "force", "schema", "csv_safe")
    options = {name: getattr(arguments, name) for name in same}
    began = time.monotonic()
    with _bar(arguments.kind) as watch, _without_collector():
        from storage.exports import export as write_export

        written = write_export(
            run_dir, arguments.kind, arguments.format, columns=columns, watch=watch, **options
        )
    print(
        f"{written.rows:,} rows of {arguments.kind} in {arguments.out}: "
        f"{size(written.num_bytes)}, {duration(time.monotonic() - began)}"
    )
    if written.left_out:
        print(f"left out, without a value in any row: {', '.join(written.left_out)}")
    each = written.num_bytes / max(1, written.rows)
    if not written.rows:
        print(f"no row of {arguments.kind} matches", arguments.where or "", file=sys.stderr)
    elif arguments.kind == "tokens" and each > LARGE_ROW_BYTES:
        print(
            f"{each:,.0f} bytes a row: as text, each has the facts of its trajectory again. "
            "Parquet has them once and takes about a hundredth; --columns names fewer",
            file=sys.stderr,
        )
    return 0


@contextmanager
def _without_collector() -> Iterator[None]:
    """Turn off garbage collection, an eighth of the work on millions of values without cycles."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def _bar(kind: str) -> "Iterator[Callable[[ExportProgress], None] | None]":
    """Yield a progress bar's update on a terminal, else None."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[rows]:,} rows"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(kind, total=1.0, rows=0)
        yield lambda now: progress.update(task, completed=now.share, rows=now.rows)
