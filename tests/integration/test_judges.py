"""A run whose prompts go to a verifier and to a judge: a model of our own that the supervisor
serves. The judge is killed in the middle; another one, which only audits, cannot live."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from storage import queries
from tests.integration.runs import PLAIN, QUICKSTART, REPOSITORY, Run, headrace

pytestmark = [pytest.mark.slow, pytest.mark.vllm, pytest.mark.timeout(600)]

MODEL = REPOSITORY / "recipes" / "models" / "chain-sums-cold"
# Behind a plus this model says a digit, so that both words are among the likeliest.
ASKS = 'judge="fair",api="completions",mode="pairwise",prompt="{first}{second}+",yes="1",no="2"'
ASKS_AWAY = ASKS.replace("fair", "away")


def judged(run: Run) -> list[tuple[str, str | None]]:
    """Status and parts of every response that the judge had; none before the run has tables."""
    path = next(run.root.glob("*/headrace.sqlite"), None)
    if path is None:
        return []
    engine = create_engine(f"sqlite:///{path}")
    query = "select reward_status, reward_parts from trajectories where reward_source = 'judged'"
    try:
        with engine.connect() as connection:
            return [(row[0], row[1]) for row in connection.execute(text(query)) if row[0]]
    except OperationalError:
        return []
    finally:
        engine.dispose()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    run = Run(
        tmp_path_factory.mktemp("judges"),
        *PLAIN,
        "stop.updates=12",
        "reward.answer_marker=null",
        f'reward.judges.fair={{path="{MODEL}",kv_cache_gib=0.25}}',
        # vLLM refuses this one: the model has no room for so long questions.
        f'reward.judges.away={{path="{MODEL}",kv_cache_gib=0.25,max_model_len=1000000}}',
        'reward.sources.math={kind="math",answer_marker="#"}',
        f'reward.sources.judged={{kind="judge",timeout_s=180,options={{{ASKS}}}}}',
        f'reward.sources.second={{kind="judge",timeout_s=5,options={{{ASKS_AWAY}}}}}',
        'reward.audit={source="second",share=0.5}',
        'reward.route={column="terms",values={"3"="judged"},default="math"}',
    )
    try:
        run.until(lambda: "judge-away stays away and the run goes on" in run.text())
        run.until(lambda: len(judged(run)) >= 8)
        os.kill(run.supervised("judge-fair"), signal.SIGKILL)
        assert run.wait(400.0) == 0, run.text()
        yield run
    finally:
        run.end()


def test_the_judge_scores_and_its_death_costs_no_response(finished: Run) -> None:
    found = judged(finished)
    assert {status for status, _ in found} == {"ok"}
    parts = [json.loads(text or "{}") for _, text in found]
    assert all(0.0 < part["judge"] < 1.0 for part in parts)
    # Both orders; those that were asked when the judge died were asked again until it was back.
    assert min(part["judge_requests"] + part["judge_cached"] for part in parts) == 2.0
    assert sum(part["judge_tokens_in"] for part in parts) > 0


def test_it_was_started_again_and_ended_with_the_run(finished: Run) -> None:
    lines = (finished.run_dir / "supervisor.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    of_judge = [event["event"] for event in events if event["name"] == "judge-fair"]
    assert of_judge[:3] == ["started", "died", "restarted"]
    shown = headrace("show", finished.run_dir.name, "--root", str(finished.root), "--json")
    assert json.loads(shown.stdout)["judges"]["fair"] == {"starts": 2, "deaths": 1, "gave_up": 0}
    log = finished.run_dir / "logs" / "judge-fair.log"
    assert "fair serves at http://127.0.0.1:" in log.read_text()


def test_the_run_goes_on_without_a_judge_that_only_audits(finished: Run) -> None:
    shown = finished.show()
    assert shown["updates"] == 12
    assert shown["judges"]["away"] == {"starts": 1, "deaths": 1, "gave_up": 1}
    assert [text for text in shown["alerts"] if "judge-away gave_up" in text]
    assert shown["rewards"]["math"]["failed"] == 0
    alerts = queries.events(finished.run_dir, kind=queries.ALERT)
    assert alerts.text.str.contains("the run goes on without it").any()
    audited = headrace("audit", "latest", "--json", "--root", str(finished.root))
    assert audited.returncode == 0, audited.stdout + audited.stderr


def test_its_key_is_in_one_file_of_its_owner(finished: Run) -> None:
    address = finished.run_dir / "judges" / "fair.json"
    assert address.stat().st_mode & 0o777 == 0o600
    key = json.loads(address.read_text())["key"]
    for file in finished.run_dir.rglob("*"):
        if file.is_file() and file != address:
            assert key.encode() not in file.read_bytes(), file


def test_answers_are_tried_with_the_judge_of_a_recipe(tmp_path: Path) -> None:
    rows = [{"prompt": "1+2", "completion": "1+2#3", "answer": answer} for answer in ("3", "4")]
    file = tmp_path / "answers.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    shown = headrace(
        "reward", "try", str(QUICKSTART), str(file), "--json",
        "reward.answer_marker=null", "reward.kind=judge", f"reward.options={{{ASKS}}}",
        "reward.timeout_s=60", f'reward.judges.fair={{path="{MODEL}",kv_cache_gib=0.25}}',
    )  # fmt: skip
    assert shown.returncode == 0, shown.stderr
    lines = [json.loads(line) for line in shown.stdout.splitlines()]
    assert [line["status"] for line in lines] == ["ok", "ok"]
    assert all(0.0 < line["score"] < 1.0 for line in lines)
