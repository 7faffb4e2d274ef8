"""Questions in SQL: right answers, of one moment, within limits, and nothing but the run."""

import re
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import UserError
from storage.exports.sql import TABLES, ask
from storage.run_store import RunStore
from tests.storage.samples import group, write_run

DOCS = Path(__file__).parents[3] / "docs" / "exports.md"


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "sample-1")


def answer(run_dir: Path, query: str, **limits: Any) -> list[tuple[Any, ...]]:
    with ask(run_dir, query, **limits) as found:
        return list(found.rows)


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("select count(*) from trajectories", [(5,)]),
        ("select count(*), sum(loss_mask) from tokens", [(53, 11)]),
        ("select avg(value), count(value) from tokens where trajectory_id = 10", [(1.5, 16)]),
        ("select state, count(*) from windows group by all order by all",
         [("dropped", 2), ("ready", 2), ("trained", 2)]),
        ("select value from metrics where name = 'actor/pg_loss' and not abandoned order by update",
         [(0.5,), (0.125,)]),
        ("select token_ids[1:3] from trajectories where trajectory_id = 30", [([0, 1, 2],)]),
        ("with t as (from tokens) select max(position) from t", [(23,)]),
    ],
)  # fmt: skip
def test_answers(run_dir: Path, query: str, rows: list[tuple[Any, ...]]) -> None:
    assert answer(run_dir, query) == rows


def test_scores_are_what_trajectories_say(run_dir: Path) -> None:
    """A slow twin, by the standard deviation that DuckDB has."""
    twin = (
        "select purpose, prompt_id, min(domain), min(reward_source), count(*), count(reward), "
        "avg(reward), stddev_pop(reward), min(reward), max(reward), avg(correct::int) "
        "from trajectories group by purpose, prompt_id order by purpose, prompt_id"
    )
    found = answer(run_dir, "select * exclude (run_id) from scores order by purpose, prompt_id")
    assert len(found) > 1
    for row, expected in zip(found, answer(run_dir, twin), strict=True):
        assert row[:6] == expected[:6]
        assert list(row[6:]) == pytest.approx(list(expected[6:]))


HIDDEN = [
    "select t.trajectory_id, t.status from trajectories t join tokens k using (trajectory_id) "
    "where k.position = 0 order by 1",
    "select count(*) from windows natural join (select trajectory_id, reward from trajectories)",
    "select * exclude (prompt) from trajectories order by trajectory_id",
    "select columns('.*version') from windows order by all",
    "select t from trajectories t order by t.trajectory_id",
    "select count(*) from metrics where columns(['value', 'train_time_s']) > 0.3",
    "summarize windows",
    "from (pivot windows on state in ('trained', 'ready') using count(*) group by final) "
    "order by all",
    "select max(struct_extract(w, 'masked_tokens')) from windows w",
    "select * from query('select max(tokens) from windows')",
    "select a.index from windows a semi join windows b on a.start = b.end order by all",
]


@pytest.mark.parametrize("query", HIDDEN)
def test_columns_that_a_query_touches_without_naming_them_are_made(
    run_dir: Path, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = answer(run_dir, query)
    monkeypatch.setattr("storage.exports.sql._Table.needs", lambda table, text: None)
    assert repr(found) == repr(answer(run_dir, query))


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("select 1; select 2", "write one SELECT"),
        ("create table t as select 1", "write one SELECT"),
        ("copy tokens to 'x.csv'", "write one SELECT"),
        ("set memory_limit = '100GB'", "write one SELECT"),
        ("attach 'x.db'", "write one SELECT"),
        ("install sqlite", "write one SELECT"),
        ("", "write one SELECT"),
        ("selec 1", "syntax error"),
        ("select * from read_text('/etc/hostname')", "disabled by configuration"),
        ("select * from glob('/*')", "disabled by configuration"),
        ("select * from 'https://example.com/a.parquet'", "disabled by configuration"),
        ("select * from run_dir", "does not exist"),
        ("select nothing from tokens", "Candidate bindings"),
    ],
)
def test_what_a_query_may_not(run_dir: Path, query: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        answer(run_dir, query)
    assert "\n" not in str(caught.value)


def test_limits_of_time_and_memory(run_dir: Path) -> None:
    for seconds in (0.0, 0.01):
        with pytest.raises(UserError, match="took longer than"):
            answer(run_dir, "select count(*) from range(1000000000000)", seconds=seconds)
    with pytest.raises(UserError, match=r"longer than 0\.2 s; `headrace sql --seconds"):
        answer(run_dir, "select count(*) from range(1000000000000)", seconds=0.2)
    with pytest.raises(UserError, match="more than 64 MiB of memory; `headrace sql --memory"):
        answer(run_dir, "select list(i) from range(1000000000) t(i)", memory_mib=64)


def test_a_query_sees_one_moment_of_a_run_that_goes_on(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "live-1")
    query = "select count(*) from trajectories a, trajectories b"
    with ask(run_dir, query) as first:
        store = RunStore.open(run_dir)
        store.append([group(100, at=60.0)])
        store.close()
        assert list(first.rows) == [(25,)]
    assert answer(run_dir, query) == [(36,)]


def snippets() -> list[str]:
    """Queries in the documentation."""
    blocks = re.findall(r"```sql\n-- headrace sql\n(.*?)```", DOCS.read_text(), re.DOTALL)
    return [query for block in blocks for query in block.split(";") if query.strip()]


@pytest.mark.parametrize("query", snippets())
def test_documented_queries_are_answered(run_dir: Path, query: str) -> None:
    assert answer(run_dir, query)


def test_documentation_names_every_table() -> None:
    text = DOCS.read_text()
    assert len(snippets()) >= 5
    assert all(f"`{name}`" in text for name in TABLES)
