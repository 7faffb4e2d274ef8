"""Fuzzing, which is in the tests now: `pytest tests/fuzz`, and `--hypothesis-profile=long`.

In: rows of `benchmarks/results/fuzz.jsonl`, each of which counts what became of some inputs of a
target (codec, intake, config, filter, journal). Out: their sums for the evidence.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from headrace.errors import UserError

TARGETS = ("codec", "intake", "config", "filter", "journal")
LONG = "pytest tests/fuzz --hypothesis-profile=long --timeout=0"
Row = dict[str, Any]


def summary(rows: Iterable[Row]) -> Row:
    """Counts by target, and all findings."""
    counts: Counter[str] = Counter()
    outcomes: dict[str, Counter[str]] = {}
    findings: list[Row] = []
    for row in rows:
        counts[row["target"]] += row["inputs"]
        outcomes.setdefault(row["target"], Counter()).update(row["outcomes"])
        findings += [{"target": row["target"], **finding} for finding in row["findings"]]
    return {
        "inputs": sum(counts.values()),
        "targets": {name: dict(outcomes[name], inputs=counts[name]) for name in sorted(counts)},
        "findings": findings,
    }


def main(argv: Sequence[str]) -> int:
    """UserError that says which command it is now."""
    raise UserError(f"fuzzing is in the tests now: {LONG} (shorter without the options)")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
