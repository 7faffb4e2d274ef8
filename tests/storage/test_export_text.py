"""Columns as the text of JSON and CSV, against the standard library's own readers."""

import csv
import io
import json
import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.exports.leading_rows import DECIMAL, NOTHING, PLAIN, SPECIAL, WHOLE, shown
from storage.exports.text import csv_lines, json_lines

TEXT = st.text(st.characters(blacklist_categories=["Cs"]), max_size=8)
FLOAT = st.floats(width=32)
ROW = st.fixed_dictionaries(
    {
        "whole": st.none() | st.integers(-(2**63), 2**63 - 1),
        "number": st.none() | st.floats(),
        "single": st.none() | FLOAT,
        "truth": st.none() | st.booleans(),
        "text": st.none() | TEXT,
        "word": st.none() | st.sampled_from(["a", 'say "b"', "c,\nd", ""]),
        "list": st.none() | st.lists(st.none() | FLOAT, max_size=3),
        "chat": st.lists(st.fixed_dictionaries({"role": TEXT, "content": st.none() | TEXT})),
    }
)
SCHEMA = pa.schema(
    {
        "whole": pa.int64(),
        "number": pa.float64(),
        "single": pa.float32(),
        "truth": pa.bool_(),
        "text": pa.string(),
        "word": pa.dictionary(pa.int32(), pa.string()),
        "list": pa.list_(pa.float32()),
        "chat": pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())])),
    }
)


def batch_of(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    columns = [pa.array([row[field.name] for row in rows], type=field.type) for field in SCHEMA]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def plain(value: Any) -> Any:
    """What JSON can say of a value."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value


@given(st.lists(ROW, min_size=1, max_size=5), st.integers(0, 2))
def test_json_says_what_the_columns_hold(rows: list[dict[str, Any]], first: int) -> None:
    batch = batch_of(rows).slice(first)
    lines = [line.as_py() for line in json_lines(batch)]
    assert all(line.endswith("}\n") for line in lines)
    found = [json.loads(line) for line in lines]
    assert found == [
        {name: plain(value) for name, value in row.items()} for row in batch.to_pylist()
    ]
    for row in found:
        assert row["number"] is None or type(row["number"]) is float


@given(st.lists(ROW, min_size=1, max_size=5), st.integers(0, 2))
def test_csv_says_what_the_columns_hold(rows: list[dict[str, Any]], first: int) -> None:
    batch = batch_of(rows).slice(first)
    text = "".join(line.as_py() for line in csv_lines(batch))
    found = list(csv.reader(io.StringIO(text, newline="")))
    assert len(found) == batch.num_rows
    for fields, row in zip(found, batch.to_pylist(), strict=True):
        for field, (name, value) in zip(fields, row.items(), strict=True):
            value = plain(value)
            if isinstance(value, list):
                assert json.loads(field) == value
            elif isinstance(value, bool):
                assert field == str(value).lower()
            elif name in ("number", "single") and value is not None:
                assert float(field) == value
                assert set(field) & set(".e")
            else:
                assert field == ("" if value is None else str(value))


def test_no_text_is_a_formula_of_a_spreadsheet() -> None:
    texts = ["=1+1", "+7", "-7", "@a", "\tb", "7", "a=1", "", None, "x\n=y"]
    words = pa.array(texts).dictionary_encode()
    batch = pa.RecordBatch.from_arrays(
        [pa.array(texts), words, pa.array([-1.0] * 10)], ["a", "b", "c"]
    )
    text = "".join(line.as_py() for line in csv_lines(batch, safe=True))
    found = list(csv.reader(io.StringIO(text, newline="")))
    expected = [f"'{text}" for text in texts[:5]] + [*texts[5:8], "", texts[-1]]
    assert found == [[value, value, "-1.0"] for value in expected]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("7", WHOLE), (" -7 ", WHOLE), ("007", WHOLE), ("7.5", DECIMAL), (".5e-3", DECIMAL),
        ("2026-11-21", SPECIAL), ("12:30:00Z", SPECIAL), ("true", SPECIAL), ("NaN", SPECIAL),
        ("-Infinity", SPECIAL), ("1/2", SPECIAL), ("x", PLAIN), ("1,5", PLAIN), ("7 cm", PLAIN),
        (None, NOTHING),
    ],
)  # fmt: skip
def test_what_text_reads_like(value: str | None, kind: int) -> None:
    column = pa.array([value], type=pa.string())
    assert shown(column, by_text=True).tolist() == [kind]
    assert shown(column.dictionary_encode(), by_text=True).tolist() == [kind]
    assert shown(column, by_text=False).tolist() == [NOTHING if value is None else PLAIN]


def test_a_list_without_a_value_shows_nothing() -> None:
    column = pa.array([[], None, [None], [None, 1.0], []], type=pa.list_(pa.float32()))
    assert shown(column, by_text=False).tolist() == [NOTHING] * 3 + [PLAIN, NOTHING]
    assert shown(column.slice(2), by_text=True).tolist() == [NOTHING, PLAIN, NOTHING]
