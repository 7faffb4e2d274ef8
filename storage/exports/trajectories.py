"""The export `trajectories`: one row per response, with a list per token column."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from storage.database.filters import Filter, to_sql
from storage.database.reader import RunReader
from storage.database.trajectory_rows import COLUMNS
from storage.exports.columns import (
    SCALARS,
    TOKEN_FIELDS,
    WINDOW_FIELDS,
    ColumnNames,
    array_of,
    chosen_fields,
    field,
    scalar_field,
)
from storage.exports.packed_rows import ExportPart, plain
from storage.exports.pages import PROMPT_IDS, Page, RowsOfTrajectories, pages, token_array
from storage.journal.responses import Int64
from storage.text.detokenize import text_decoder

_LISTS = {column.plural: column for column in TOKEN_FIELDS}
_RESPONSE = "response"


def _list_of(kind: pa.DataType) -> pa.DataType:
    return pa.list_(kind.value_type if pa.types.is_dictionary(kind) else kind)


_FIELDS = [
    *(scalar_field(name, repeated=False) for name in SCALARS),
    field(_RESPONSE, pa.string(), "the response without special tokens except tags"),
    field(PROMPT_IDS, pa.list_(pa.int32()), "token ids of the prompt"),
    *(field(column.plural, _list_of(column.type), column.meaning) for column in TOKEN_FIELDS),
]


class TrajectoryRows(RowsOfTrajectories):
    """Rows of the export `trajectories`."""

    def __init__(self, reader: RunReader, where: Filter | None, columns: ColumnNames) -> None:
        self.schema = chosen_fields(_FIELDS, columns)
        self._decoder = text_decoder(reader.run_dir)
        super().__init__(reader, None if where is None else to_sql(where, COLUMNS))

    def parts(self) -> Iterator[ExportPart]:
        """Rows in batches of bounded size."""
        names = set(self.schema.names)
        scalars = [name for name in (*SCALARS, PROMPT_IDS) if name in names]
        tokens, windows = len(scalars) < len(names), bool(names & WINDOW_FIELDS)
        for page in pages(self._reader, self._wanted, scalars, tokens=tokens, windows=windows):
            columns = [self._column(page, field) for field in self.schema]
            batch = pa.RecordBatch.from_arrays(columns, schema=self.schema)
            yield ExportPart(page.size, plain(batch))

    def _column(self, page: Page, field: pa.Field) -> pa.Array:
        if field.name == _RESPONSE:
            if self._decoder is None:
                return pa.nulls(page.size, pa.string())
            return pa.array(self._decoder.texts(page.tokens.token_ids, page.borders))
        if field.name == PROMPT_IDS:
            blobs = page.scalars[PROMPT_IDS]
            ids = np.frombuffer(b"".join(blobs), dtype="<i4")
            sizes = np.array([len(blob) for blob in blobs], np.int64)
            return _lists(np.append(0, sizes.cumsum()) // ids.itemsize, pa.array(ids))
        if field.name in _LISTS:
            values = token_array(page.tokens, _LISTS[field.name])
            if pa.types.is_dictionary(values.type):
                values = values.dictionary_decode()
            return _lists(page.borders, values)
        return array_of(field, page.scalars[field.name])


def _lists(borders: Int64, values: pa.Array) -> pa.ListArray:
    """List i has the values from borders[i] to borders[i + 1]."""
    return pa.ListArray.from_arrays(pa.array(borders.astype(np.int32)), values)
