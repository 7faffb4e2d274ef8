"""Rows of benchmarks: measured figures, with the code's commit and the machine.

In: the figures of a benchmark. Out: the same figures with the fields of every row: `format` (the
row's shape), `commit` (of the source tree), `at` (the time), `machine`, and `load` (its load
average). `ResultFile` keeps rows in a JSONL file, one per finished run under its key, so that an
interrupted study goes on where it stopped; `result_line` is the line that `--json` prints.

Rows without `format` are of format 1, which had neither commit nor load. Rows of whole runs have,
since format 3, the state of the machine over the whole measurement
(`benchmarks.kit.machine_state`).
"""

import argparse
import json
import os
import platform
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.host.hardware import detect
from headrace.host.install import ROOT

FORMAT = 3
RESULTS = ROOT / "benchmarks" / "results"
DIRTY = "-dirty"
UNKNOWN = "unknown"


def commit(tree: Path = ROOT) -> str:
    """Return the checked-out commit of `tree`, with `-dirty` if files differ.

    Results do not count: writing a row is no change of the code. `unknown` where `tree` is not
    itself a repository (an installed package, also one inside another repository)."""
    top, head = _git(tree, "rev-parse", "--show-toplevel"), _git(tree, "rev-parse", "HEAD")
    if not top or not head or Path(top).resolve() != tree.resolve():
        return UNKNOWN
    changes = _git(tree, "status", "--porcelain", "--", ".", ":!benchmarks/results")
    return head[:12] + (DIRTY if changes != "" else "")


def _git(tree: Path, *arguments: str) -> str | None:
    """Return git's output; None where there is no git or it fails."""
    command = ["git", "-C", str(tree), *arguments]
    try:
        answer = subprocess.run(command, capture_output=True, text=True)
    except OSError:
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None


def stamp(values: Mapping[str, Any], *, began_at: str | None = None) -> dict[str, Any]:
    """Add the fields of every row to the figures.

    `began_at`: the commit when the measurement began; a tree that is at another one now changed
    under it, and counts as dirty."""
    now = commit()
    if began_at is not None and now != began_at:
        now = began_at.removesuffix(DIRTY) + DIRTY
    return {
        "format": FORMAT,
        "commit": now,
        "at": round(time.time()),
        **values,
        "machine": machine(),
        "load": round(os.getloadavg()[0], 2),
    }


def result_line(result: Mapping[str, Any]) -> str:
    """Format a benchmark's result as the one line that `--json` prints."""
    return json.dumps(stamp(result))


def machine() -> dict[str, Any]:
    """Return the fields of the machine that a row is measured on."""
    hardware = detect()
    return {
        "processor": _processor(),
        "cores": len(hardware.cores),
        "bfloat16": hardware.bfloat16,
        "memory_gib": round(hardware.memory_bytes / 2**30, 1),
        "gpus": len(hardware.gpus),
        "python": platform.python_version(),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def read_rows(path: Path) -> dict[str, dict[str, Any]]:
    """Read the rows of a JSONL file by key, the last of each; none without a file."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {row["key"]: row for row in map(json.loads, lines)}


class ResultFile:
    """Finished runs of a study, by key, in a JSONL file."""

    def __init__(self, path: Path | str) -> None:
        """Create this before the measurement, whose commit the rows name."""
        self.path = Path(path)
        self.rows = read_rows(self.path)
        self._began_at = commit()

    def add(self, key: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Append a row to the file; return it."""
        row = {"key": key, **stamp(values, began_at=self._began_at)}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        self.rows[key] = row
        return row


def report_result(options: argparse.Namespace, result: Mapping[str, Any]) -> int:
    """Report the result of a benchmark; return the exit code, 0.

    A row under its name and the time if `options.rows` is a file, and with `--json` the last line.
    """
    rows = getattr(options, "rows", None)
    if rows is not None:
        result = rows.add(f"{result['name']}/{round(time.time())}", result)
    if options.json:
        print(result_line(result) if rows is None else json.dumps(result))
    return 0
