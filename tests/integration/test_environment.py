"""A run whose policy plays with an environment: processes die in the middle of episodes, and
nothing is lost."""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.integration.runs import REPOSITORY, Run, headrace

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
RECIPE = REPOSITORY / "recipes" / "calculator.toml"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Its environment's child, worker and coordinator were killed."""
    run = Run(
        tmp_path_factory.mktemp("calculator") / "runs",
        "stop.updates=30",
        "evaluation.num_prompts=64",
        "evaluation.before=false",
        "algorithm.value.warmup_updates=5",
        "environment.workers=2",
        "schedule.window=8",
        "schedule.batch_windows=192",
        "storage.commit_interval_ms=20",
        "dashboard.enabled=false",
        recipe=RECIPE,
    )
    try:
        for update, kill in ((7, _kill_child), (11, _kill_worker), (15, _kill_coordinator)):
            run.until(lambda at=update: run.applied() >= at)  # type: ignore[misc]
            kill(run)
        assert run.wait() == 0, run.text()
        yield run
    finally:
        run.end()


def _kill_child(run: Run) -> None:
    children = psutil.Process(run.supervised("environment-0")).children()
    child = next(c for c in children if "environments.child" in c.cmdline())
    child.kill()


def _kill_worker(run: Run) -> None:
    os.kill(run.supervised("environment-1"), signal.SIGKILL)


def _kill_coordinator(run: Run) -> None:
    os.kill(run.supervised("coordinator"), signal.SIGKILL)


def test_the_books_are_clean_and_no_episode_failed(finished: Run) -> None:
    audited = headrace("audit", "latest", "--json", "--root", str(finished.root))
    assert audited.returncode == 0, audited.stdout + audited.stderr
    states = dict(finished.ask("select status, count(*) from trajectories group by 1"))
    assert states.get("failed", 0) == 0
    assert states["finished"] > 500


def test_an_episode_earns_what_its_answer_is_worth(finished: Run) -> None:
    """The product is worked out again from the prompt and the tokens of the last turn."""
    rows = finished.ask(
        "select prompt, reward, last.text from trajectories t join (select trajectory_id, "
        "string_agg(token, '' order by position) as text from tokens k where source = 'policy' and "
        "turn = (select max(turn) from tokens j where j.trajectory_id = k.trajectory_id and "
        "j.source = 'policy') group by 1) last using (trajectory_id) where status = 'finished'",
    )
    assert len(rows) > 500
    for prompt, reward, text in rows:
        left, right = prompt[:-1].split("*")
        said = re.sub("<(bos|pad|unk)>", "", text).removesuffix("<eos>")  # as decoding leaves out
        assert reward == float(said == str(int(left) * int(right)))


def test_inserted_tokens_are_what_the_calculator_says_and_are_never_trained(finished: Run) -> None:
    rows = finished.ask(
        "select string_agg(token, '' order by position), sum(loss_mask) from tokens "
        "where source = 'tool' group by trajectory_id",
    )
    assert len(rows) > 100
    for text, trained in rows:
        assert trained == 0
        assert text.startswith(">")
        assert text.endswith(">")
        assert text[1:-1].isdigit(), text


def test_learner_and_sampler_agree_behind_inserted_tokens(finished: Run) -> None:
    """In the first update of the policy, after five of the value model alone: by then episodes end
    as fast as they begin, however busy the machine is."""
    (found,) = finished.ask(
        "select quantile_cont(abs(learner_logprob - logprob), 0.99), count(*) from tokens "
        "where source = 'policy' and turn = 1 and trained_at_update = 6 and version = 0",
    )
    assert found[1] > 20
    assert found[0] < 1e-3


def test_an_environment_that_is_not_there_ends_the_run_with_the_reason(tmp_path: Path) -> None:
    run = Run(
        tmp_path / "runs", "environment.name=nowhere.py:Thing", "dashboard.enabled=false",
        "evaluation.before=false", recipe=RECIPE,
    )  # fmt: skip
    try:
        assert run.wait(120) != 0
        assert "there is no file nowhere.py" in run.text()
    finally:
        run.end()


def test_attempts_verdicts_and_revisions_are_trained_turn_by_turn(tmp_path: Path) -> None:
    """The recipe of PAG: each turn is paid, and whatever its environment says of it is a metric."""
    run = Run(
        tmp_path / "runs", "stop.updates=6", "dashboard.enabled=false", "evaluation.before=false",
        "evaluation.after=false", "schedule.batch_windows=32", "schedule.window=3",
        recipe=REPOSITORY / "recipes" / "pag.toml",
    )  # fmt: skip
    try:
        assert run.wait(120) == 0, run.text()
        names = {name for (name,) in run.ask("select distinct name from metrics")}
        assert {
            f"environment/{what}" for what in ("right_recall", "wrong_recall", "turns")
        } <= names
        audited = headrace("audit", "latest", "--root", str(run.root))
        assert audited.returncode == 0, audited.stdout
        rewards = run.ask("select distinct reward from trajectories where status = 'finished'")
        assert {r for (r,) in rewards} <= {-1.0, 0.0, 1.0, 2.0, 3.0}
        assert len(rewards) > 2
    finally:
        run.end()
