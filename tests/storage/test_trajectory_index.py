"""Trajectories that are searched in memory are those that SQL finds, in the same order."""

from pathlib import Path
from random import Random
from typing import Any

import pytest

from storage import queries
from storage.queries import trajectory_index
from storage.run_store import RunStore
from tests.dashboard.scripted_run import write_run
from tests.storage.samples import chunk, group
from tests.storage.samples import write_run as write_samples

SORTS = ("trajectory_id", "length", "reward", "group_id", "status", "gap", "surprise")
SOURCES = {
    "sources": {"sums": {"kind": "math"}, "judge": {"kind": "function", "function": "m:f"}},
    "route": {"default": "sums"},
    "audit": {"source": "sums", "share": 1.0},
}
WHERE = (
    None, "reward > 0.5", "reward <= 0.5 and length >= 12", "reward is null",
    "not (length < 20 or status = 'finished')", "status like '%run%'",
    "reward_source = 'judge' and gap > 0", "audit_status is null or not correct",
    "reward_status in ('timeout', 'crashed')",
)  # fmt: skip


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(
        tmp_path_factory.mktemp("runs"), updates=5, roll_back_after=3, end=False, reward=SOURCES
    )


def both(run_dir: Path, filters: dict[str, Any], **wanted: Any) -> None:
    """The same of memory and of SQL, which a list of purposes is left to."""
    found = queries.trajectory_page(run_dir, filters={"purpose": "train", **filters}, **wanted)
    told = queries.trajectory_page(run_dir, filters={"purpose": ["train"], **filters}, **wanted)
    assert found.total == told.total
    assert found.rows["trajectory_id"].tolist() == told.rows["trajectory_id"].tolist()
    assert found.rows.astype(str).equals(told.rows.astype(str))


@pytest.mark.parametrize("sort", [sort for sort in SORTS if sort != "status"])
@pytest.mark.parametrize("descending", [True, False])
def test_every_order_is_that_of_sql(run_dir: Path, sort: str, descending: bool) -> None:
    for where in WHERE:
        for limit, offset in ((0, 0), (7, 0), (7, 5), (1000, 0), (5, 10_000)):
            both(
                run_dir, {}, where=where, sort=sort, descending=descending, limit=limit,
                offset=offset,
            )  # fmt: skip


def test_conditions_of_every_kind(run_dir: Path) -> None:
    both(run_dir, {"status": ["finished", "truncated"]})
    both(run_dir, {"status": "running"})
    both(run_dir, {"trajectory_id": [3, 1, 5, 10**6]}, sort="length")
    both(run_dir, {"trajectory_id": []})
    both(run_dir, {"reward_status": ["ok"], "reward_source": "judge"}, sort="gap")
    both(run_dir, {"correct": True, "audit_status": ["ok", "crashed"]})
    both(run_dir, {"group_id": 2}, sort="trajectory_id", descending=False)
    both(run_dir, {}, search="chain-0000")
    both(run_dir, {}, search="nobody says this")
    both(run_dir, {}, updates=(2, 2))
    both(run_dir, {}, updates=(2, 4))
    both(run_dir, {}, updates=(10**6, 10**6))


def test_the_newest_that_match_are_those_scored_last(run_dir: Path) -> None:
    judged: dict[str, Any] = {"filters": {"purpose": "train", "reward_source": "judge"}}
    every = queries.trajectory_page(run_dir, **judged, sort="rewarded_at", limit=1000).rows
    found = queries.trajectory_page(run_dir, **judged, newest=10, sort="gap", limit=1000)
    assert found.total == 10 < len(every)
    last = every["rewarded_at"].head(10)
    assert sorted(found.rows["rewarded_at"]) == sorted(last)


def test_random_conditions(run_dir: Path) -> None:
    random = Random(3)
    for _ in range(40):
        filters = (
            {} if random.random() < 0.5 else {"status": random.sample(["finished", "running"], 1)}
        )
        both(
            run_dir, filters, where=random.choice(WHERE), sort=random.choice(SORTS[:3]),
            descending=random.random() < 0.5, limit=random.randint(0, 30),
            offset=random.randint(0, 20),
        )  # fmt: skip


def test_a_run_that_goes_on_is_read_on(tmp_path: Path) -> None:
    """What had not ended is read again; the run's end is known at once."""
    from benchmarks.kit.synthetic_runs import RunShape, SyntheticRun

    run_dir = tmp_path / "run"
    made = SyntheticRun(run_dir, RunShape(400, batch=64, group=8, mishaps=True))
    store = made.store
    records = [record for number in range(1, 4) for record in made.update(number)]
    random, at = Random(1), 0
    while at < len(records):
        end = min(len(records), at + random.randint(20, 120))
        store.append(records[at:end])
        both(run_dir, {}, where="reward > 0.3", sort="reward", limit=500)
        both(run_dir, {"status": ["issued", "running"]}, limit=500)
        both(run_dir, {"status": "finished"}, sort="length", limit=500)
        at = end
    store.close()


def test_few_runs_are_kept(tmp_path: Path) -> None:
    for number in range(trajectory_index.MAX_RUNS + 2):
        run = write_run(tmp_path / str(number), updates=2, roll_back_after=None)
        both(run, {})
    assert trajectory_index._indexed_run.cache_info().currsize == trajectory_index.MAX_RUNS


def test_the_journal_is_not_read_for_audits_of_a_run_without_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hours of it lie between two visits of a page."""
    run_dir = write_samples(tmp_path / "run")

    def none_of_it(*_: object) -> None:
        raise AssertionError("the journal was read")

    monkeypatch.setattr(trajectory_index, "read_batches", none_of_it)
    both(run_dir, {}, where="audit_status is null")
    store = RunStore.open(run_dir)
    store.append([group(6), chunk(60, 0, 8)])
    store.close()
    both(run_dir, {}, where="audit_status is null")
