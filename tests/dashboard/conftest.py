"""One scripted run for all tests of the pages."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import streamlit as st

from dashboard.charts import chart_spec, metric_curves
from dashboard.reads import data
from dashboard.reads.throttled import ThrottledReads
from tests.dashboard.scripted_run import write_run


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of 24 updates with a rollback; its parent folder is the root."""
    return write_run(tmp_path_factory.mktemp("runs"))


@pytest.fixture(autouse=True)
def _fresh_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    st.cache_data.clear()
    monkeypatch.setattr(data, "THROTTLED", ThrottledReads())
    monkeypatch.setattr(data, "_PICTURES", {})


@pytest.fixture(autouse=True)
def _own_main_module() -> Iterator[None]:
    """AppTest leaves its script as `__main__`; what spawns processes later would run it again."""
    main = sys.modules["__main__"]
    yield
    sys.modules["__main__"] = main


@pytest.fixture
def made_charts(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every chart that pages make from now on, as they make it; what is kept is not made again."""
    made: list[Any] = []
    spec_of = chart_spec.spec_of

    def noted(chart: Any) -> Any:
        made.append(chart)
        return spec_of(chart)

    for module in (chart_spec, metric_curves):
        monkeypatch.setattr(module, "spec_of", noted)
    return made
