"""A streaming run whose prompts go to three sources of rewards, one of which hangs now and then."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from tests.integration.runs import PLAIN, Run, headrace

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MINE = """\
import time

def score(completion, answer, terms):
    if len(completion) % 5 == 0:
        time.sleep(3600)
    return {"score": float(completion.endswith("#" + answer)), "terms": terms}
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    root = tmp_path_factory.mktemp("sources")
    mine = root / "mine.py"
    mine.write_text(MINE)
    run = Run(
        root / "runs",
        *PLAIN,
        "stop.updates=4",
        "schedule.mode=streaming",
        "reward.answer_marker=null",
        'reward.sources.exact={kind="exact",answer_marker="#"}',
        'reward.sources.math={kind="math",answer_marker="#"}',
        f'reward.sources.mine={{kind="function",function="{mine}:score",timeout_s=0.3}}',
        'reward.route={column="terms",values={"3"="exact","4"="math"},default="mine"}',
    )
    try:
        assert run.wait() == 0, run.text()
        yield run
    finally:
        run.end()


def rows(run: Run, query: str) -> list[tuple[object, ...]]:
    engine = create_engine(f"sqlite:///{run.run_dir / 'headrace.sqlite'}")
    with engine.connect() as connection:
        found = [tuple(row) for row in connection.execute(text(query))]
    engine.dispose()
    return found


def test_every_trajectory_says_who_scored_it(finished: Run) -> None:
    query = (
        "select t.reward_source, t.reward_status, json_extract(p.info, '$.terms'), count(*) "
        "from trajectories t join groups g using (run, group_id) join prompts p using "
        "(run, prompt_id) where t.reward_status is not null group by 1, 2, 3"
    )
    found = rows(finished, query)
    for source, _, terms, _ in found:
        assert source == {3: "exact", 4: "math"}.get(int(str(terms)), "mine")
    assert {source for source, *_ in found} == {"exact", "math", "mine"}
    assert {source for source, status, *_ in found if status == "timeout"} == {"mine"}
    assert {status for source, status, *_ in found if source != "mine"} == {"ok"}


def test_the_hanging_source_kept_the_stream_neither_still_nor_unaccounted(finished: Run) -> None:
    audited = headrace("audit", "latest", "--json", "--root", str(finished.root))
    assert audited.returncode == 0, audited.stdout + audited.stderr
    ok = rows(finished, "select count(*) from trajectories where reward_status = 'ok'")
    assert int(str(ok[0][0])) > 0


def test_the_exports_have_the_source(finished: Run, tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl"
    done = headrace(
        "export", "latest", "trajectories", "--out", str(out),
        "--where", "reward_source = 'mine'", "--root", str(finished.root),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = [json.loads(line)["reward_source"] for line in out.read_text().splitlines()]
    assert set(found) == {"mine"}
