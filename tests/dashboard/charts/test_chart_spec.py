"""Charts as the browser gets them: the same numbers in fewer bytes."""

import numpy as np
import pandas as pd
import pytest

from dashboard.charts.chart_spec import compact, kept, spec_of
from dashboard.charts.figures import Chart, array_chart, series_chart


def frame(points: int, *names: str) -> pd.DataFrame:
    rows = [(float(x), name, 0.1 * x) for x in range(points) for name in names]
    return pd.DataFrame(rows, columns=["x", "name", "value"])


def test_a_chart_keeps_what_it_draws_and_nothing_else() -> None:
    spec = spec_of(series_chart(frame(50, "reward/mean").assign(mean=1.0)))
    tables = spec["datasets"]
    named = {layer["data"]["name"] for layer in spec["layer"] if "data" in layer}
    assert named | {spec.get("data", {}).get("name")} >= set(tables)
    (lines,) = [table for table in tables.values() if "value" in table]
    assert lines["x"].tolist() == list(range(50))
    assert lines["value"].tolist() == pytest.approx([0.1 * x for x in range(50)])
    assert "mean" not in lines, "nothing is smoothed"


def test_a_line_of_many_points_is_few_bytes() -> None:
    spec = spec_of(series_chart(frame(400, "reward/mean")))
    assert (
        sum(table.memory_usage(deep=True).sum() for table in spec["datasets"].values()) < 400 * 24
    )


def test_texts_are_written_once() -> None:
    rows = [(update, "of the first tenth", 0.5) for update in range(100)]
    tiles = pd.DataFrame(rows, columns=["update", "bin", "value"])
    spec = spec_of(array_chart(tiles, bins=["of the first tenth"]))
    (table,) = spec["datasets"].values()
    assert table["bin"].dtype == "category"
    assert table["bin"].tolist() == list(tiles["bin"])
    held = compact(tiles.astype({"bin": "string[pyarrow]"}))
    assert held["bin"].tolist() == list(tiles["bin"])
    assert compact(pd.DataFrame({"bin": [None, "a"]}))["bin"].isna().tolist() == [True, False]
    assert len(compact(pd.DataFrame({"bin": []}, dtype=object))) == 0


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([0.25, 0.5, np.nan], "float32"),
        ([1.0, 2.0**24 - 1], "float32"),
        ([1_767_268_800.25, 1_767_268_801.5], "float64"),
        ([2.0**24 + 1, 2.0**24 + 3], "float64"),
        ([7.1, 7.1], "float64"),
        ([], "float32"),
    ],
)
def test_numbers_are_as_fine_as_their_range_needs(values: list[float], kind: str) -> None:
    column = compact(pd.DataFrame({"v": np.array(values)}))["v"]
    assert column.dtype == kind
    known = [value for value in values if np.isfinite(value)]
    span = max(known, default=1.0) - min(known, default=0.0)
    assert column.dropna().tolist() == pytest.approx(known, abs=1e-4 * span + 1e-12)
    assert column.isna().sum() == len(values) - len(known)


def test_whole_numbers_and_truths_stay_what_they_are() -> None:
    found = compact(pd.DataFrame({"n": [1, 2**31], "few": [1, -2], "is": [True, False]}))
    assert found.to_dict("list") == {"n": [1, 2**31], "few": [1, -2], "is": [True, False]}
    assert found["few"].dtype == "int32"


def test_a_chart_of_the_same_rows_is_made_once() -> None:
    made: list[tuple[int, str]] = []

    def make(rows: pd.DataFrame, *, unit: str = "") -> Chart:
        made.append((len(rows), unit))
        return series_chart(rows, unit=unit)

    first = kept(make, frame(50, "reward/mean"))
    assert made == [(50, "")]
    again = kept(make, frame(50, "reward/mean"))
    assert made == [(50, "")]
    assert again["layer"] == first["layer"]
    assert [t.to_dict() for t in again["datasets"].values()] == [
        t.to_dict() for t in first["datasets"].values()
    ]
    kept(make, frame(50, "reward/mean"), unit="share")
    kept(make, frame(50, "reward/mean").assign(value=1.0))
    kept(make, frame(50, "reward/std"))
    kept(make, frame(50, "reward/mean").rename(columns={"value": "other"}).assign(value=1.0))
    assert len(made) == 5, "another option, another value, another name, another column"
