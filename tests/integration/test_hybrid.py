"""A streaming run with a verifier and a proxy that can be hacked, a KL coefficient for each, and an
audit of the proxy's answers: everything that a user looks at has it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from storage import queries
from tests.integration.runs import PLAIN, Run, headrace

pytestmark = [pytest.mark.slow, pytest.mark.vllm, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    run = Run(
        tmp_path_factory.mktemp("hybrid") / "runs",
        *PLAIN,
        "stop.updates=4",
        "schedule.num_generations=4",
        "reward.answer_marker=null",
        'reward.sources.verifier={kind="math",answer_marker="#",kl_coefficient=0.0}',
        'reward.sources.judge.kind="function"',
        'reward.sources.judge.function="tasks.procedural.chain_sums:hackable_score"',
        'reward.route={column="terms",values={"3"="verifier"},default="judge"}',
        'reward.audit={source="verifier",share=0.5}',
        'algorithm.kl={coef=1e-5,where="reward"}',
    )
    try:
        assert run.wait() == 0, run.text()
        yield run
    finally:
        run.end()


def test_the_judges_answers_are_audited_and_the_books_are_clean(finished: Run) -> None:
    sources: Any = queries.reward_sources(finished.run_dir).set_index("source")
    assert set(sources.index) == {"judge", "verifier"}
    assert sources.loc["judge", "audits"] > 0
    assert sources.loc["judge", "audits_failed"] == 0
    assert sources.loc["verifier", "audits"] == 0
    page = queries.trajectory_page(finished.run_dir, where="audit_status = 'ok'", limit=10_000)
    assert (page.rows["reward_source"] == "judge").all()
    assert (page.rows["audit_correct"] == page.rows["correct"]).mean() > 0.95
    audited = headrace("audit", "latest", "--json", "--root", str(finished.root))
    assert audited.returncode == 0, audited.stdout + audited.stderr


def test_metrics_and_show_tell_of_each_source(finished: Run) -> None:
    names = set(queries.metric_names(finished.run_dir))
    for what in ("mean", "seconds", "entropy_estimate", "length_correlation", "queue"):
        assert {f"rewards/judge/{what}", f"rewards/verifier/{what}"} <= names
    assert "rewards/judge/gap" in names
    assert "rewards/verifier/gap" not in names
    shown = finished.show()
    assert set(shown["rewards"]) == {"judge", "verifier"}
    assert shown["rewards"]["judge"]["audits"] > 0
    assert isinstance(shown["alerts"], list)


def test_the_exports_have_the_audit(finished: Run, tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl"
    done = headrace(
        "export", "latest", "trajectories", "--out", str(out),
        "--where", "audit_status = 'ok'", "--root", str(finished.root),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert rows
    assert {row["audit_source"] for row in rows} == {"verifier"}
