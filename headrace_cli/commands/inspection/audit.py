"""`headrace audit`: verify a run's token accounting, or repair its journal.

Exit codes: 0 balanced and nothing found, or repaired so that it can be resumed; 1 something is
wrong (with --repair: it cannot be resumed), 2 there is no run.
"""

import argparse
import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from headrace.run_files import run_folder

if TYPE_CHECKING:
    from storage.audit import AuditReport


def audit(arguments: argparse.Namespace) -> int:
    """Recount, check, and print the findings; with --repair, repair the journal first."""
    run_dir = run_folder.find_run(Path(arguments.root or "runs"), arguments.name)
    mended = _repair(run_dir, arguments) if arguments.repair else None
    report = _report(run_dir)
    if arguments.json:
        print(json.dumps(to_builtins(report) | ({} if mended is None else {"repair": mended})))
    else:
        with contextlib.suppress(SystemExit):  # rich's, where the pipe is closed
            _print(report)
    if mended is not None:
        return 0 if mended["goes_on"] else 1
    return 0 if report.is_clean else 1


def _report(run_dir: Path) -> "AuditReport":
    """Run the audit, with a progress bar on a terminal."""
    from storage.audit import audit_run

    console = Console(stderr=True)
    if not console.is_terminal:
        return audit_run(run_dir)
    columns = (TextColumn("records"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)
        return audit_run(run_dir, lambda done, total: bar.update(task, completed=done, total=total))


def _print(report: "AuditReport") -> None:
    console = Console(highlight=False)
    looked = ", ".join(
        f"{number:,} {name.replace('_', ' ')}" for name, number in report.looked_at.items()
    )
    console.print(f"run {report.run}, record format {report.format}: {looked}")
    table = Table("account", "tokens", box=None)
    table.columns[1].justify = "right"
    for name, value in report.counts.items():
        if isinstance(value, dict):
            table.add_row(name, f"{sum(value.values()):,}")
            for reason, tokens in value.items():
                table.add_row(f"  {reason}", f"{tokens:,}")
        else:
            table.add_row(name, f"{value:,}")
    console.print(table)
    if report.findings:
        found = Table("kind", "where", "finding", box=None)
        for each in report.findings:
            found.add_row(each.kind, escape(each.where), escape(each.text))
        console.print(found)
    balance = "balanced" if report.balanced else "NOT balanced"
    console.print(f"{balance}, findings: {len(report.findings)}")


def _repair(run_dir: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Repair the journal and print the losses; with --json, on standard error."""
    from storage.audit import repair

    done = repair(run_dir)
    console = Console(stderr=arguments.json, highlight=False, markup=False)
    if done.why is None:
        console.print(f"{run_dir.name}: every one of {done.kept:,} records can be used")
    else:
        lost = ", ".join(f"{number:,} {kind}" for kind, number in sorted(done.lost_kinds.items()))
        console.print(f"{run_dir.name}: {done.why}")
        console.print(f"kept {done.kept:,} records, lost {done.lost:,} ({lost or 'none'})")
        if done.damaged:
            console.print(f"the damaged journal is {done.damaged}")
        if done.checkpoints:
            console.print(f"checkpoints of lost updates are now {', '.join(done.checkpoints)}")
    if done.made_anew:
        console.print("SQL was made anew")
    nothing = (
        "nothing is left that it can go on from: bring back a checkpoint of its last updates, "
        "or start a new run"
    )
    console.print(f"it goes on from {done.goes_on}" if done.goes_on else nothing)
    if done.diagnostics:
        lost = f"{done.lost_diagnostics:,} windows' that can be counted are lost"
        console.print(f"damaged token diagnostics are {done.diagnostics}; {lost}")
    repaired: dict[str, Any] = to_builtins(done)
    return repaired
