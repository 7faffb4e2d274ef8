"""Exports: whole files or none, in every format, with the rows that were asked for."""

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet
import pytest
from sqlalchemy import func, select

from headrace.errors import UserError
from headrace.protocol.records.record_types import MetricsSampled, Record, WindowsClosed
from storage import exports
from storage.database.reader import open_run
from storage.database.tables import Trajectory
from storage.exports import export, pages, tokens
from storage.exports.columns import type_name
from storage.exports.packed_rows import ExportPart, RowBuffer
from storage.exports.sql import ask
from storage.exports.writers import FORMATS
from storage.journal.record_batches import DamagedError, SegmentWalk
from storage.journal.segments import segment_paths
from storage.queries import trajectory_detail
from storage.run_store import RunStore
from storage.text.token_table import REASONS
from tests.storage.samples import chunk, closed, group, names_of, run_config, write_run


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "sample-1")


FILES = [fmt for fmt in FORMATS if fmt != "datasets"]
OWN = ["trajectories", "tokens", "metrics", "windows"]
"""Kinds that need no tokenizer."""


def rows_of(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    if path.suffix == ".arrow":
        return list(pa.ipc.open_file(str(path)).read_all().to_pylist())
    reader = "read_parquet" if path.suffix == ".parquet" else "read_csv_auto"
    with duckdb.connect() as connection:
        found = connection.execute(f"select * from {reader}('{path}')")
        names = [column[0] for column in found.description or []]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


@pytest.mark.parametrize("fmt", FILES)
def test_trajectories(run_dir: Path, tmp_path: Path, fmt: str) -> None:
    out = tmp_path / f"out.{fmt}"
    summary = export(run_dir, "trajectories", fmt, out)
    rows = {row["trajectory_id"]: row for row in rows_of(out)}
    assert summary.rows == len(rows) == 5
    assert set(rows) == {10, 20, 30, 40, 50}
    row = rows[10]
    assert (row["run_id"], row["status"], row["reward"]) == ("sample-1", "finished", 1.0)
    assert (row["prompt"], str(row["answer"]), row["length"]) == ("1 + 1 =", "2", 20)
    assert json.loads(row["reward_parts"]) == {"exact": 1.0}
    token_ids = json.loads(row["token_ids"]) if fmt == "csv" else row["token_ids"]
    assert token_ids == list(range(20))
    if fmt != "csv":
        assert row["trained_at_update"] == [1] * 8 + [2] * 8 + [-1] * 4
        assert rows[50]["token_ids"] == []
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("fmt", FILES)
def test_tokens(run_dir: Path, tmp_path: Path, fmt: str) -> None:
    out = tmp_path / f"out.{fmt}"
    export(run_dir, "tokens", fmt, out, where="trajectory_id = 10")
    rows = rows_of(out)
    tokens = trajectory_detail(run_dir, 10).tokens
    assert [row["position"] for row in rows] == list(range(20))
    assert [row["token_id"] for row in rows] == tokens.token_ids.tolist()
    assert [row["version"] for row in rows] == tokens.versions.tolist()
    assert [row["loss_mask"] for row in rows] == tokens.loss_mask.tolist()
    assert [row["logprob"] for row in rows] == tokens.logprobs.tolist()
    assert rows[3]["value"] == 1.0
    assert [row["mask_reason"] or None for row in rows] == names_of(
        tokens.mask_reasons, REASONS
    ).tolist()
    assert {row["source"] for row in rows} == {"policy"}
    assert {row["loss_weight"] for row in rows} == {1.0}
    wanted = "run_id prompt_id group_id attempt status finish trained_at_update learner_logprob "
    wanted += "advantage turn sampled inserted correct reward rewards reward_parts "
    wanted += "reward_seconds reward_source answer info"
    assert set(wanted.split()) <= set(rows[0])


def test_metrics(run_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "metrics.jsonl"
    export(run_dir, "metrics", None, out, where="name = 'actor/pg_loss' and abandoned = false")
    rows = rows_of(out)
    assert [(row["update"], row["lineage"], row["value"]) for row in rows] == [
        (1, 0, 0.5),
        (2, 1, 0.125),
    ]
    everything = export(run_dir, "metrics", None, tmp_path / "all.parquet")
    assert everything.rows == 3 * 3 + 1 + 3 * 9
    export(run_dir, "metrics", None, tmp_path / "bias.jsonl", where="name = 'value/bias'")
    rows = [row for row in rows_of(tmp_path / "bias.jsonl") if not row["abandoned"]]
    assert [(row["update"], row["bin"], row["value"]) for row in rows][:2] == [
        (1, "0 to 10 %", 0.5),
        (1, "20 to 30 %", -0.25),
    ]
    assert len(rows) == 18


def test_filters_of_tokens_reach_trajectories_and_tokens(run_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    where = "purpose = 'train' and position < 3 and (status = 'running' or value > 0)"
    export(run_dir, "tokens", None, out, where=where)
    found = [(row["trajectory_id"], row["position"]) for row in rows_of(out)]
    assert sorted(found) == [(10, 0), (10, 1), (10, 2), (30, 0), (30, 1), (30, 2)]


def test_text_is_exported_where_there_is_a_tokenizer(tmp_path: Path) -> None:
    from tasks.procedural.chain_sums import CHAIN_SUMS
    from tasks.procedural.character_tokenizer import build_tokenizer, vocabulary

    tokens = vocabulary(CHAIN_SUMS.characters)
    build_tokenizer(CHAIN_SUMS.characters).save_pretrained(tmp_path / "model")
    run_dir = write_run(tmp_path / "run", run_config(model={"path": str(tmp_path / "model")}))
    export(run_dir, "trajectories", None, tmp_path / "a.jsonl", where="trajectory_id = 10")
    assert rows_of(tmp_path / "a.jsonl")[0]["response"] == "".join(tokens[4:20])
    export(run_dir, "tokens", None, tmp_path / "b.jsonl", where="trajectory_id = 10")
    assert [row["token"] for row in rows_of(tmp_path / "b.jsonl")] == list(tokens[:20])


def test_small_pages_give_the_same_rows(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export(run_dir, "tokens", None, tmp_path / "large.jsonl")
    monkeypatch.setattr(pages, "PAGE_TRAJECTORIES", 1)
    monkeypatch.setattr(pages, "SQL_ROWS", 2)
    seen: list[exports.ExportProgress] = []
    export(run_dir, "tokens", None, tmp_path / "small.jsonl", watch=seen.append)
    assert (tmp_path / "small.jsonl").read_text() == (tmp_path / "large.jsonl").read_text()
    assert seen == sorted(seen)
    assert len(seen) > 5
    assert seen[-1] == (1.0, 53)


def test_chosen_columns_in_the_order_asked_for(run_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    export(run_dir, "tokens", None, out, columns=["value", "position", "status"], where="value > 0")
    rows = rows_of(out)
    assert list(rows[0]) == ["value", "position", "status"]
    assert rows[0] == {"value": 1.0, "position": 0, "status": "finished"}
    with pytest.raises(UserError, match="columns: no column valu; did you mean value"):
        export(run_dir, "tokens", None, tmp_path / "b.jsonl", columns=["valu"])


def test_columns_without_a_value_are_left_out_and_named(run_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    left_out = export(run_dir, "tokens", None, out).left_out
    schema = pa.parquet.read_schema(out)
    assert {"token", "mark", "return", "error"} <= set(left_out)
    assert not set(left_out) & set(schema.names)
    assert json.loads(schema.metadata[b"left_out"]) == list(left_out)
    with pytest.raises(UserError, match="there is no value in error, mark"):
        export(run_dir, "tokens", None, tmp_path / "b.parquet", columns=["error", "mark"])
    assert list(tmp_path.iterdir()) == [out]


def test_nothing_found_is_a_file_with_every_column(run_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    summary = export(run_dir, "tokens", None, out, where="length > 1000")
    assert (summary.rows, summary.left_out) == (0, ())
    assert {"token", "mark", "position"} <= set(pa.parquet.read_schema(out).names)


def test_an_export_of_late_answers_reads_nothing_from_before_they_began(tmp_path: Path) -> None:
    """Of the thousands of segments of a long run."""
    run_dir = write_run(tmp_path / "long-1")
    store = RunStore.open(run_dir)
    store.append([group(6), chunk(60, 0, 8)])
    store.close()
    early, _ = segment_paths(run_dir / "journal")
    frame = list(SegmentWalk(early))[1]
    data = bytearray(early.read_bytes())
    data[frame.end - 9] ^= 1
    early.write_bytes(data)
    export(run_dir, "trajectories", None, tmp_path / "late.jsonl", where="trajectory_id >= 60")
    assert [row["token_ids"] for row in rows_of(tmp_path / "late.jsonl")] == [list(range(8))]
    with pytest.raises(DamagedError):
        export(run_dir, "trajectories", None, tmp_path / "all.jsonl")


@pytest.mark.parametrize("fmt", ["parquet", "arrow"])
@pytest.mark.parametrize("kind", OWN)
def test_a_file_says_what_its_columns_are(
    run_dir: Path, tmp_path: Path, kind: str, fmt: str
) -> None:
    out = tmp_path / f"out.{fmt}"
    export(run_dir, kind, None, out)
    read = pa.parquet.read_schema if fmt == "parquet" else lambda p: pa.ipc.open_file(str(p)).schema
    schema = read(out)
    assert (schema.metadata[b"kind"], schema.metadata[b"format"]) == (kind.encode(), b"3")
    assert schema.metadata[b"run_id"] == b"sample-1"
    columns = json.loads(schema.metadata[b"columns"])
    assert list(columns) == schema.names
    for field in schema:
        assert field.metadata[b"meaning"].decode() == columns[field.name]["meaning"] != ""
        assert type_name(field.type) == columns[field.name]["type"]
    assert pa.types.is_dictionary(schema.field("run_id").type)


def test_what_nobody_reported_is_null(run_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    export(run_dir, "tokens", None, out)
    with duckdb.connect() as connection:
        query = f"select count(*), count(value), avg(value) from '{out}' where trajectory_id = 10"
        assert connection.execute(query).fetchall() == [(20, 16, 1.5)]


@pytest.mark.parametrize("kind", OWN)
def test_an_export_is_one_moment_of_a_run_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    run_dir = write_run(tmp_path / "live-1")
    monkeypatch.setattr(pages, "PAGE_TRAJECTORIES", 1)
    told: list[exports.ExportProgress] = []

    def write_on(now: exports.ExportProgress) -> None:
        if not told:
            store = RunStore.open(run_dir)
            store.append(WHAT_HAPPENS_NEXT)
            store.close()
        told.append(now)

    texts: list[str] = []
    for watch in (None, write_on, None):
        out = tmp_path / f"{len(texts)}.jsonl"
        export(run_dir, kind, None, out, watch=watch)
        texts.append(out.read_text())
    assert texts[1] == texts[0]
    assert len(texts[2].splitlines()) > len(texts[0].splitlines())


@pytest.mark.postgresql
def test_exports_and_answers_are_the_same_on_postgresql(
    tmp_path: Path, postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = run_config(storage={"database": postgresql_url})
    runs = [write_run(tmp_path / "file" / "a-1"), write_run(tmp_path / "server" / "a-1", served)]
    monkeypatch.setattr(pages, "PAGE_TRAJECTORIES", 1)
    monkeypatch.setattr(pages, "SQL_ROWS", 2)
    filters = {"metrics": None, "scores": "std >= 0 and solved >= 0"}
    for kind in [*OWN, "scores"]:
        texts: list[str] = []
        for run in runs:
            out = run.parent / f"{kind}.jsonl"
            export(run, kind, None, out, where=filters.get(kind, "trajectory_id < 45"))
            texts.append(out.read_text())
        assert texts[0] == texts[1]
    query = "select count(*), avg(k.value) from tokens k join windows w using (trajectory_id)"
    found: list[Any] = []
    for run in runs:
        with ask(run, query) as answer:
            found.append(list(answer.rows))
    assert found[0] == found[1]
    with open_run(runs[1]).moment() as reader:
        before = reader.rows(select(func.count()).select_from(Trajectory))
        store = RunStore.open(runs[1])
        store.append(WHAT_HAPPENS_NEXT)
        store.close()
        assert reader.rows(select(func.count()).select_from(Trajectory)) == before


WHAT_HAPPENS_NEXT: list[Record] = [
    group(100, at=60.0),
    chunk(30, 5, 8, index=1, at=60.0),
    chunk(1000, 0, 8, at=61.0),
    WindowsClosed(at=62.0, windows=[closed(1000, 0, 0, 8)]),
    MetricsSampled(at=63.0, update=2, metrics={"schedule/held": 3.0}),
]


def test_target_that_exists(run_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("mine")
    with pytest.raises(UserError, match="--force"):
        export(run_dir, "metrics", None, out)
    assert out.read_text() == "mine"
    export(run_dir, "metrics", None, out, force=True)
    assert len(rows_of(out)) == 37


def test_a_link_that_others_put_beside_the_target_leads_nowhere(
    run_dir: Path, tmp_path: Path
) -> None:
    out, theirs = tmp_path / "shared" / "out.csv", tmp_path / "bashrc"
    theirs.write_text("mine")
    out.parent.mkdir()
    (out.parent / f".out.csv.{os.getpid()}.part").symlink_to(theirs)
    export(run_dir, "metrics", None, out)
    assert (theirs.read_text(), out.is_symlink()) == ("mine", False)


def test_a_target_that_cannot_be_written_is_said_before_the_work(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unexpected(rows: tokens.TokenRows) -> Iterator[ExportPart]:
        raise AssertionError("nothing should have been read")

    monkeypatch.setattr(tokens.TokenRows, "parts", unexpected)
    for force in (False, True):
        with pytest.raises(UserError, match="is a folder; name a file in it"):
            export(run_dir, "tokens", "parquet", tmp_path, force=force)
        with pytest.raises(UserError, match="is not a regular file"):
            export(run_dir, "tokens", "parquet", Path("/dev/null"), force=force)
    with pytest.raises(UserError, match=r"cannot write .*: File name too long"):
        export(run_dir, "tokens", "csv", tmp_path / ("x" * 300))
    with pytest.raises(UserError, match=r"cannot write /proc/out\.csv"):
        export(run_dir, "tokens", None, Path("/proc/out.csv"))
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_one_line(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(spool: RowBuffer, batch: pa.RecordBatch) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(RowBuffer, "add", full)
    with pytest.raises(UserError, match=r"cannot write .*: No space left on device"):
        export(run_dir, "tokens", None, tmp_path / "out.parquet")
    assert list(tmp_path.iterdir()) == []


def test_export_that_fails_leaves_nothing(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_parts = tokens.TokenRows.parts

    def break_off(rows: tokens.TokenRows) -> Iterator[ExportPart]:
        yield next(real_parts(rows))
        raise KeyboardInterrupt

    monkeypatch.setattr(tokens.TokenRows, "parts", break_off)
    with pytest.raises(KeyboardInterrupt):
        export(run_dir, "tokens", None, tmp_path / "out.parquet")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "name", "where", "message"),
    [
        (
            "weights",
            "out.jsonl",
            None,
            "trajectories, tokens, metrics, windows, scores, pref",
        ),
        ("tokens", "out.xlsx", None, "unknown format"),
        ("tokens", "no/such/out.jsonl", None, "is not a folder"),
        ("tokens", "out.jsonl", "logprb < 0", "did you mean logprob"),
        ("trajectories", "out.jsonl", "rewrd > 0", "did you mean reward"),
        ("metrics", "out.jsonl", "nam = 'x'", "did you mean name"),
    ],
)
def test_mistakes(
    run_dir: Path, tmp_path: Path, kind: str, name: str, where: str | None, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        export(run_dir, kind, None, tmp_path / name, where=where)
    assert list(tmp_path.iterdir()) == []
