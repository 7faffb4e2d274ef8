"""A streaming run of the real roles whose prompts go to three sources of rewards, while a fourth
scores lines of answers that are being written; that one and one of the others hang now and then."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from tests.integration.runs import PLAIN, REPOSITORY, Run, headrace
from tests.lined_model import lined_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
MODEL = REPOSITORY / "recipes" / "models" / "chain-sums-cold"
MINE = """\
import re
import time

STEP = re.compile(r"((?:[a-zA-Z]\\d)+)\\+(\\d)=(\\d)\\n")

def lines(completion, lines):
    if len(completion) % 11 == 3:
        time.sleep(3600)
    return [quality(line) for line in lines]

def quality(line):
    step = STEP.fullmatch(line)
    if step is None:
        return None
    total = sum(map(int, re.findall(r"\\d", step[1]))) + int(step[2])
    return 1.0 if total % 10 == int(step[3]) else -1.0

def slow(completion, answer):
    if len(completion) % 5 == 0:
        time.sleep(3600)
    return float(completion.endswith("#" + answer))
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    root = tmp_path_factory.mktemp("lines")
    mine = root / "mine.py"
    mine.write_text(MINE)
    model = lined_model(root / "model", MODEL, ";")
    function = f'kind="function",function="{mine}'
    run = Run(
        root / "runs",
        f"model.path={model}",
        *PLAIN,
        "generator.max_num_seqs=16",
        "schedule.window=12",
        "schedule.max_staleness=2",
        "task.max_terms=12",
        "task.max_response_length=120",
        "algorithm.value.warmup_updates=1",
        "stop.updates=8",
        "reward.answer_marker=null",
        "reward.kind=math",
        'reward.sources.exact={kind="exact",answer_marker="#"}',
        'reward.sources.math={kind="math",answer_marker="#"}',
        f'reward.sources.slow={{{function}:slow",timeout_s=0.5}}',
        f'reward.sources.lines={{{function}:lines",unit="line",timeout_s=0.5}}',
        'reward.route={column="terms",values={"3"="slow","4"="math"},default="exact"}',
        'reward.process={source="lines",lines=8}',
    )
    try:
        assert run.wait() == 0, run.text()
        yield run
    finally:
        run.end()


def rows(run: Run, query: str) -> list[tuple[Any, ...]]:
    engine = create_engine(f"sqlite:///{run.run_dir / 'headrace.sqlite'}")
    with engine.connect() as connection:
        found = [tuple(row) for row in connection.execute(text(query))]
    engine.dispose()
    return found


def test_windows_of_unfinished_answers_are_trained_with_process_rewards(finished: Run) -> None:
    ((tokens,),) = rows(
        finished, "select sum(value) from metrics where name = 'reward/process_unfinished'"
    )
    assert tokens > 0
    # Seen from the other side: a reward of lines at a position in a trained window that goes on.
    query = (
        "select l.trajectory_id, l.rewards, w.start, w.end from line_scores l join windows w "
        "using (run, trajectory_id) "
        "where w.state = 'trained' and w.final = 0 and w.lines = 'scored'"
    )
    inside = [
        value
        for _, rewards, start, end in rows(finished, query)
        for value, position in json.loads(rewards)
        if start <= position < end
    ]
    assert any(value > 0 for value in inside)
    assert any(abs(value) <= 0.25 for value in inside)


def test_what_hangs_is_late_or_failed_and_all_else_goes_on(finished: Run) -> None:
    statuses = dict(rows(finished, "select status, count(*) from line_scores group by 1"))
    assert statuses["ok"] > statuses.get("timeout", 0)
    fates = dict(rows(finished, "select lines, count(*) from windows group by 1"))
    assert fates["scored"] > 0
    sources = rows(finished, "select distinct reward_source, reward_status from trajectories")
    assert {("exact", "ok")} <= set(sources)
    assert not any(source == "lines" for source, _ in sources)
    audited = headrace("audit", "latest", "--json", "--root", str(finished.root))
    assert audited.returncode == 0, audited.stdout + audited.stderr


def test_every_trajectory_says_who_scored_it(finished: Run) -> None:
    """And only answers of the source that hangs are without a reward."""
    found = rows(
        finished,
        "select t.reward_source, t.reward_status, json_extract(p.info, '$.terms') "
        "from trajectories t join groups g using (run, group_id) "
        "join prompts p using (run, prompt_id) "
        "where t.reward_status is not null",
    )
    for source, _, terms in found:
        assert source == {3: "slow", 4: "math"}.get(terms, "exact")
    assert {source for source, *_ in found} == {"slow", "math", "exact"}
    assert {source for source, status, _ in found if status == "timeout"} == {"slow"}
    assert {status for source, status, _ in found if source != "slow"} == {"ok"}


def test_the_exports_have_the_source(finished: Run, tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl"
    done = headrace(
        "export", "latest", "trajectories", "--out", str(out),
        "--where", "reward_source = 'slow'", "--root", str(finished.root),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    exported = [json.loads(line)["reward_source"] for line in out.read_text().splitlines()]
    assert set(exported) == {"slow"}


def test_an_answers_rewards_add_up_to_the_formulas(finished: Run) -> None:
    """Outcome plus lambda times the mean of its scored lines, however they were paid."""
    lines: dict[int, list[float]] = {}
    query = 'select trajectory_id, lines from line_scores order by "offset"'
    for trajectory_id, scored in rows(finished, query):
        known = [score for _, score in json.loads(scored) if score is not None]
        lines.setdefault(trajectory_id, []).extend(known)
    # Of the others a score came after the answer was settled.
    late = "select distinct trajectory_id from windows where lines = 'late'"
    not_in = {key for (key,) in rows(finished, late)}
    settled = rows(
        finished,
        "select trajectory_id, reward, correct, rewards from trajectories "
        "where reward_status = 'ok' and purpose = 'train'",
    )
    checked = 0
    for key, reward, correct, rewards in settled:
        if key in not_in or key not in lines:
            continue
        rate = 0.025 if correct else 0.25
        wanted = reward + rate * sum(lines[key]) / max(len(lines[key]), 1)
        assert sum(value for value, _ in json.loads(rewards)) == pytest.approx(wanted)
        checked += 1
    assert checked > 0
