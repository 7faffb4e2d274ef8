"""Charts of a run's metrics, kept until they would look otherwise.

In: a run as it stands, names of metrics, how they are drawn. Out: specifications that are drawn as
they are. A page that repaints so pays for what has changed, and a chart of a live run is rebuilt
when its newest pixel is complete.
"""

from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd
import streamlit as st

from dashboard.charts.chart_spec import Spec, spec_of
from dashboard.charts.figures import array_chart, series_chart
from dashboard.formatting import answers_address, series_words
from dashboard.reads.data import RunData
from headrace.metrics.health_ranges import BandLimits, limits_of
from headrace.metrics.registry import METRICS, info_of
from storage.queries.metrics import Axis


class MetricChart(NamedTuple):
    """A chart of metrics (None: there are no values yet), what it shows in words, and the newest
    value of the first metric."""

    spec: Spec | None
    words: str
    newest: float | None


@st.cache_data(max_entries=256, show_spinner=False)
def series_of(
    run_dir: str,
    picture: str,
    _run: RunData,
    names: tuple[str, ...],
    x: Axis,
    samples: bool,
    bounds: tuple[str, ...],
    smoothing: float,
) -> MetricChart:
    """The metrics over an axis; `run_dir` and `picture` are the run's `RunData.picture`."""
    known = _run.series(names, x, samples=samples).dropna(subset=["value"])
    if known.empty:
        return MetricChart(None, "", None)
    unit = info_of(names[0]).unit
    chart = series_chart(
        known,
        x=x,
        names=names,
        unit=unit,
        bounds=bounds,
        smoothing=smoothing,
        band=_band(known, names),
        link="" if samples else answers_address(_run.line.run_dir.name),
    )
    first = known[known["name"] == names[0]]["value"]
    newest = float(first.iloc[-1]) if len(first) else None
    return MetricChart(spec_of(chart), series_words(known, x, unit), newest)


@st.cache_data(max_entries=64, show_spinner=False)
def array_of(run_dir: str, picture: str, _run: RunData, name: str) -> Spec | None:
    """A metric that is an array, over the updates; None where there are no values yet."""
    known = _run.array(name).dropna(subset=["value"])
    info = METRICS[name]
    return None if known.empty else spec_of(array_chart(known, bins=info.bins, unit=info.unit))


def _band(known: pd.DataFrame, names: Sequence[str]) -> BandLimits | None:
    """The healthy band of a chart; none where its metrics have different ones."""
    values = {name: known[known["name"] == name]["value"] for name in names}
    found = {limits_of(name, values[name]) for name in names} - {None}
    return found.pop() if len(found) == 1 else None
