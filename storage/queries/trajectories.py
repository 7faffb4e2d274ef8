"""Trajectories: a page of rows, one in every detail, and how episodes ended."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import BindParameter, ColumnElement, bindparam, func, or_, select

from headrace.errors import UserError
from headrace.protocol.token_spans import Int32
from headrace.run_files.run_folder import MEDIA
from storage.database.filters import Filter, check_column, parse, to_arrow, to_sql
from storage.database.reader import RunReader, open_run
from storage.database.tables import AnySelect, Group, Prompt, Trajectory, Window
from storage.database.trajectory_rows import COLUMNS, joined
from storage.exports.pages import windows_of
from storage.journal.diagnostics import DiagnosticsReader
from storage.journal.responses import ResponseSelection, no_tokens, response_pages
from storage.journal.segment_index import SegmentIndex
from storage.queries import trajectory_index
from storage.queries.evaluations import answers_of
from storage.text.detokenize import required_decoder, text_decoder
from storage.text.token_table import SOURCES, TokenTable, token_table

if TYPE_CHECKING:
    import pandas as pd


_LARGEST_ID = 2**63 - 1
_SEGMENT_INDEX = SegmentIndex()
_MANY = 500
"""Longer lists are written into the query, because parameters are limited."""


@dataclass(frozen=True)
class RowPage:
    """Some rows of those that match, and how many match."""

    rows: "pd.DataFrame"
    total: int


@dataclass(frozen=True)
class TrajectoryDetail:
    """One trajectory.

    `row`: scalar columns; `rewards`: (value, position), where more than the last token earned
    something; `images`: files of the prompt's; `pieces`: one text per token (None: no tokenizer);
    `said`: texts of one turn and source each, by their first tokens; `windows` and `siblings` (the
    group's trajectories, with itself): frames."""

    row: dict[str, Any]
    reward_parts: dict[str, float | None]
    rewards: list[tuple[float, int]]
    prompt_ids: Int32
    images: list[Path]
    tokens: TokenTable
    text: str | None
    pieces: list[str] | None
    said: dict[int, str]
    windows: "pd.DataFrame"
    siblings: "pd.DataFrame"


def trajectory_page(
    run_dir: Path,
    *,
    where: str | None = None,
    filters: Mapping[str, Any] | None = None,
    search: str | None = None,
    updates: tuple[int, int] | None = None,
    evaluation: int | None = None,
    newest: int | None = None,
    sort: str = "trajectory_id",
    descending: bool = True,
    limit: int = 50,
    offset: int = 0,
) -> RowPage:
    """A page of trajectories.

    `where`: the filter language; `filters`: equality by column (a list means any of); `search`: a
    text in prompt, answer or prompt id; `updates`: first and last one that trained its tokens;
    `evaluation`: the number, from 1, of the one it answered; `newest`: of the matching ones, keep
    this many of those scored last."""
    reader = open_run(run_dir)
    check_column(sort, COLUMNS, "sort")
    tree = parse(where) if where else None
    asked = {*(filters or {}), *(tree.columns() if tree else ())} - {"purpose"}
    is_known = asked <= trajectory_index.COLUMNS and sort in trajectory_index.ORDERED
    if (filters or {}).get("purpose") == "train" and is_known:
        others = {name: value for name, value in (filters or {}).items() if name != "purpose"}
        wanted = _expressions(reader, tree, others, search, updates)
        ids, total = trajectory_index.matching(
            reader, wanted, sort=sort, descending=descending, limit=limit, offset=offset,
            asked=asked, newest=newest,
        )  # fmt: skip
        return RowPage(rows=_rows_of(reader, ids), total=total)
    conditions = _conditions(tree, filters or {}, search)
    if evaluation is not None:
        conditions += answers_of(reader, evaluation)
    if updates is not None:
        conditions.append(Trajectory.trajectory_id.in_(_trained_in(reader, updates)))
    if newest is not None:
        key, scored = Trajectory.trajectory_id, Trajectory.rewarded_at
        last = joined(select(key), reader.key).where(*conditions)
        last = last.order_by(scored.desc().nulls_last(), key).limit(newest)
        conditions = [key.in_(last)]
    order = COLUMNS[sort].desc() if descending else COLUMNS[sort].asc()
    query = (
        _rows(reader)
        .where(*conditions)
        .order_by(order.nulls_last(), Trajectory.trajectory_id)
        .limit(limit)
        .offset(offset)
    )
    count = joined(select(func.count()), reader.key).where(*conditions)
    return RowPage(rows=reader.frame(query), total=reader.value(count))


def _expressions(
    reader: RunReader,
    tree: Filter | None,
    filters: Mapping[str, Any],
    search: str | None,
    updates: tuple[int, int] | None,
) -> list[pc.Expression]:
    """Conditions on the trajectories in memory."""
    found = [] if tree is None else [to_arrow(tree, trajectory_index.WIDE)]
    for name, value in filters.items():
        every = list(value) if isinstance(value, list | tuple | set) else [value]
        kind = trajectory_index.WIDE.field(name).type
        if isinstance(kind, pa.DictionaryType):
            kind = kind.value_type
        found.append(pc.field(name).cast(kind).isin(pa.array(every, kind)))
    if search:
        groups = (
            select(Group.group_id)
            .join(Prompt, (Prompt.run == Group.run) & (Prompt.prompt_id == Group.prompt_id))
            .where(Group.run == reader.key, _says(search))
        )
        found.append(trajectory_index.is_of((key for (key,) in reader.rows(groups)), "group_id"))
    if updates is not None:
        rows = reader.rows(_trained_in(reader, updates))
        found.append(trajectory_index.is_of(key for (key,) in rows))
    return found


def _rows(reader: RunReader) -> AnySelect:
    """The scalar columns of all trajectories of a run."""
    return joined(select(*(c.label(name) for name, c in COLUMNS.items())), reader.key)


def _rows_of(reader: RunReader, ids: Sequence[int]) -> "pd.DataFrame":
    """The rows of these trajectories, in this order."""
    rows = reader.frame(_rows(reader).where(_is_in(Trajectory.trajectory_id, ids)))
    places = {key: place for place, key in enumerate(ids)}
    order = rows["trajectory_id"].map(places).argsort()
    return rows.iloc[order].reset_index(drop=True)


def _trained_in(reader: RunReader, updates: tuple[int, int]) -> AnySelect:
    """Ids of the trajectories with tokens that these updates, first to last, trained."""
    return select(Window.trajectory_id).where(
        Window.run == reader.key, Window.update.between(*updates), Window.state == "trained"
    )


def search_responses(run_dir: Path, text: str, *, purpose: str) -> list[int]:
    """Ids of the trajectories of this purpose whose response contains `text`, in order. UserError:
    there is no tokenizer."""
    reader, decoder = open_run(run_dir), required_decoder(run_dir)
    t = Trajectory
    query = select(t.trajectory_id, t.first_offset, t.last_offset).where(
        t.run == reader.key, t.purpose == purpose, t.last_offset.is_not(None)
    )
    places = sorted(tuple(row) for row in reader.rows(query))
    if not places:
        return []
    ids, first_offsets, last_offsets = (np.array(column) for column in zip(*places, strict=True))
    wanted, first = ResponseSelection(ids, last_offsets), int(first_offsets.min())
    found: list[int] = []
    for page in response_pages(reader.journal, wanted, first_offset=first):
        texts = decoder.texts(page.token_ids, page.borders)
        found += [key for key, said in zip(page.ids.tolist(), texts, strict=True) if text in said]
    return sorted(found)


def trajectory_detail(run_dir: Path, trajectory_id: int) -> TrajectoryDetail:
    """One trajectory with every token; UserError where the run has none of that id, or where its
    journal ends before the last of them."""
    reader = open_run(run_dir)
    t = Trajectory
    more = (t.reward_parts, t.rewards, t.first_offset, t.last_offset)
    every = _rows(reader).add_columns(*more, Prompt.prompt_ids, Prompt.images)
    query = every.where(t.trajectory_id == trajectory_id)
    found = reader.rows(query) if 0 <= trajectory_id <= _LARGEST_ID else []
    if not found:
        raise UserError(f"run {reader.run_id} has no trajectory {trajectory_id}")
    row = found[0]
    response = no_tokens([trajectory_id])
    if row.last_offset is not None:
        wanted = ResponseSelection(np.array([trajectory_id]), np.array([row.last_offset]))
        read = response_pages(
            reader.journal, wanted, first_offset=row.first_offset, index=_SEGMENT_INDEX
        )
        if (whole := next(read, None)) is None:
            text = f"the journal of {reader.run_id} ends before trajectory {trajectory_id} does"
            raise UserError(f"{text}: bring back its last segment, or see `headrace audit`")
        response = whole
    mine = [c for c in Window.__table__.columns if c.name != "run"]
    windows = reader.frame(
        select(*mine)
        .where(Window.run == reader.key, Window.trajectory_id == trajectory_id)
        .order_by(Window.start)
    )
    is_trained = (windows["state"] == "trained").any()
    seen = DiagnosticsReader(reader.diagnostics) if is_trained else None
    rows = windows_of(reader, [trajectory_id])
    decoder, table = text_decoder(run_dir), token_table(response, rows, seen)
    starts = np.flatnonzero(np.diff(table.turns * len(SOURCES) + table.sources, prepend=-1))
    ends = np.append(starts, len(table.token_ids))
    said = dict[int, str]()
    if decoder:
        texts = decoder.texts(table.token_ids, ends, special=True)
        said = dict(zip(starts.tolist(), texts, strict=True))
    siblings = trajectory_page(
        run_dir, filters={"group_id": row.group_id}, sort="attempt", descending=False, limit=1000
    )
    return TrajectoryDetail(
        row={name: getattr(row, name) for name in COLUMNS},
        reward_parts=row.reward_parts or {},
        rewards=[(value, position) for value, position in row.rewards or []],
        prompt_ids=np.frombuffer(row.prompt_ids, dtype="<i4"),
        images=_files(run_dir, row.images),
        tokens=table,
        text=decoder.text(table.token_ids) if decoder else None,
        pieces=decoder.pieces(table.token_ids) if decoder else None,
        said=said,
        windows=windows,
        siblings=siblings.rows,
    )


def prompt_images(run_dir: Path, prompt_ids: Sequence[str]) -> dict[str, list[Path]]:
    """The files of the images of these prompts, of those that have some."""
    reader = open_run(run_dir)
    query = select(Prompt.prompt_id, Prompt.images).where(
        Prompt.run == reader.key, Prompt.prompt_id.in_(prompt_ids)
    )
    return {key: _files(run_dir, names) for key, names in reader.rows(query) if names}


def _files(run_dir: Path, names: Sequence[str] | None) -> list[Path]:
    return [run_dir / MEDIA / name for name in names or []]


def _conditions(
    tree: Filter | None, filters: Mapping[str, Any], search: str | None
) -> list[ColumnElement[bool]]:
    conditions = [to_sql(tree, COLUMNS)] if tree else []
    for name, value in filters.items():
        check_column(name, COLUMNS, "filter")
        if isinstance(value, list | tuple | set):
            conditions.append(_is_in(COLUMNS[name], list(value)))
        else:
            conditions.append(COLUMNS[name] == value)
    if search:
        conditions.append(_says(search))
    return conditions


def _is_in(column: Any, values: Sequence[Any]) -> ColumnElement[bool]:
    is_long = len(values) > _MANY
    some: BindParameter[Any] = bindparam(None, values, expanding=True, literal_execute=is_long)
    return column.in_(some)


def _says(text: str) -> ColumnElement[bool]:
    """Prompt, answer or the prompt's id contain a text, in whatever case."""
    places = (Prompt.text, Prompt.answer, Group.prompt_id)
    return or_(*(place.icontains(text, autoescape=True) for place in places))


def episode_ends(run_dir: Path) -> dict[str, int]:
    """Training episodes by their end, the most frequent first.

    `finished`, the key of the limit that cut them short, an environment's failure
    (`environment_timeout`), `failed`, or the run's (`aborted`); `issued` and `running` go on."""
    reader, counts = open_run(run_dir), Counter[str]()
    query = (
        select(Trajectory.status, Trajectory.error, func.count())
        .where(Trajectory.run == reader.key, Trajectory.purpose == "train")
        .group_by(Trajectory.status, Trajectory.error)
    )
    for status, error, number in reader.rows(query):
        reason = (error or "").partition(":")[0]
        named = status == "truncated" or reason.startswith("environment")
        counts[reason if reason and named else status] += number
    return dict(counts.most_common())
