"""The page Environments: how episodes ended, and that a run without them says so; and the turns of
an environment on an answer's way."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from streamlit.testing.v1 import AppTest

from dashboard.views.dropped import reasons_html
from headrace.protocol.records.record_types import Record, RewardArrived, RunPhase, TrajectoryEnded
from storage.queries import answers, episode_ends, lives
from storage.run_store import RunStore
from tests.dashboard.test_pages import TIMEOUT_S, html_of, page
from tests.storage.samples import chunk, group, run_config

ENDS: tuple[tuple[Any, str | None, str], ...] = (
    ("finished", None, "finished"),
    ("finished", None, "finished"),
    ("truncated", "environment.max_turns", "environment.max_turns"),
    ("truncated", "task.max_response_length", "task.max_response_length"),
    ("failed", "environment_timeout: no answer before the deadline", "environment_timeout"),
    ("failed", "environment_timeout: 3 s", "environment_timeout"),
    ("failed", "environment.max_inserted: it leaves no room", "environment.max_inserted"),
    ("failed", "the engine said no", "failed"),
    ("aborted", None, "aborted"),
)


def run_of(folder: Path, *ends: tuple[Any, str | None, str], **sections: Any) -> Path:
    run_dir = folder / "runs" / "played-1"
    store = RunStore.create(run_dir, run_dir.name, run_config(**sections))
    records: list[Record] = [group(10, at=50.0, size=len(ends) + 1)]
    for key, (status, error, _) in enumerate(ends, 100):
        records.append(chunk(key, 0, 2, at=51.0))
        records.append(
            TrajectoryEnded(at=52.0, trajectory_id=key, status=status, length=2, error=error)
        )
    store.append(records)
    store.close()
    return run_dir


def opened(run: Path) -> AppTest:
    test = AppTest.from_function(page, args=("environments", str(run)), default_timeout=TIMEOUT_S)
    return test.run()


def test_each_end_is_counted_by_its_name_and_explained(tmp_path: Path) -> None:
    run = run_of(tmp_path, *ENDS, environment={"name": "guess"})
    counts: dict[str, int] = {"issued": 1}
    for *_, name in ENDS:
        counts[name] = counts.get(name, 0) + 1
    assert episode_ends(run) == counts
    assert list(episode_ends(run).values()) == sorted(counts.values(), reverse=True)
    test = opened(run)
    assert not test.exception
    shown = html_of(test)
    for name in counts:
        assert f"<b>{name if '.' in name else name.replace('_', ' ')}</b>" in shown
    assert "A step missed its deadline" in shown
    assert "They went on when the run ended" in shown


def test_tokens_that_a_failed_episode_lost_are_explained_by_its_end() -> None:
    """The page Rewards knows nothing of it."""
    assert "of episodes, on Environments" in reasons_html({"reward_failed": 2}, 10)


def test_a_run_without_an_environment_says_so(tmp_path: Path) -> None:
    test = opened(run_of(tmp_path, *ENDS))
    assert not test.exception
    assert "no [environment]" in html_of(test) + " ".join(m.value for m in test.markdown)


def test_an_environment_that_pays_is_the_kind_of_its_source(tmp_path: Path) -> None:
    run = run_of(tmp_path, *ENDS[:1], environment={"name": "guess"})
    store = RunStore.open(run)
    store.append([RewardArrived(at=53.0, trajectory_id=100, status="ok", reward=1.0, correct=True)])
    store.close()
    test = AppTest.from_function(page, args=("rewards", str(run)), default_timeout=TIMEOUT_S).run()
    assert not test.exception
    assert list(test.dataframe[0].value["kind"]) == ["environment"]


def test_the_turns_of_an_environment_are_a_stage_of_an_answers_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(tmp_path, environment={"name": "guess"})
    store = RunStore.open(run)
    said = [chunk(100, at, at + 1, index=at + 1, at=52.0 + at) for at in range(4)]
    inserted = [replace(one, lease_id=-1, generator="environment-0") for one in said[1::2]]
    opening = chunk(100, 0, 0, at=51.0)
    store.append([replace(opening, lease_id=-1), said[0], inserted[0], said[2], inserted[1]])
    store.close()
    found = lives(run, newest=4).sort_values("start")
    assert found[["stage", "start", "end"]].values.tolist() == [
        ["waiting", 50.0, 52.0], ["environment", 52.0, 53.0],
        ["generating", 53.0, 54.0], ["environment", 54.0, 55.0],
    ]  # fmt: skip
    monkeypatch.setattr(answers, "MAX_DISTANCE", 1)  # what lies far apart is not read
    assert set(lives(run, newest=4)["stage"]) == {"waiting", "generating"}


def test_an_answer_that_failed_does_not_wait_for_a_score(tmp_path: Path) -> None:
    run = run_of(tmp_path, *ENDS)
    store = RunStore.open(run)
    store.append([RunPhase(at=90.0, phase="training")])
    store.close()
    found = lives(run, newest=20)
    scoring = found[found["stage"] == "scoring"]
    assert sorted(scoring["trajectory_id"]) == [100, 101, 102, 103]
    assert set(scoring["end"]) == {90.0}
    assert set(found["trajectory_id"]) == set(range(100, 100 + len(ENDS)))
