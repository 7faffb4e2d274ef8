"""Sequences of many turns: inserted tokens, weights, marks and rewards from the journal to every
read."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from sqlalchemy import event, select

from headrace.protocol.records.record_types import (
    BatchTaken,
    ChunkArrived,
    MaskedRun,
    Record,
    RewardArrived,
    TrajectoryEnded,
    UpdateCommitted,
    WindowsClosed,
    WindowsDropped,
    WindowsReady,
)
from headrace.protocol.token_spans import Coefficient, Mark, Piece, Reward, Span, Streams, Weight
from headrace.trajectory.transitions import moves, value_moves
from storage import queries
from storage.database.engine import open_reader
from storage.database.reader import open_run
from storage.database.tables import ValueUse, Window
from storage.exports import export
from storage.exports.pages import wanted_where
from storage.journal import responses
from storage.journal.responses import ResponseSelection, response_pages
from storage.journal.store import decode, encode
from storage.run_store import RunStore
from storage.text.token_table import MARKS, REASONS, SOURCES
from tests.storage.samples import (
    chunk,
    closed,
    group,
    names_of,
    run_config,
    same,
    small_run,
    taken,
    write_run,
)
from tests.storage.test_exports import rows_of

TURNS = Streams(
    pieces=[
        Piece("policy", "assistant", 0, 4, 5),
        Piece("tool", "tool", 1, 5, 8),
        Piece("template", "assistant", 2, 8, 9),
        Piece("policy", "assistant", 2, 9, 12),
    ],
    weights=[Weight(0.5, 9, 11)],
    rewards=[Reward(0.25, 4)],
    coefficients=[Coefficient("kl", 0.1, 9, 12)],
    marks=[Mark("hot", 9, 10)],
)


def part(start: int, end: int, index: int, spans: list[Span], **values: object) -> ChunkArrived:
    """Tokens with streams."""
    plain = chunk(10, start, end, index=index)
    fields = {name: getattr(plain, name) for name in plain.__struct_fields__}
    return ChunkArrived(**{**fields, "spans": spans, **values})


def turns_run() -> list[Record]:
    """One trajectory: 4 plain tokens, a chunk of two turns, 4 more of the last turn. Its one window
    is trained without token 11, and the next one is dropped."""
    window = closed(10, 0, 0, 12, tokens=8, min_version=0, max_version=1)
    batch = BatchTaken(
        at=5.0, update=1, lineage=0, version=1, value_trajectories=[],
        windows=[taken(10, 0, MaskedRun("stale", 11, 12, 1))],
    )  # fmt: skip
    return [
        group(1),
        part(0, 4, 0, [Span(0, 0, 4)]),
        part(4, 12, 1, [Span(0, 4, 5), Span(1, 9, 12)], streams=TURNS),
        WindowsClosed(at=3.0, windows=[window]),
        WindowsReady(at=3.0, window_ids=[window.window_id]),
        part(12, 16, 2, [Span(1, 12, 16)], finish="stop"),
        TrajectoryEnded(at=4.0, trajectory_id=10, status="finished", length=16),
        RewardArrived(
            at=4.5, trajectory_id=10, status="ok", reward=1.0, correct=True,
            rewards=[Reward(0.75, 15)],
        ),
        batch,
        UpdateCommitted(
            at=6.0, update=1, lineage=0, version=1, train_time_s=1.0, trained_tokens=7,
            window_ids=[window.window_id], value_trajectories=[], diagnostics=[],
            metrics={"ledger/inserted": 4.0},
        ),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "turns"
    store = RunStore.create(folder, "turns", run_config())
    store.append(turns_run())
    store.close()
    return folder


def test_streams_are_in_the_journal_and_plain_chunks_have_no_body() -> None:
    plain, said = part(0, 4, 0, [Span(0, 0, 4)]), part(4, 12, 1, [Span(0, 4, 5)], streams=TURNS)
    batch = encode([plain, said], 0)
    assert batch.column("body").is_null().to_pylist() == [True, False]
    assert all(same(a, b) for a, (_, b) in zip([plain, said], decode(batch), strict=True))


def test_the_row_counts_who_wrote_what(run_dir: Path) -> None:
    row = queries.trajectory_detail(run_dir, 10).row
    assert (row["length"], row["sampled"], row["inserted"]) == (16, 12, 4)
    assert row["correct"] is True
    assert queries.trajectory_page(run_dir, where="correct = true and inserted > 3").total == 1
    assert queries.run_summary(run_dir)["tokens"]["inserted"] == 4


def test_tokens_say_who_wrote_them(run_dir: Path) -> None:
    detail = queries.trajectory_detail(run_dir, 10)
    t = detail.tokens
    sources = names_of(t.sources, SOURCES).tolist()
    assert sources == ["policy"] * 5 + ["tool"] * 3 + ["template"] + ["policy"] * 7
    assert t.turns.tolist() == [0] * 5 + [1] * 3 + [2] * 8
    assert t.versions.tolist() == [0] * 5 + [-1] * 4 + [1] * 7
    assert t.loss_weights.tolist() == [1] * 5 + [0] * 4 + [0.5] * 2 + [1] * 5
    assert names_of(t.marks, MARKS).tolist() == [None] * 9 + ["hot"] + [None] * 6
    assert t.loss_mask.tolist() == [1] * 5 + [0] * 4 + [1] * 2 + [0] * 5
    assert names_of(t.mask_reasons, REASONS).tolist() == [None] * 11 + ["stale"] + [None] * 4
    assert detail.rewards == [(0.25, 4), (0.75, 15)]


def test_streams_of_all_chunks_are_one(run_dir: Path) -> None:
    wanted = ResponseSelection(np.array([10]), np.array([5]))
    (page,) = response_pages(run_dir / "journal", wanted)
    streams = page.streams[0]
    assert streams.pieces == [
        Piece("policy", "assistant", 0, 0, 5),
        Piece("tool", "tool", 1, 5, 8),
        Piece("template", "assistant", 2, 8, 9),
        Piece("policy", "assistant", 2, 9, 16),
    ]
    assert streams.coefficients == TURNS.coefficients


def test_chunks_of_a_page_are_decoded_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers of a few tokens: each had all chunks of its page gone through."""
    streams = Streams(pieces=[Piece("policy", "assistant", 0, 0, 3)])
    ids = [10 * number for number in range(20)]
    store = RunStore.create(tmp_path / "short", "short", run_config())
    store.append([group(number) for number in range(20)])
    store.append([msgspec.structs.replace(chunk(key, 0, 3), streams=streams) for key in ids])
    store.close()
    decoded: list[int] = []

    def counted(batch: pa.RecordBatch) -> Iterator[tuple[int, Record]]:
        decoded.append(batch.num_rows)
        return decode(batch)

    monkeypatch.setattr("storage.journal.responses.decode", counted)
    wanted = ResponseSelection(np.array(ids), np.arange(20, 40))
    (page,) = response_pages(tmp_path / "short" / "journal", wanted, 10**6, 100)
    assert page.streams == {place: streams for place in range(20)}
    assert decoded == [20]


