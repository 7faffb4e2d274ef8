"""The export `tokens`: one row per response token. Columns: its trajectory's facts except the
prompt's text, its position, its text, and one for each recorded quantity.

Conditions on trajectories go into SQL; conditions on tokens are applied to the rows of these
trajectories.
"""

from collections.abc import Iterator
from functools import reduce
from operator import and_ as both

import numpy as np
import pyarrow as pa
from sqlalchemy import and_

from storage.database.filters import Filter, to_arrow, to_sql
from storage.database.reader import RunReader
from storage.database.trajectory_rows import COLUMNS
from storage.exports.columns import (
    SCALARS,
    TOKEN_FIELDS,
    WINDOW_FIELDS,
    WORD,
    ColumnNames,
    array_of,
    chosen_fields,
    field,
    scalar_field,
)
from storage.exports.packed_rows import ExportPart, PackedRows
from storage.exports.pages import Page, RowsOfTrajectories, pages, token_array
from storage.text.detokenize import text_decoder

_COLUMNS = {column.singular: column for column in TOKEN_FIELDS}
_FIELDS = [
    *(scalar_field(name, repeated=True) for name in SCALARS if name != "prompt"),
    field("position", pa.int32(), "number of the token in its response, from 0"),
    field("token", WORD, "the token as text"),
    *(field(column.singular, column.type, column.meaning) for column in TOKEN_FIELDS),
]


class TokenRows(RowsOfTrajectories):
    """Rows of the export `tokens`."""

    def __init__(self, reader: RunReader, where: Filter | None, columns: ColumnNames) -> None:
        self.schema = chosen_fields(_FIELDS, columns)
        self._decoder = text_decoder(reader.run_dir)
        on_whole, on_tokens = _conditions(where, pa.schema(_FIELDS))
        wanted = and_(*(to_sql(part, COLUMNS) for part in on_whole)) if on_whole else None
        super().__init__(reader, wanted)
        self._full = self.schema
        self._expression = None
        if on_tokens:
            self._asked = set[str]().union(*(part.columns() for part in on_tokens))
            more = self._asked - set(self.schema.names)
            self._full = pa.schema([*self.schema, *(f for f in _FIELDS if f.name in more)])
            self._expression = reduce(both, (to_arrow(part, self._full) for part in on_tokens))

    def parts(self) -> Iterator[ExportPart]:
        """Rows in batches of bounded size."""
        names = self._full.names
        scalars = [name for name in names if name in SCALARS]
        plurals = {_COLUMNS[name].plural for name in names if name in _COLUMNS}
        windows = bool(plurals & WINDOW_FIELDS)
        for page in pages(self._reader, self._wanted, scalars, windows=windows):
            rows = self._packed(page)
            if self._expression is not None:
                rows = rows.where(self._expression, self._asked).select(self.schema)
            yield ExportPart(page.size, rows)

    def _packed(self, page: Page) -> PackedRows:
        shared = pa.schema([field for field in self._full if field.name in SCALARS])
        own = pa.schema([field for field in self._full if field.name not in SCALARS])
        facts = [array_of(field, page.scalars[field.name]) for field in shared]
        return PackedRows(
            self._full,
            pa.RecordBatch.from_arrays([self._column(page, field) for field in own], schema=own),
            pa.RecordBatch.from_arrays(facts, schema=shared),
            np.diff(page.borders),
        )

    def _column(self, page: Page, field: pa.Field) -> pa.Array:
        if field.name == "position":
            firsts = page.borders[:-1].repeat(np.diff(page.borders))
            return pa.array(np.arange(page.borders[-1]) - firsts, type=field.type)
        if field.name == "token":
            return self._tokens(page)
        return token_array(page.tokens, _COLUMNS[field.name])

    def _tokens(self, page: Page) -> pa.Array:
        ids = page.tokens.token_ids
        if self._decoder is None:
            return pa.nulls(len(ids), WORD)
        unique, where = np.unique(ids, return_inverse=True)
        # Two ids may have one text, and a dictionary must not say a value twice.
        words = pa.array(self._decoder.pieces(unique), type=pa.string()).dictionary_encode()
        codes = words.indices.take(pa.array(where.astype(np.int32)))
        return pa.DictionaryArray.from_arrays(codes, words.dictionary)


def _conditions(where: Filter | None, every: pa.Schema) -> tuple[list[Filter], list[Filter]]:
    """The parts of a filter, all of which must hold: on trajectories alone, and others."""
    if where is None:
        return [], []
    where.check(every.names)
    on_whole = [part for part in where.parts() if part.columns() <= set(COLUMNS)]
    return on_whole, [part for part in where.parts() if part not in on_whole]
