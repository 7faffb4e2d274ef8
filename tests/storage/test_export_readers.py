"""Exports as others read them: every kind in every format, with pyarrow, pandas, polars, DuckDB and
`datasets`, as these are called by somebody who knows nothing of the files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import duckdb
import msgspec
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq
import pytest

from headrace.errors import UserError
from headrace.protocol.records.record_types import Record, RewardArrived, RunPhase, TrajectoryEnded
from storage.exports import export
from storage.exports.job import KINDS
from storage.exports.writers import DATASETS, FORMATS
from storage.run_store import RunStore
from tasks.procedural.chain_sums import CHAIN_SUMS
from tasks.procedural.character_tokenizer import build_tokenizer
from tests.storage.samples import chunk, group, run_config, write_run

Read = Callable[[Path, Path], list[dict[str, Any]]]
LATE = 150
"""Rows before the first value: more than polars looks at."""


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose first answers lack nearly everything, and whose texts begin as numbers."""
    root = tmp_path_factory.mktemp("runs")
    build_tokenizer(CHAIN_SUMS.characters).save_pretrained(root / "model")
    run_dir = write_run(root / "late-1", run_config(model={"path": str(root / "model")}))
    store = RunStore.open(run_dir)
    store.append(chosen_records())
    store.append([group(100 + number, at=50.0) for number in range(LATE)])
    store.append([chunk(1000 + 10 * n, 0, 3, at=51.0 + n) for n in range(LATE)])
    store.close()
    return run_dir


def chosen_records() -> list[Record]:
    """Groups of three with a right answer, a wrong one, and the right one once more."""
    records: list[Record] = []
    for number in (300, 301):
        records.append(group(number, at=44.0, size=3))
        for member, token in enumerate((4, 9, 4)):
            key = 10 * number + member
            made = chunk(key, 0, 3, at=45.0, finish="stop")
            tokens = np.full(3, token, np.int32)
            records += [
                msgspec.structs.replace(made, token_ids=tokens),
                TrajectoryEnded(at=46.0, trajectory_id=key, status="finished", length=3),
                RewardArrived(
                    at=47.0, trajectory_id=key, status="ok", reward=0.5 + (token == 4) / 4,
                    correct=token == 4, seconds=0.1,
                ),
            ]  # fmt: skip
    return records


NUMBERS = pa.list_(pa.float64())
# Of lists that hold nothing but null, pyarrow loses the elements where it finds the type later.
NULL_FIRST = pa.schema([
    ("mask_reasons", pa.list_(pa.string())), ("learner_logprobs", NUMBERS), ("values", NUMBERS),
    ("advantages", NUMBERS), ("returns", NUMBERS),
])  # fmt: skip


def by_pyarrow(path: Path, _: Path) -> list[dict[str, Any]]:
    def read_json(name: str) -> pa.Table:
        with path.open() as lines:
            columns = json.loads(lines.readline())
        known = pa.schema([field for field in NULL_FIRST if field.name in columns])
        parse = pyarrow.json.ParseOptions(explicit_schema=known)
        return pyarrow.json.read_json(name, parse_options=parse)

    readers: dict[str, Callable[[str], pa.Table]] = {
        ".parquet": pq.read_table,
        ".jsonl": read_json,
        ".csv": pyarrow.csv.read_csv,
        ".arrow": lambda name: pa.ipc.open_file(name).read_all(),
    }
    table = readers[path.suffix](str(path))
    table.validate(full=True)
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def by_pandas(path: Path, _: Path) -> list[dict[str, Any]]:
    readers: dict[str, Callable[[Path], pd.DataFrame]] = {
        ".parquet": pd.read_parquet,
        ".jsonl": lambda name: pd.read_json(name, lines=True),
        ".csv": pd.read_csv,
        ".arrow": lambda name: pa.ipc.open_file(str(name)).read_pandas(),
    }
    frame = readers[path.suffix](path)
    found: list[dict[str, Any]] = json.loads(frame.to_json(orient="records"))
    return found


def by_polars(path: Path, _: Path) -> list[dict[str, Any]]:
    readers: dict[str, Callable[[Path], pl.DataFrame]] = {
        ".parquet": pl.read_parquet,
        ".jsonl": pl.read_ndjson,
        ".csv": pl.read_csv,
        ".arrow": pl.read_ipc,
    }
    return readers[path.suffix](path).to_dicts()


def by_duckdb(path: Path, _: Path) -> list[dict[str, Any]]:
    with duckdb.connect() as connection:
        source = f"'{path}'"
        if path.suffix == ".arrow":
            connection.register("export", pa.ipc.open_file(str(path)).read_all())
            source = "export"
        return list(connection.sql(f"select * from {source}").to_arrow_table().to_pylist())


def by_datasets(path: Path, cache: Path) -> list[dict[str, Any]]:
    form = "json" if path.suffix == ".jsonl" else path.suffix[1:]
    found = datasets.load_dataset(form, data_files=str(path), split="train", cache_dir=str(cache))
    return list(found)


