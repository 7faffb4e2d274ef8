"""Table of `docs/operations.md`: how long the pages of a large run take.

In: the rows of `headrace bench dashboard` that are checked in. Out: Markdown; of rows the one of
the largest run counts, and of equals the last. What was measured in a private window stands below.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.fault_evidence import markdown, missing, rows_of


def pages_table() -> str:
    """Markdown: seconds, bytes and memory by page, the worst first; what was promised below."""
    rows = rows_of("dashboard")
    kept = [row for row in rows if not row["private"]]
    if not kept:
        return f"{missing('dashboard').capitalize()}.\n"
    row = _largest(kept)
    private = [each for each in rows if each["private"]]
    return _table(row) + (_private(_largest(private)) if private else "")


def _largest(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    return max(reversed(rows), key=lambda row: int(row["trajectories"]))


def _table(row: Mapping[str, Any]) -> str:
    pages = sorted(row["pages"].items(), key=lambda page: -float(page[1]["first_paint_s"]))
    lines = [
        (
            name,
            _paint(page),
            f"{page['whole_s']:.2f} s",
            f"{page['cpu_s']:.2f} s",
            f"{page['bytes_per_paint'] / 1000:,.0f} kB",
            f"{page['bytes_per_refresh'] / 1000:,.0f} kB" if "bytes_per_refresh" in page else "",
        )
        for name, page in pages
    ]
    promised = ("promised", "1.5 s", "", "0.5 s", "", "50 kB")
    head = ("page", "first paint", "whole", "server's processor", "bytes", "bytes of a refresh")
    beside = " Others were busy beside it." if row["disturbed"] else ""
    return markdown(head, [promised, *lines]) + (
        f"\n{row['metric_rows']:,} metric rows and {row['trajectories']:,} trajectories. From a "
        f"filter's change to its rows: {row['filter_s']:.2f} s\n(promised 0.3 s). The server's "
        f"memory: at most {row['memory_mb']:,.0f} MB (promised 500 MB).{beside}\n"
    )


def _paint(page: Mapping[str, Any]) -> str:
    return f"{page['first_paint_s']:.2f} s (at most {page['first_paint_most_s']:.2f})"


def _private(row: Mapping[str, Any]) -> str:
    """What a window takes that keeps no code."""
    pages = row["pages"].items()
    first = sorted(pages, key=lambda page: -float(page[1]["first_paint_s"]))
    said = ", ".join(f"{name} {page['first_paint_s']:.2f} s" for name, page in first)
    return f"In a private window (`--private`): {said}.\n"
