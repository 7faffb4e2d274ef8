"""Selection of the rows that an export begins with, and of its columns.

In: all batches of rows, in order. Out: the numbers of the rows that show, for each column, its
kinds of values; and the columns without a value. Readers of text files infer a column's type from
the first rows: a column that begins with nulls, or text that begins with numbers, misleads them.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from storage.exports.packed_rows import PackedRows

Int8 = npt.NDArray[np.int8]
NOTHING, BLANK, WHOLE, DECIMAL, SPECIAL, PLAIN = range(6)
"""Kinds of a value: nothing (null, a list without a value), an empty text, text that reads like a
whole number, like another number, like a date, truth value or the like, and other text."""
_WHOLE = r"^\s*[+-]?\d+\s*$"
_DECIMAL = r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$"
_SPECIAL = r"^(?i)\s*(true|false|yes|no|nan|none|null|na|n/a|[+-]?inf(inity)?|[\d\s.:/+tz-]*)\s*$"
_HEAD_ROWS = 20
_HEAD_BYTES = 1 << 16
"""Rows and bytes at the beginning that are not moved, because every reader looks there."""


class LeadingRows:
    """Looks at rows. `by_text`: text can be taken for numbers, as in CSV."""

    def __init__(self, schema: pa.Schema, *, by_text: bool) -> None:
        self._by_text = by_text
        self._open = dict.fromkeys(schema.names, frozenset({NOTHING}))
        self._shown: set[str] = set()
        self._rows: list[pa.RecordBatch] = []
        self._numbers: list[int] = []
        """Numbers of the rows that are moved to the beginning, ascending."""
        self._seen = 0
        self._head = 0

    @property
    def empty(self) -> list[str]:
        """Columns in which no row has a value, where there are rows."""
        return [name for name in self._open if name not in self._shown] if self._seen else []

    def look(self, rows: PackedRows) -> None:
        """Take the next rows into account."""
        if self._seen == 0:
            self._head = min(_HEAD_ROWS, _HEAD_BYTES * rows.num_rows // max(rows.nbytes, 1))
        chosen: set[int] = set()
        for name in list(self._open):
            column = rows.kept(name)
            if column.null_count == len(column):
                continue
            kinds = shown(column, self._by_text)
            if not set(np.unique(kinds).tolist()) - self._open[name]:
                continue
            kinds = rows.spread(name, kinds)
            for kind in set(np.unique(kinds).tolist()) - self._open[name]:
                places = np.flatnonzero(kinds == kind)
                at = next((row for row in sorted(chosen) if kinds[row] == kind), int(places[0]))
                chosen.add(at)
                self._open[name] |= {kind}
                self._shown.add(name)
            if PLAIN in self._open[name]:
                self._open.pop(name)
        moved = [row for row in sorted(chosen) if self._seen + row >= self._head]
        self._rows += [rows.row(row) for row in moved]
        self._numbers += [self._seen + row for row in moved]
        self._seen += rows.num_rows

    def rows(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows that are moved to the beginning, these columns of them."""
        for batch in self._rows:
            yield batch.select(list(names))

    def others(self, parts: Iterator[PackedRows], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The same rows again without those that were moved."""
        first = 0
        for rows in parts:
            size = rows.num_rows
            here = [n - first for n in self._numbers if first <= n < first + size]
            first += size
            batch = rows.batch(names)
            if here:
                keep = np.ones(size, bool)
                keep[here] = False
                batch = batch.filter(pa.array(keep))
            if batch.num_rows:
                yield batch


def shown(column: pa.Array, by_text: bool) -> Int8:
    """The kind of each value of a column."""
    if by_text and pa.types.is_dictionary(column.type):
        codes = column.indices.fill_null(len(column.dictionary)).to_numpy()
        return np.append(_kinds_of_text(column.dictionary), np.int8(NOTHING))[codes]
    if by_text and pa.types.is_string(column.type):
        return _kinds_of_text(column)
    known = column.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_list(column.type):
        known = known & _has_value(column)
    return np.where(known, np.int8(PLAIN), np.int8(NOTHING))


def _has_value(column: pa.ListArray) -> npt.NDArray[np.bool_]:
    """Return for each list whether it has an entry that is not null."""
    values = column.flatten()
    counts = column.value_lengths().fill_null(0).to_numpy()
    if values.null_count == 0:
        return np.asarray(counts > 0)
    ends = np.cumsum(counts)
    known = np.zeros(len(values) + 1, np.int64)
    np.cumsum(values.is_valid().to_numpy(zero_copy_only=False), out=known[1:])
    return np.asarray(known[ends] > known[ends - counts])


def _kinds_of_text(texts: pa.Array) -> Int8:
    kinds = np.full(len(texts), PLAIN, np.int8)
    for pattern, kind in ((_SPECIAL, SPECIAL), (_DECIMAL, DECIMAL), (_WHOLE, WHOLE)):
        found = pc.match_substring_regex(texts, pattern).fill_null(False)
        kinds[found.to_numpy(zero_copy_only=False)] = kind
    kinds[pc.equal(texts, "").fill_null(False).to_numpy(zero_copy_only=False)] = BLANK
    kinds[texts.is_null().to_numpy(zero_copy_only=False)] = NOTHING
    return kinds