def test_what_is_left_of_long_answers_is_not_copied_with_every_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers that grow side by side are all left until the end."""
    keys, length = [10 * number for number in range(8)], 64
    store = RunStore.create(tmp_path / "long", "long", run_config())
    store.append([group(number) for number in range(8)])
    for at in range(length):
        store.append([chunk(key, at, at + 1, index=at) for key in keys])
    store.close()
    rows: list[int] = []
    pages_of = responses._pages

    def counted(chunks: pa.RecordBatch, *more: Any) -> Iterator[pa.RecordBatch]:
        rows.append(chunks.num_rows)
        return pages_of(chunks, *more)

    monkeypatch.setattr(responses, "_pages", counted)
    wanted = ResponseSelection(np.array(keys), np.arange(8) + 8 * length)
    found = list(response_pages(tmp_path / "long" / "journal", wanted, 16, 100))
    assert [key for page in found for key in page.ids.tolist()] == keys
    assert {int(page.borders[-1]) for page in found} == {length}
    assert sum(rows) < 4 * 8 * length


def test_a_plain_answer_has_no_streams(run_dir: Path, tmp_path: Path) -> None:
    store = RunStore.create(tmp_path / "plain", "plain", run_config())
    store.append([group(1), chunk(10, 0, 3), chunk(10, 3, 7, index=1, version=2)])
    store.close()
    wanted = ResponseSelection(np.array([10]), np.array([2]))
    (page,) = response_pages(tmp_path / "plain" / "journal", wanted)
    assert page.streams == {}
    assert page.versions.tolist() == [0] * 3 + [2] * 4


def test_exports_have_the_same(run_dir: Path, tmp_path: Path) -> None:
    export(run_dir, "tokens", None, tmp_path / "t.parquet", where="source = 'tool' or mark = 'hot'")
    rows = rows_of(tmp_path / "t.parquet")
    assert [(r["position"], r["source"], r["turn"], r["mark"]) for r in rows] == [
        (5, "tool", 1, None), (6, "tool", 1, None), (7, "tool", 1, None), (9, "policy", 2, "hot"),
    ]  # fmt: skip
    export(run_dir, "trajectories", None, tmp_path / "a.jsonl")
    (row,) = rows_of(tmp_path / "a.jsonl")
    assert json.loads(row["rewards"]) == [[0.25, 4], [0.75, 15]]
    assert row["mask_reasons"][11] == "stale"
    assert sum(row["loss_mask"]) == 7


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_rows_are_the_fold_of_the_moves(tmp_path: Path, size: int) -> None:
    """However records are gathered into batches, SQL has what folding their moves one by one
    gives."""
    records = [record for batch in small_run() for record in batch]
    store = RunStore.create(tmp_path / "run", "run", run_config())
    for first in range(0, len(records), size):
        store.append(records[first : first + size])
    store.close()
    windows: dict[int, tuple[object, ...]] = {}
    values: dict[int, tuple[object, ...]] = {}
    for record in records:
        for move in moves(record):
            windows[move.window_id] = (move.state, move.update, move.reason)
        for use in value_moves(record):
            values[use.trajectory_id] = (use.state, use.update)
    with open_reader(tmp_path / "run", None).connect() as connection:
        rows = connection.execute(
            select(Window.window_id, Window.state, Window.update, Window.reason)
        )
        assert {key: tuple(rest) for key, *rest in rows} == windows
        uses = connection.execute(select(ValueUse.trajectory_id, ValueUse.state, ValueUse.update))
        assert {key: tuple(rest) for key, *rest in uses} == values


def test_a_window_is_written_once_a_batch(tmp_path: Path) -> None:
    """Statements do not grow with the records of a batch."""

    def statements(records: list[Record], name: str) -> int:
        store = RunStore.create(tmp_path / name, name, run_config())
        seen: list[str] = []
        event.listen(
            store._engine, "before_cursor_execute", lambda *given: seen.append(str(given[2]))
        )
        store.append(records)
        store.close()
        return len(seen)

    def lives(count: int) -> list[Record]:
        ids = [closed(10 * n, 0, 0, 8).window_id for n in range(count)]
        records: list[Record] = [group(n) for n in range(count)]
        for n in range(count):
            records.append(chunk(10 * n, 0, 8))
            records.append(WindowsClosed(at=2.0, windows=[closed(10 * n, 0, 0, 8)]))
            records.append(WindowsReady(at=2.0, window_ids=[ids[n]]))
        return [*records, WindowsDropped(at=3.0, window_ids=ids, reason="filtered")]

    assert statements(lives(3), "few") == statements(lives(300), "many")


def test_responses_side_by_side_are_the_same_as_one_by_one(tmp_path: Path, run_dir: Path) -> None:
    for folder in (write_run(tmp_path / "plain"), run_dir):
        with open_run(folder).moment() as reader:
            wanted = wanted_where(reader, None)
        spoken = ResponseSelection(*(column[wanted.last_offsets >= 0] for column in wanted))
        one_by_one = list(response_pages(folder / "journal", spoken, most_rows=1))
        assert one_by_one
        for most_tokens, most_rows in ((1, 3), (30, 3), (10**6, 10)):
            alone = iter(one_by_one)
            for page in response_pages(folder / "journal", spoken, most_tokens, most_rows):
                assert len(page.ids) <= most_rows
                for place, key in enumerate(page.ids.tolist()):
                    one = next(alone)
                    assert one.ids.tolist() == [key]
                    here = slice(*page.borders[place : place + 2].tolist())
                    for name in ("token_ids", "logprobs", "versions"):
                        got = getattr(page, name)[here]
                        assert got.tolist() == getattr(one, name).tolist()
                    assert page.streams.get(place) == one.streams.get(0)
            assert next(alone, None) is None
