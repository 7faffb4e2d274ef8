"""Arrow columns as the text of JSON and CSV, a whole column at a time.

In: a column. Out: a text for each value. Promises: JSON is strict: what is null or not finite is
`null`; bytes are base64. Numbers with a fraction's type keep a point or an exponent, so that 1.0 is
not read as a whole number, and say exactly what they are in binary.
"""

import json
from base64 import b64encode

import pyarrow as pa
import pyarrow.compute as pc

NULL = "null"
FORMULA = "=+@\t\r-"
"""Characters at the beginning of a text that a spreadsheet takes for a formula."""


def json_lines(batch: pa.RecordBatch) -> pa.StringArray:
    """One JSON object a row, each with its line's end."""
    parts: list[pa.Array | pa.Scalar] = []
    for number, (name, column) in enumerate(zip(batch.schema.names, batch.columns, strict=True)):
        start = "{" if number == 0 else ","
        parts += [pa.scalar(f"{start}{json.dumps(name)}:"), json_text(column)]
    return pc.binary_join_element_wise(*parts, pa.scalar("}\n"), "")


def csv_lines(batch: pa.RecordBatch, *, safe: bool = False) -> pa.StringArray:
    """One line of CSV per row: text in quotes, lists as JSON, null as an empty field. `safe`: text
    that a spreadsheet would take for a formula begins with an apostrophe."""
    parts: list[pa.Array | pa.Scalar] = []
    for number, column in enumerate(batch.columns):
        parts += [pa.scalar("," if number else ""), _csv_text(column, safe)]
    return pc.binary_join_element_wise(*parts, pa.scalar("\n"), "")


def csv_header(names: list[str]) -> str:
    """The first line of CSV."""
    return ",".join(f'"{name}"' for name in names) + "\n"


def json_text(column: pa.Array) -> pa.StringArray:
    """Each value as JSON."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        text = json_text(column.dictionary).take(column.indices)
    elif pa.types.is_string(kind):
        quoted = [
            None if v is None else json.dumps(v, ensure_ascii=False) for v in column.to_pylist()
        ]
        text = pa.array(quoted, type=pa.string())
    elif pa.types.is_binary(kind):
        coded = [None if v is None else f'"{b64encode(v).decode()}"' for v in column.to_pylist()]
        text = pa.array(coded, type=pa.string())
    elif pa.types.is_list(kind):
        text = _list_text(column)
    elif pa.types.is_struct(kind):
        text = _struct_text(column)
    else:
        text = _plain_text(column)
    return text.fill_null(NULL)


def _list_text(column: pa.ListArray) -> pa.StringArray:
    counts = column.value_lengths().fill_null(0)
    ends = pc.cumulative_sum(counts)
    borders = pa.concat_arrays([pa.array([0], ends.type), ends])
    inner = pa.ListArray.from_arrays(borders.cast(pa.int32()), json_text(column.flatten()))
    joined = pc.binary_join_element_wise(
        pa.scalar("["), pc.binary_join(inner, ","), pa.scalar("]"), ""
    )
    return pc.if_else(column.is_valid(), joined, pa.scalar(None, pa.string()))


def _struct_text(column: pa.StructArray) -> pa.StringArray:
    names = [field.name for field in column.type]
    rows = pa.RecordBatch.from_arrays(column.flatten(), names=names)
    whole = pc.utf8_rtrim(json_lines(rows), "\n")
    return pc.if_else(column.is_valid(), whole, pa.scalar(None, pa.string()))


def _plain_text(column: pa.Array) -> pa.StringArray:
    """Numbers and truth values; null where there is none."""
    if not pa.types.is_floating(column.type):
        return column.cast(pa.string())
    column = pc.if_else(pc.is_finite(column), column, pa.scalar(None, column.type))
    text = column.cast(pa.float64()).cast(pa.string())
    whole = pc.match_substring_regex(text, r"^-?\d+$")
    return pc.if_else(whole, pc.binary_join_element_wise(text, pa.scalar(".0"), ""), text)


def _csv_text(column: pa.Array, safe: bool) -> pa.StringArray:
    kind = column.type
    if pa.types.is_dictionary(kind):
        text = _csv_text(column.dictionary, safe).take(column.indices)
    elif pa.types.is_string(kind) or pa.types.is_nested(kind):
        raw = column if pa.types.is_string(kind) else json_text(column)
        inner = pc.replace_substring(raw, '"', '""')
        if safe:
            inner = pc.replace_substring_regex(inner, f"^([{FORMULA}])", r"'\1")
        text = pc.binary_join_element_wise(pa.scalar('"'), inner, pa.scalar('"'), "")
        text = pc.if_else(column.is_valid(), text, pa.scalar(None, pa.string()))
    else:
        text = _plain_text(column)
    return text.fill_null("")
