"""Trajectories with their tokens, some at a time, as Arrow columns.

In: a run as it is at one moment, which trajectories, the names of scalar columns. Out: pages in a
fixed order: responses without tokens first, then in the order in which their last chunks were
written. Promise: memory for one page and the responses that are being put together, and no needless
work: without `tokens` the journal is not read.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from sqlalchemy import Text, cast, func, select

from storage.database.reader import RunReader
from storage.database.tables import Prompt, Trajectory, Window
from storage.database.trajectory_rows import COLUMNS, joined
from storage.exports.columns import JSON_TEXTS, TokenField
from storage.journal.diagnostics import DiagnosticsReader
from storage.journal.responses import Responses, ResponseSelection, no_tokens, response_pages
from storage.text.token_table import MARKS, REASONS, SOURCES, WINDOW, TokenTable, token_table

PAGE_TRAJECTORIES = 4096
SQL_ROWS = 5000
PROMPT_IDS = "prompt_ids"
_NAMES = {"sources": SOURCES, "marks": MARKS, "mask_reasons": REASONS}
"""Fields of TokenTable that are codes, and what they stand for."""
_EMPTY_JSON = {"reward_parts": "{}", "rewards": "[]"}


class Page(NamedTuple):
    """Some trajectories. `scalars`: a list for each column; `tokens`: of all responses, response i
    from borders[i] to borders[i + 1]."""

    size: int
    scalars: Mapping[str, Sequence[Any]]
    tokens: TokenTable
    borders: npt.NDArray[np.int64]


def pages(
    reader: RunReader,
    wanted: ResponseSelection,
    scalars: Sequence[str],
    *,
    tokens: bool = True,
    windows: bool = False,
    most: int | None = None,
) -> Iterator[Page]:
    """Pages of the wanted trajectories, of `most` at most. `tokens`, `windows`: whether to read
    these."""
    most = most or PAGE_TRAJECTORIES
    loader = _PageLoader(reader, scalars, windows=tokens and windows)
    silent = wanted.last_offsets < 0
    ids = wanted.ids[silent].tolist()
    if not tokens:
        order = np.argsort(wanted.last_offsets[~silent], kind="stable")
        ids += wanted.ids[~silent][order].tolist()
    for first in range(0, len(ids), most):
        yield loader.page(no_tokens(ids[first : first + most]))
    if tokens and not silent.all():
        spoken = ResponseSelection(wanted.ids[~silent], wanted.last_offsets[~silent])
        # Ids rise in the order of issue: no chunk of these was written before the first of them.
        oldest = Trajectory.run == reader.key, Trajectory.trajectory_id == int(spoken.ids[0])
        first = int(reader.value(select(Trajectory.offset).where(*oldest)))
        for responses in response_pages(reader.journal, spoken, most_rows=most, first_offset=first):
            yield loader.page(responses)


def wanted_where(reader: RunReader, condition: Any) -> ResponseSelection:
    """The trajectories that meet a condition (None: all); last offset -1: no tokens."""
    query = select(Trajectory.trajectory_id, func.coalesce(Trajectory.last_offset, -1))
    if condition is None:
        query = query.where(Trajectory.run == reader.key, Trajectory.purpose != "probe")
    else:
        query = joined(query, reader.key).where(condition)
    query = query.order_by(Trajectory.trajectory_id)
    return selection_of(chain.from_iterable(reader.tuples(query)))


def selection_of(pairs: Iterable[int]) -> ResponseSelection:
    """A selection of responses: pairs of ids, rising, and last chunks' offsets."""
    table = np.fromiter(pairs, np.int64).reshape(-1, 2)
    return ResponseSelection(table[:, 0].copy(), table[:, 1].copy())


class RowsOfTrajectories:
    """Base of rows made from the trajectories that meet a condition (None: all)."""

    def __init__(self, reader: RunReader, condition: Any) -> None:
        self._reader = reader
        self._condition = condition

    @cached_property
    def _wanted(self) -> ResponseSelection:
        return wanted_where(self._reader, self._condition)

    def total(self) -> int:
        """Number of these trajectories."""
        return len(self._wanted.ids)


class _PageLoader:
    """Loads pages of trajectories in a few queries each."""

    def __init__(self, reader: RunReader, scalars: Sequence[str], *, windows: bool) -> None:
        self._reader = reader
        self._seen = DiagnosticsReader(reader.diagnostics) if windows else None
        self._names = [name for name in scalars if name != "run_id"]
        self._query = joined(
            select(Trajectory.trajectory_id.label("key"), *map(_labelled, self._names)), reader.key
        )

    def page(self, responses: Responses) -> Page:
        ids = responses.ids.tolist()
        query = self._query.where(_between(Trajectory.trajectory_id, ids))
        by_id = {row[0]: row for row in self._reader.tuples(query)}
        columns = list(zip(*(by_id[key] for key in ids), strict=True))
        scalars = dict(zip(self._names, columns[1:], strict=True))
        scalars["run_id"] = (self._reader.run_id,) * len(ids)
        for name, empty in _EMPTY_JSON.items():
            if name in scalars:
                scalars[name] = tuple(
                    empty if text in (None, "null") else text for text in scalars[name]
                )
        windows = [] if self._seen is None else windows_of(self._reader, ids)
        tokens = token_table(responses, windows, self._seen)
        return Page(len(ids), scalars, tokens, responses.borders)


def windows_of(reader: RunReader, ids: Sequence[int]) -> list[Any]:
    """The windows of these trajectories, as `token_table` takes them."""
    query = select(*WINDOW).where(Window.run == reader.key, _between(Window.trajectory_id, ids))
    chosen = set(ids)
    return [row for row in reader.tuples(query) if row[0] in chosen]


def _between(column: Any, ids: Sequence[int]) -> Any:
    """A condition for trajectories, and perhaps as many others: a range is faster than a list."""
    first, last = min(ids), max(ids)
    return column.between(first, last) if last - first < 2 * len(ids) else column.in_(ids)


def _labelled(name: str) -> Any:
    if name in JSON_TEXTS:
        return cast(getattr(Trajectory, name), Text).label(name)
    return (Prompt.prompt_ids if name == PROMPT_IDS else COLUMNS[name]).label(name)


def token_array(table: TokenTable, column: TokenField) -> pa.Array:
    """A column of all tokens of a table. What is not known is null."""
    if column.plural in table.figures:
        return pa.array(table.figures[column.plural], type=column.type, from_pandas=True)
    values = getattr(table, column.plural)
    if column.plural not in _NAMES:
        return pa.array(values, type=column.type)
    codes = pa.array(values.astype(np.int32), mask=values < 0)
    return pa.DictionaryArray.from_arrays(codes, pa.array(_NAMES[column.plural]))
