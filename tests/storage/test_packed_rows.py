"""Rows that share values are the rows that were put in, whatever is done with them."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.exports import packed_rows
from storage.exports.columns import WORD
from storage.exports.leading_rows import PLAIN, LeadingRows, shown
from storage.exports.packed_rows import PackedRows, RowBuffer, plain, repeated

KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "whole": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "small": (pa.int8(), st.integers(-128, 127)),
    "number": (pa.float64(), st.floats(allow_nan=False)),
    "truth": (pa.bool_(), st.booleans()),
    "text": (pa.string(), st.text(max_size=3)),
    "word": (WORD, st.sampled_from(["a", "b", ""])),
}
SHARED = pa.schema([pa.field("word", WORD), pa.field("reward", pa.float64())])
OWN = pa.schema([pa.field("position", pa.int32()), pa.field("mark", WORD)])
SCHEMA = pa.schema([OWN.field("mark"), *SHARED, OWN.field("position")])
OWNER = st.tuples(st.sampled_from(["a", "b", None]), st.none() | st.integers(0, 3).map(float))
OWNERS = st.lists(st.tuples(OWNER, st.lists(st.none() | st.sampled_from("xy"), max_size=4)))


def array(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(kind):
        return pa.array(values, pa.string()).dictionary_encode()
    return pa.array(values, kind)


@given(st.data(), st.sampled_from(sorted(KINDS)))
def test_each_value_so_many_times(data: st.DataObject, name: str) -> None:
    kind, values = KINDS[name]
    pairs = data.draw(st.lists(st.tuples(st.none() | values, st.integers(0, 4)), max_size=6))
    column = array([value for value, _ in pairs], kind)
    sizes = np.array([size for _, size in pairs], np.int64)
    found = repeated(column, sizes)
    assert found.type == kind
    assert found.to_pylist() == [value for value, size in pairs for _ in range(size)]


def packed(
    owners: list[tuple[tuple[Any, Any], list[Any]]],
) -> tuple[PackedRows, list[dict[str, Any]]]:
    """Rows, and the same rows one by one."""
    shared = [array([who[at] for who, _ in owners], field.type) for at, field in enumerate(SHARED)]
    marks = [mark for _, marks in owners for mark in marks]
    own = [array(list(range(len(marks))), pa.int32()), array(marks, WORD)]
    rows = PackedRows(
        SCHEMA,
        pa.RecordBatch.from_arrays(own, schema=OWN),
        pa.RecordBatch.from_arrays(shared, schema=SHARED),
        np.array([len(marks) for _, marks in owners], np.int64),
    )
    each = [(who, mark) for who, marks in owners for mark in marks]
    return rows, [
        {"mark": mark, "word": who[0], "reward": who[1], "position": number}
        for number, (who, mark) in enumerate(each)
    ]


@given(OWNERS)
def test_rows_are_those_that_were_put_in(owners: Any) -> None:
    rows, expected = packed(owners)
    assert rows.num_rows == len(expected)
    batch = rows.batch()
    batch.validate(full=True)
    assert batch.schema == SCHEMA
    assert batch.to_pylist() == expected
    assert [rows.row(number).to_pylist()[0] for number in range(len(expected))] == expected
    chosen = rows.batch(["position", "word"]).to_pylist()
    assert chosen == [{"position": r["position"], "word": r["word"]} for r in expected]


@given(OWNERS)
def test_a_condition_leaves_the_rows_that_it_holds_for(owners: Any) -> None:
    rows, expected = packed(owners)
    condition = (pc.field("mark") == "x") & (pc.field("reward") > 0)
    found = rows.where(condition, {"mark", "reward"})
    left = [row for row in expected if row["mark"] == "x" and (row["reward"] or 0) > 0]
    assert found.batch().to_pylist() == left
    alone = found.select(pa.schema([SCHEMA.field("word")]))
    assert alone.batch().to_pylist() == [{"word": row["word"]} for row in left]
    assert alone.num_rows == len(left)


@pytest.mark.parametrize("in_memory", [0, 20, 1 << 20])
@pytest.mark.parametrize("names", [["mark", "word"], ["word"], ["mark"]])
def test_rows_come_out_of_the_spool_as_they_went_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str], in_memory: int
) -> None:
    """From memory, from files, and from files that began in memory."""
    monkeypatch.setattr(packed_rows, "IN_MEMORY", in_memory)
    schema = pa.schema([SCHEMA.field(name) for name in names])
    parts = [
        packed([(("a", 1.0), ["x", None]), (("b", None), [])])[0],
        packed([(("c", 1.0), []), ((None, None), ["y", "z"])])[0],
    ]
    chosen = [part.select(schema) for part in (*parts, *parts, *parts)]
    with RowBuffer(tmp_path / "rows", schema) as spool:
        for part in chosen:
            spool.add(part)
        assert bool(list(tmp_path.iterdir())) is (in_memory < 1 << 20)
        found = [part.batch().to_pylist() for part in spool.parts()]
        assert found == [part.batch().to_pylist() for part in chosen]
        words = spool.dictionaries()
        assert set(words) == set(names)
        assert "word" not in names or set(words["word"].to_pylist()) >= {"a"}
    assert list(tmp_path.iterdir()) == []


def test_rows_that_show_a_shared_value_come_first() -> None:
    """An owner without rows shows nothing."""
    quiet = [((None, None), [None] * 3) for _ in range(10)]
    rows, expected = packed([*quiet, (("a", 7.0), []), (("b", None), [None, "x"])])
    leading = LeadingRows(SCHEMA, by_text=False)
    leading.look(rows)
    assert leading.empty == ["reward"]
    names = ["mark", "word", "position"]
    first = [row for batch in leading.rows(names) for row in batch.to_pylist()]
    others = [row for batch in leading.others(iter([rows]), names) for row in batch.to_pylist()]
    assert [row["position"] for row in first] == [31]
    assert others == [{name: row[name] for name in names} for row in expected[:31]]


@given(st.lists(st.none() | st.lists(st.none() | st.floats(), max_size=3)))
def test_a_list_shows_a_value_where_an_entry_is_not_null(
    lists: list[list[float | None] | None],
) -> None:
    column = pa.array([None, [1.0], *lists], pa.list_(pa.float32())).slice(2)
    kinds = shown(column, by_text=False)
    assert [kind == PLAIN for kind in kinds] == [
        any(value is not None for value in each or ()) for each in lists
    ]


def test_rows_that_share_nothing() -> None:
    batch = packed([(("a", 1.0), ["x", None])])[0].batch()
    assert plain(batch).batch().equals(batch)
    assert plain(batch).num_rows == 2