READERS = {
    "pyarrow": by_pyarrow,
    "pandas": by_pandas,
    "polars": by_polars,
    "duckdb": by_duckdb,
    "datasets": by_datasets,
}
SAMPLES: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "trajectories": ("trajectory_id", 10, {"reward": 1.0, "correct": True, "length": 20}),
    "tokens": ("learner_logprob", -0.75, {"trajectory_id": 10, "position": 3, "value": 1.0}),
    "metrics": ("name", "schedule/held", {"value": 2.0, "source": "sample", "lineage": None}),
    "windows": ("reason", "reward_failed", {"trajectory_id": 20, "index": 2, "final": True}),
    "scores": ("prompt_id", "prompt-0", {"samples": 54, "lowest": 0.5, "best": 0.75}),
    "preferences": ("chosen_id", 3000, {"rejected_id": 3001, "margin": 0.25}),
    "sft": ("trajectory_id", 3010, {"prompt_id": "prompt-1", "reward": 0.75}),
}
"""Of each kind: a column, a value by which a row is found, and what else that row holds."""


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("fmt", [fmt for fmt in FORMATS if fmt != DATASETS])
@pytest.mark.parametrize("kind", KINDS)
def test_every_reader_opens_every_file(
    run_dir: Path, tmp_path: Path, kind: str, fmt: str, reader: str
) -> None:
    out = tmp_path / f"out.{fmt}"
    summary = export(run_dir, kind, None, out)
    read: Read = READERS[reader]
    rows = read(out, tmp_path / "cache")
    assert len(rows) == summary.rows
    assert not set(summary.left_out) & set(rows[0])
    name, value, others = SAMPLES[kind]
    found = [row for row in rows if row[name] == value]
    assert found
    for column, wanted in others.items():
        got = found[0][column]
        assert got == wanted or (wanted is None and (got is None or got != got)), column
    assert type(rows[-1]["run_id"]) is str


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_for_datasets(run_dir: Path, tmp_path: Path, kind: str) -> None:
    out = tmp_path / "set"
    for force in (False, True):
        summary = export(run_dir, kind, DATASETS, out, force=force)
        found = datasets.load_from_disk(str(out))
        assert (len(found), found.split) == (summary.rows, "train")
        name, value, others = SAMPLES[kind]
        row = next(row for row in found if row[name] == value)
        assert {column: row[column] for column in others} == others
        assert summary.num_bytes == sum(path.stat().st_size for path in out.iterdir())
    (out / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="other things than a dataset"):
        export(run_dir, kind, DATASETS, out, force=True)
    with pytest.raises(UserError, match="is a file, and a dataset is a folder"):
        export(run_dir, kind, DATASETS, out / "mine.txt", force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_the_first_rows_hold_a_value_of_every_column(run_dir: Path, tmp_path: Path) -> None:
    for kind in KINDS:
        out = tmp_path / f"{kind}.jsonl"
        summary = export(run_dir, kind, None, out)
        lines = [json.loads(line) for line in out.read_text().splitlines()]
        for name in lines[0]:
            assert any(row[name] not in (None, []) for row in lines[:50]), (kind, name)
        assert len(lines) == summary.rows


def test_no_row_is_lost_or_doubled_where_rows_move(run_dir: Path, tmp_path: Path) -> None:
    export(run_dir, "tokens", None, tmp_path / "t.parquet")
    table = pq.read_table(tmp_path / "t.parquet", columns=["trajectory_id", "position"])
    places = [tuple(row.values()) for row in table.to_pylist()]
    assert len(places) == len(set(places)) == 53 + 18 + 3 * LATE


def test_text_that_reads_like_numbers_stays_one_column(tmp_path: Path) -> None:
    """In CSV an answer `7` may be followed by `1/2`, far down."""
    run_dir = tmp_path / "runs" / "numbers-1"
    store = RunStore.create(run_dir, run_dir.name, run_config())
    last = msgspec.structs.replace(group(LATE), prompt_id="half", answer="1/2")
    store.append([RunPhase(at=0.0, phase="starting"), *map(group, range(LATE)), last])
    store.close()
    out = tmp_path / "a.csv"
    export(run_dir, "trajectories", None, out)
    first = pd.read_csv(out, nrows=5)
    assert "1/2" in set(first["answer"])
    assert set(pd.read_csv(out)["answer"]) == {"1", "2", "3", "1/2"}


def test_scores_are_filtered_by_their_deviation(run_dir: Path, tmp_path: Path) -> None:
    """Three answers of 0.75, 0.5, 0.75, twice over, deviate by 0.118; a single one does not."""
    out = tmp_path / "s.parquet"
    export(run_dir, "scores", None, out)
    everything = pq.read_table(out, columns=["prompt_id", "std"]).to_pylist()
    export(run_dir, "scores", None, out, "std > 0.1", force=True)
    found = pq.read_table(out, columns=["prompt_id", "std"]).to_pylist()
    assert found == [row for row in everything if row["std"] is not None and row["std"] > 0.1] != []
