"""What stands on the page of large runs is reckoned from rows alone."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.kit.rows import Rows
from benchmarks.robustness import fault_evidence

PAGE: dict[str, Any] = {
    "first_paint_s": 1.0, "first_paint_most_s": 1.2, "whole_s": 1.5, "cpu_s": 0.2,
    "bytes_per_paint": 50_616,
}  # fmt: skip
RUN: dict[str, Any] = {
    "metric_rows": 20_000, "trajectories": 1_000, "filter_s": 0.18, "memory_mb": 466.2,
    "disturbed": False, "private": False, "pages": {"query": PAGE},
}  # fmt: skip


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rows:
    monkeypatch.setattr(fault_evidence, "RESULTS", tmp_path)
    return Rows(tmp_path / "dashboard.jsonl")


def test_what_has_no_row_says_so(rows: Rows) -> None:
    assert fault_evidence.pages_table() == "Not measured: `headrace bench dashboard`.\n"


def test_the_largest_run_counts_and_the_slowest_page_is_first(rows: Rows) -> None:
    pages = {
        "query": PAGE,
        "critic": PAGE | {"first_paint_s": 1.757, "bytes_per_refresh": 22_426},
    }
    for at, run in enumerate(
        (
            RUN | {"trajectories": 5_000, "filter_s": 9.0},
            RUN | {"trajectories": 5_000, "pages": pages},
            RUN | {"memory_mb": 9.0},
            RUN | {"trajectories": 5_000, "private": True, "pages": pages},
        )
    ):
        rows.add(f"dashboard/{at}", run)
    table = fault_evidence.pages_table().splitlines()
    assert table[2].startswith("| promised | 1.5 s |")
    assert table[3] == "| critic | 1.76 s (at most 1.20) | 1.50 s | 0.20 s | 51 kB | 22 kB |"
    assert table[4] == "| query | 1.00 s (at most 1.20) | 1.50 s | 0.20 s | 51 kB |  |"
    assert "20,000 metric rows and 5,000 trajectories" in table[6]
    assert "its rows: 0.18 s" in table[6]
    assert "466 MB" in table[7]
    assert table[8] == "In a private window (`--private`): critic 1.76 s, query 1.00 s."
