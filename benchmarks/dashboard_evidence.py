"""Table of `docs/operations.md`: how long the pages of a large run take.

In: the rows of `headrace bench dashboard` that are checked in. Out: Markdown; of rows the one of
the largest run counts, and of equals the last.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.fault_evidence import markdown, missing, rows_of


def pages_table() -> str:
    """Markdown: seconds, bytes and memory by page, the worst first; what was promised below."""
    rows = rows_of("dashboard")
    return _table(rows) if rows else f"{missing('dashboard').capitalize()}.\n"


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    row = max(reversed(rows), key=lambda row: int(row["trajectories"]))
    pages = sorted(row["pages"].items(), key=lambda page: -float(page[1]["first_paint_s"]))
    lines = [
        (
            name,
            f"{page['first_paint_s']:.2f} s",
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
