"""Charts as the browser gets them: few bytes, and nothing that has to be made again.

In: an Altair chart, or what makes one. Out: its Vega-Lite specification with the tables it draws,
which can be kept and drawn again. Numbers are of single precision where that is finer than any
screen, texts that repeat are written once, and columns that the chart does not read are left out.
"""

import json
import re
import threading
from collections.abc import Callable
from typing import Any, ParamSpec

import altair as alt
import numpy as np
import pandas as pd
import pyarrow as pa
import streamlit as st

from dashboard.charts.figures import Chart

Spec = dict[str, Any]
P = ParamSpec("P")
SINGLE = 1000.0
"""A number up to this many times as large as the range of its column is kept in single precision:
the error is less than 1e-4 of the range."""
_WHOLE = 2**24
"""Whole numbers up to here are the same in single precision."""
# Altair's transformers and themes are the process's, and pages are drawn by several threads.
_LOCK = threading.Lock()
_COLLECTOR = "headrace_tables"


def spec_of(chart: Chart) -> Spec:
    """The specification of a chart; `datasets` has its tables by name."""
    tables: dict[str, pd.DataFrame] = {}

    def collect(frame: Any, /) -> dict[str, str]:
        for name, known in tables.items():
            if known is frame:
                return {"name": name}
        tables[name := f"rows{len(tables)}"] = frame
        return {"name": name}

    with _LOCK:
        alt.data_transformers.register(_COLLECTOR, collect)
        with alt.data_transformers.enable(_COLLECTOR), alt.theme.enable("none"):
            spec: Spec = chart.to_dict(validate=False)
    text = json.dumps(spec)
    spec["datasets"] = {name: compact(frame, text) for name, frame in tables.items()}
    return spec


def kept(make: Callable[P, Chart], *parts: P.args, **options: P.kwargs) -> Spec:
    """The specification of the chart that `make` makes of these rows. The same rows give the same
    chart for all viewers, built once: building takes about ten times as long as comparing its
    rows."""
    return _kept(f"{make.__module__}.{make.__qualname__}", parts, options, make)


@st.cache_data(max_entries=128, show_spinner=False)
def _kept(name: str, parts: tuple[Any, ...], options: dict[str, Any], _make: Any) -> Spec:
    return spec_of(_make(*parts, **options))


def without_index(frame: pd.DataFrame) -> pa.Table:
    """The columns alone, without what tells pandas how to read them again."""
    return pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata()


def compact(frame: pd.DataFrame, read_by: str = "") -> pd.DataFrame:
    """A frame in few bytes. `read_by`: a specification as JSON; columns that it does not name are
    left out."""
    names = [name for name in map(str, frame.columns) if not read_by or _reads(read_by, name)]
    return pd.DataFrame({name: _column(frame[name]) for name in names})


def _reads(spec: str, name: str) -> bool:
    """Return whether a specification reads a column: as a field, or of a datum."""
    plain = re.escape(name)
    ways = (
        rf'"field": "{plain}"',
        rf'"fields": \[[^\]]*"{plain}"',
        rf"datum\.{plain}\b",
        rf"datum\[.{plain}.\]",
    )
    return any(re.search(way, spec) for way in ways)


def _column(values: "pd.Series[Any]") -> Any:
    values = values.reset_index(drop=True)
    if pd.api.types.is_integer_dtype(values):
        is_small = not values.hasnans and (not len(values) or values.abs().max() < 2**31)
        return values.astype("int32") if is_small else values
    if pd.api.types.is_float_dtype(values):
        numbers = values.to_numpy(dtype=np.float64, na_value=np.nan)
        return numbers.astype(np.float32) if _is_coarse(numbers) else numbers
    if pd.api.types.is_string_dtype(values) or pd.api.types.is_object_dtype(values):
        return values.astype(object).astype("category")
    return values


def _is_coarse(numbers: Any) -> bool:
    """Return whether single precision is enough."""
    known = numbers[np.isfinite(numbers)]
    if not len(known):
        return True
    largest = float(np.abs(known).max())
    if largest < _WHOLE and bool((known == np.floor(known)).all()):
        return True
    return largest <= SINGLE * float(known.max() - known.min()) and largest < 1e30
