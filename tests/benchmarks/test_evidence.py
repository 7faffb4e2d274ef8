"""The evidence page is what the rows say, and every plot can be drawn from the rows there are."""

from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from benchmarks import evidence
from benchmarks.plots import STYLE


def test_the_page_is_what_the_rows_say() -> None:
    old = evidence.PAGE.read_text(encoding="utf-8")
    assert evidence.page(old) == old


def test_every_table_has_its_place_on_the_page() -> None:
    text = evidence.PAGE.read_text(encoding="utf-8")
    assert {match[2] for match in evidence.PART.finditer(text)} == set(evidence.tables())


@pytest.mark.parametrize("name", list(evidence.PLOTS))
def test_plots_are_drawn_and_stand_on_the_page(name: str, tmp_path: Path) -> None:
    with plt.rc_context(STYLE):
        evidence.PLOTS[name](tmp_path / "plot.svg")
    assert (tmp_path / "plot.svg").read_text(encoding="utf-8").startswith("<?xml")
    assert f"images/evidence/{name}.svg" in evidence.PAGE.read_text(encoding="utf-8")
