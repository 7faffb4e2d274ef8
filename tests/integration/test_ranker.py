"""A run that is paid by a ranker, which learns along: processes die, and every score names a
version that there was, one for each group."""

import os
import signal
from collections.abc import Iterator

import pytest

from tests.integration.runs import REPOSITORY, Run, headrace

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Its reward worker, learner and coordinator were killed."""
    run = Run(
        tmp_path_factory.mktemp("rewrite") / "runs",
        "stop.updates=16", "evaluation.num_prompts=32", "evaluation.before=false",
        "evaluation.every_updates=null", "schedule.num_generations=4", "schedule.window=8",
        "schedule.batch_windows=24", "algorithm.value.warmup_updates=1", "reward.unit=group",
        "learner.ranker.lr=1e-4", "checkpoint.every_updates=3", "storage.commit_interval_ms=20",
        "dashboard.enabled=false", recipe=REPOSITORY / "recipes" / "rewrite.toml",
    )  # fmt: skip
    try:
        for update, name in ((3, "reward-0"), (6, "learner-0"), (10, "coordinator")):
            run.until(lambda at=update: run.applied() >= at)  # type: ignore[misc]
            os.kill(run.supervised(name), signal.SIGKILL)
        assert run.wait() == 0, run.text()
        yield run
    finally:
        run.end()


def test_the_books_are_clean(finished: Run) -> None:
    """The audit also compares versions of scores with those published, and those of siblings."""
    audited = headrace("audit", "latest", "--json", "--root", str(finished.root))
    assert audited.returncode == 0, audited.stdout + audited.stderr


def test_a_group_is_scored_by_one_version(finished: Run) -> None:
    rows = finished.ask(
        "select group_id, count(distinct reward_model), count(reward_model) from trajectories "
        "where reward_status = 'ok' and purpose = 'train' group by 1",
    )
    assert len(rows) > 30
    assert {row[1] for row in rows} == {1}
    assert sum(row[2] == 4 for row in rows) > 20, "whole groups"
    versions = finished.ask("select distinct reward_model from trajectories")
    assert len(versions) > 8, "it is paid by the newest"


def test_the_ranker_is_in_the_checkpoint(finished: Run) -> None:
    (*_, newest) = sorted(
        finished.run_dir.glob("checkpoints/step_*"), key=lambda path: int(path.name[5:])
    )
    folder = newest / "ranker"
    measured = headrace("rank", "eval", str(folder), "--json")
    assert measured.returncode == 0, measured.stderr
    kept = list((finished.run_dir / "rankers").iterdir())
    assert 1 <= len(kept) <= 4, "older versions go"
