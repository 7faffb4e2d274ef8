"""The export `tokens`: one row a response token, with the facts of its trajectory except the
prompt's text, its position, itself as text, and one column for each thing that is known of it.

Conditions on trajectories go into SQL; conditions on tokens are applied to the rows of the
trajectories that are left.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa
from sqlalchemy import and_

from storage.exports.columns import (
    OF_WINDOWS,
    PER_TOKEN,
    SCALARS,
    WORD,
    chosen_fields,
    field,
    scalar_field,
)
from storage.exports.pages import Page, pages, scalar_array, token_array, wanted_where
from storage.exports.rows import Part
from storage.filters import Filter, Junction, check_columns, columns_of, to_arrow, to_sql
from storage.reader import RunReader
from storage.responses import Wanted
from storage.texts import text_decoder
from storage.tokens import Int64
from storage.trajectory_rows import COLUMNS

_COLUMNS = {column.singular: column for column in PER_TOKEN}


def token_fields() -> list[pa.Field]:
    """All columns."""
    return [
        *(scalar_field(name, repeated=True) for name in SCALARS if name != "prompt"),
        field("position", pa.int32(), "number of the token in its response, from 0"),
        field("token", WORD, "the token as text"),
        *(field(column.singular, column.type, column.meaning) for column in PER_TOKEN),
    ]


class TokenRows:
    """Rows of the export `tokens`."""

    def __init__(
        self, reader: RunReader, where: Filter | None, columns: Sequence[str] | None
    ) -> None:
        every = token_fields()
        self.schema = chosen_fields(every, columns)
        self._reader = reader
        self._decoder = text_decoder(reader.run_dir)
        on_whole, on_tokens = _conditions(where, pa.schema(every))
        self._condition = and_(*(to_sql(part, COLUMNS) for part in on_whole)) if on_whole else None
        self._full = self.schema
        self._expression = None
        if on_tokens:
            asked = columns_of(Junction("and", on_tokens)) - set(self.schema.names)
            self._full = pa.schema([*self.schema, *(f for f in every if f.name in asked)])
            self._expression = to_arrow(Junction("and", on_tokens), self._full)

    @cached_property
    def _wanted(self) -> Wanted:
        return wanted_where(self._reader, self._condition)

    def total(self) -> int:
        """Trajectories."""
        return len(self._wanted.ids)

    def parts(self) -> Iterator[Part]:
        """Rows in batches of bounded size."""
        names = self._full.names
        scalars = [name for name in names if name in SCALARS]
        plurals = {_COLUMNS[name].plural for name in names if name in _COLUMNS}
        windows = bool(plurals & OF_WINDOWS)
        for page in pages(self._reader, self._wanted, scalars, tokens=True, windows=windows):
            batch = self._flat(page)
            if self._expression is not None:
                batch = batch.filter(self._expression).select(self.schema.names)
            yield Part(page.size, batch)

    def _flat(self, page: Page) -> pa.RecordBatch:
        sizes = np.diff(page.borders)
        columns = [self._column(page, field, sizes) for field in self._full]
        return pa.RecordBatch.from_arrays(columns, schema=self._full)

    def _column(self, page: Page, field: pa.Field, sizes: Int64) -> pa.Array:
        if field.name == "position":
            firsts = page.borders[:-1].repeat(sizes)
            return pa.array(np.arange(page.borders[-1]) - firsts, type=field.type)
        if field.name == "token":
            return self._tokens(page)
        if field.name in _COLUMNS:
            return token_array(page.tokens, _COLUMNS[field.name])
        values = scalar_array(page, field)
        if pa.types.is_dictionary(field.type):
            return pa.DictionaryArray.from_arrays(
                _repeated(values.indices, sizes), values.dictionary
            )
        return _repeated(values, sizes)

    def _tokens(self, page: Page) -> pa.Array:
        ids = page.tokens.token_ids
        if self._decoder is None:
            return pa.nulls(len(ids), WORD)
        unique, where = np.unique(ids, return_inverse=True)
        # Two ids may have one text, and a dictionary must not say a value twice.
        words = pa.array(self._decoder.pieces(unique), type=pa.string()).dictionary_encode()
        codes = words.indices.take(pa.array(where.astype(np.int32)))
        return pa.DictionaryArray.from_arrays(codes, words.dictionary)


def _repeated(values: pa.Array, sizes: Int64) -> pa.Array:
    """Each value as often as its response has tokens."""
    if values.null_count == len(values):
        return pa.nulls(int(sizes.sum()), values.type)
    if values.null_count == 0 and pa.types.is_primitive(values.type) and values.type != pa.bool_():
        return pa.array(np.repeat(values.to_numpy(), sizes), type=values.type)
    whose = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    return values.take(pa.array(whose))


def _conditions(
    where: Filter | None, every: pa.Schema
) -> tuple[tuple[Filter, ...], tuple[Filter, ...]]:
    """The parts of a filter that must all hold: those on trajectories alone, and the others."""
    parts: tuple[Filter, ...] = () if where is None else (where,)
    if isinstance(where, Junction) and where.kind == "and":
        parts = where.parts
    for part in parts:
        check_columns(part, dict.fromkeys(every.names))
    on_whole = tuple(part for part in parts if columns_of(part) <= set(COLUMNS))
    return on_whole, tuple(part for part in parts if part not in on_whole)
