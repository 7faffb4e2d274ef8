"""A made run is one that its processes could have written: the audit finds nothing in it."""

from pathlib import Path

import pytest

from benchmarks.kit.synthetic_runs import RunShape, make_run
from storage.audit import audit_run

SHAPES = {
    "dashboard": RunShape(512, metric_rows=4_000, batch=64, group=8, figures=1.0, mishaps=True),
    "export": RunShape(512, (160, 160), window=128, chunk=64, masked=4, figures=1.0),
    "restart": RunShape(512, (1, 64), figures=1.0, late=True),
}


@pytest.mark.parametrize("name", SHAPES)
def test_the_audit_finds_nothing(tmp_path: Path, name: str) -> None:
    shape = SHAPES[name]
    report = audit_run(make_run(tmp_path / "run", shape))
    assert report.findings == []
    assert report.balanced
    assert report.looked_at["trajectories"] == shape.trajectories
    assert (report.counts["in_flight"] > 0) is shape.late
