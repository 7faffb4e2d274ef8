"""Every query of docs/storage.md, pasted as it stands, answers what the text above it says."""

import json
import math
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from sqlalchemy import select

from storage import queries
from storage.database.reader import open_run
from storage.database.tables import VersionLoad
from tests.dashboard.scripted_run import write_run

PAGE = Path(__file__).parents[2] / "docs" / "storage.md"
PRINTS = {
    "import duckdb": {'duckdb.sql("""': 'answer = duckdb.sql("""', ".show()": ".fetchall()"},
    "import polars": {"print(known": "answer = (known"},
}
"""How a block prints its answer, and how it is kept instead."""
BLOCK = re.compile(r"^```(sql|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
Rows = list[tuple[Any, ...]]


def blocks(language: str) -> list[str]:
    """The page's blocks in one language; those that ask an exported file are tried with exports."""
    found = [text for name, text in BLOCK.findall(PAGE.read_text()) if name == language]
    return [text for text in found if ".parquet'" not in text]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs"), updates=12, roll_back_after=6)


def rewards(run_dir: Path, rows: Rows) -> None:
    line = queries.metric_series(run_dir, ["reward/mean"])
    assert rows == list(zip(line["x"], line["value"], strict=True))


def longest_right(run_dir: Path, rows: Rows) -> None:
    page = queries.trajectory_page(
        run_dir, where="reward = 1 and purpose = 'train'", sort="length", limit=10
    ).rows
    assert [row[1] for row in rows] == list(page["length"])
    texts = dict(zip(page["trajectory_id"], page["prompt"], strict=True))
    assert all(texts.get(key, text) == text for key, _, text in rows)


def trained_late(run_dir: Path, rows: Rows) -> None:
    late = [row[2] for row in rows]
    assert late == sorted(late, reverse=True)
    assert min(late) >= 0
    for key, index, _, trained, masked in rows:
        windows = queries.trajectory_detail(run_dir, key).windows.set_index("index")
        left_out = sum(tokens for _, _, _, tokens in json.loads(masked))
        assert trained + left_out == windows.loc[index, "tokens"]


def dropped(run_dir: Path, rows: Rows) -> None:
    assert dict(rows) == queries.dropped_tokens(run_dir)
    ledger = queries.run_summary(run_dir)["tokens"]["dropped"]
    assert dict(rows) == {reason: tokens for reason, tokens in ledger.items() if tokens}


def stood_still(run_dir: Path, rows: Rows) -> None:
    reader = open_run(run_dir)
    loads = select(VersionLoad.version, VersionLoad.gap_s).where(VersionLoad.run == reader.key)
    newest = reader.rows(loads.order_by(VersionLoad.at.desc()).limit(10))
    assert sorted(row[1] for row in rows) == sorted(load.version for load in newest)
    assert {row[2] for row in rows} == {load.gap_s for load in newest}


MEANINGS: dict[str, Callable[[Path, Rows], None]] = {
    "reward/mean": rewards,
    "ORDER BY t.length": longest_right,
    "updates_late": trained_late,
    "json_each": dropped,
    "gap_s": stood_still,
}


@pytest.mark.parametrize("word", MEANINGS)
def test_sql_to_paste(run_dir: Path, word: str) -> None:
    (query,) = [text for text in blocks("sql") if word in text]
    with closing(sqlite3.connect(run_dir / "headrace.sqlite")) as base:
        rows = base.execute(query).fetchall()
    assert rows
    MEANINGS[word](run_dir, rows)


def test_every_block_is_tried() -> None:
    assert len(blocks("sql")) == len(MEANINGS)
    assert len(blocks("python")) == 2


def pasted(run_dir: Path, word: str) -> Any:
    """Run a block as it stands, but for the line that prints its answer; returns that."""
    (text,) = [text for text in blocks("python") if word in text]
    for old, new in {"runs/RUN": str(run_dir), **PRINTS[word]}.items():
        assert old in text
        text = text.replace(old, new)
    names: dict[str, Any] = {}
    exec(text, names)
    return names["answer"]


@pytest.fixture(scope="module")
def tokens(run_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Logprobs, values and the updates that trained them, of all tokens of the run."""
    out = tmp_path_factory.mktemp("out") / "tokens.parquet"
    queries.export(run_dir, "tokens", "parquet", out)
    columns = ["logprob", "value", "trained_at_update"]
    table = pq.read_table(out, columns=columns)
    return {name: table[name].to_numpy().astype(float) for name in columns}


def test_the_journal_without_our_code(run_dir: Path, tokens: dict[str, Any]) -> None:
    ((_, count, mean),) = pasted(run_dir, "import duckdb")
    logprobs = tokens["logprob"]
    assert count == len(logprobs)
    assert mean == pytest.approx(float(np.nanmean(logprobs)), rel=1e-5)


def test_diagnostics_without_our_code(run_dir: Path, tokens: dict[str, Any]) -> None:
    found = dict(pasted(run_dir, "import polars").rows())
    assert all(math.isfinite(value) for value in found.values())
    last = max(found)  # which no rollback took back
    mine = tokens["value"][tokens["trained_at_update"] == last]
    assert found[last] == pytest.approx(float(np.nanmean(mine)), rel=1e-4)


def test_what_is_not_known_is_null(run_dir: Path) -> None:
    """Nothing that goes out as JSON has a NaN in it."""
    json.dumps(queries.run_summary(run_dir), allow_nan=False)
    for line in queries.list_runs(run_dir.parent):
        json.dumps(asdict(line), default=str, allow_nan=False)
    page = queries.trajectory_page(run_dir, where="reward is null").rows
    assert page["reward"].isna().all()
