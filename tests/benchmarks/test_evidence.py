"""The evidence page is what the rows say, and every plot can be drawn from the rows there are."""

from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from benchmarks import evidence
from benchmarks.plots import STYLE
from benchmarks.race import Race
from benchmarks.race_settings import GRIDS
from benchmarks.rows import Rows
from tests.benchmarks.race_rows import SMALL, add, rising


def test_the_page_is_what_the_rows_say() -> None:
    old = evidence.PAGE.read_text(encoding="utf-8")
    assert evidence.page(old) == old


def test_every_table_has_its_place_on_the_page() -> None:
    text = evidence.PAGE.read_text(encoding="utf-8")
    assert {match[2] for match in evidence.PART.finditer(text)} == set(evidence.tables())


def test_a_race_that_has_rows_has_a_line_for_each_arm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = Rows(tmp_path / "race.jsonl")
    for mode, slope in (("synchronous", 0.03), ("streaming", 0.06)):
        for seed in SMALL.seeds:
            add(rows, mode, GRIDS[mode].start, seed, rising(slope))
    monkeypatch.setattr(evidence, "SETTINGS", {"small": SMALL})
    monkeypatch.setattr(evidence, "race_path", lambda name: tmp_path / f"{name}.jsonl")
    monkeypatch.setattr(evidence, "Race", lambda setting: Race(setting, tmp_path))
    assert evidence.race_table("small").startswith("Not measured yet")
    monkeypatch.setattr(evidence, "race_path", lambda name: rows.path)
    text = evidence.race_table("small")
    assert "| streaming | 3 | 14.4 | 28.8 | 1,638 | 1.98 | 1.98 to 1.98 | 0.900 | 0.450 |" in text
    assert "| synchronous | 100 | generator-0 70, learner-0 60 | 0.10, 0.30 | 1.50 |" in text
    assert "not tuned alike" in text


@pytest.mark.parametrize("name", list(evidence.PLOTS))
def test_plots_are_drawn_and_stand_on_the_page(name: str, tmp_path: Path) -> None:
    with plt.rc_context(STYLE):
        evidence.PLOTS[name](tmp_path / "plot.svg")
    assert (tmp_path / "plot.svg").read_text(encoding="utf-8").startswith("<?xml")
    assert f"images/evidence/{name}.svg" in evidence.PAGE.read_text(encoding="utf-8")
