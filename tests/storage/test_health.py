"""What storage knows of processes, waits and stacks: the journal's word and the supervisor's."""

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.run_files.checked_lines import checked_line
from headrace.run_files.run_folder import LIVE_STATE_FILE
from storage import queries
from storage.queries.processes import last_stack
from tests.dashboard.scripted_run import write_run

START = 1_767_268_800.0
THREADS = """\
Thread 0x00007f0c (most recent call first):
  File "selectors.py", line 468 in select
  File "loop.py", line 7 in wait

Current thread 0x00007f0d (most recent call first):
  File "zmq.py", line 1 in poll
"""
CHAINED = """\
Traceback (most recent call last):
  File "a.py", line 1, in f
    g()
KeyError: 'x'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "b.py", line 2, in h
    f()
ValueError: no good
"""


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("health")
    return write_run(root, started=START, updates=2, roll_back_after=None, end=False)


def supervised(run_dir: Path, *events: dict[str, Any]) -> None:
    lines = [checked_line(event) for event in events]
    (run_dir / "supervisor.jsonl").write_bytes(b"".join(lines))


def event(seconds: float, kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"at": START + seconds, "event": kind, "name": name, **more}


def health(run_dir: Path) -> dict[str, dict[str, Any]]:
    rows = queries.process_health(run_dir).to_dict("records")
    return {str(row["name"]): {str(k): v for k, v in row.items()} for row in rows}


def test_processes_without_a_supervisor_are_those_that_said_hello(run_dir: Path) -> None:
    (run_dir / "supervisor.jsonl").unlink(missing_ok=True)
    rows = health(run_dir)
    assert list(rows) == ["generator-0", "learner-0", "reward-0"]
    assert {row["state"] for row in rows.values()} == {"up"}
    assert (rows["learner-0"]["pid"], rows["learner-0"]["host"]) == (4103, "node-a")
    assert [row["deaths"] for row in rows.values()] == [0, 0, 0]


def test_the_supervisor_knows_more_processes_and_their_deaths(run_dir: Path) -> None:
    supervised(
        run_dir,
        event(-1, "started", "coordinator", pid=11),
        event(-1, "started", "generator-0", pid=12),
        event(-1, "started", "dashboard", pid=13),
        event(1e6, "died", "generator-0", code=-9, detail="killed by SIGKILL"),
        event(1e6, "ended", "supervisor", code=0),
    )
    rows = health(run_dir)
    assert list(rows) == ["coordinator", "generator-0", "learner-0", "reward-0"]
    coordinator, generator = rows["coordinator"], rows["generator-0"]
    assert (coordinator["pid"], coordinator["state"], coordinator["starts"]) == (11, "up", 1)
    # It said no Goodbye: the supervisor saw it go before anyone missed it.
    assert (generator["state"], generator["detail"]) == ("lost", "killed by SIGKILL")
    assert (generator["deaths"], generator["last_death"]) == (1, "killed by SIGKILL")
    assert rows["learner-0"]["state"] == "up"


def test_a_process_that_was_started_again_is_up_with_its_new_id(run_dir: Path) -> None:
    supervised(
        run_dir,
        event(-1, "started", "generator-0", pid=12),
        event(1e6, "died", "generator-0", code=1),
        event(1e6 + 2, "restarted", "generator-0", pid=99),
    )
    row = health(run_dir)["generator-0"]
    assert (row["state"], row["pid"], row["starts"], row["deaths"]) == ("up", 99, 2, 1)
    assert row["last_death"] == "exit code 1"


def test_a_judge_that_stays_away_is_given_up(run_dir: Path) -> None:
    supervised(
        run_dir,
        event(1, "started", "judge-fair", pid=20),
        event(2, "died", "judge-fair", code=2, detail="exit code 2"),
        event(2, "gave_up", "judge-fair", code=2, detail="no such model"),
    )
    row = health(run_dir)["judge-fair"]
    assert (row["state"], row["role"], row["detail"]) == ("given up", "judge", "no such model")


def test_the_last_word_is_whole_or_none(run_dir: Path) -> None:
    path = run_dir / LIVE_STATE_FILE
    path.unlink(missing_ok=True)
    assert queries.coordinator_status(run_dir) is None
    waits = [{"for": "the learner's update 3", "age_s": 4.5}]
    said = {"at": 7.0, "phase": "training", "waits": waits, "heard": {"learner-0": 0.5}}
    path.write_text(json.dumps(said))
    word = queries.coordinator_status(run_dir)
    assert word is not None
    assert word.waits == {"the learner's update 3": 4.5}
    assert (word.at, word.phase, word.heard) == (7.0, "training", {"learner-0": 0.5})
    for broken in ("", "[]", '{"at": 1}', '{"at": 1, "phase": "", "waits": [], "heard": 3}'):
        path.write_text(broken)
        assert queries.coordinator_status(run_dir) is None


def test_all_threads_of_the_last_dump() -> None:
    stack = last_stack(f"{THREADS}much later\n{THREADS}update 3 is done\n")
    assert stack is not None
    assert stack.kind == "threads"
    assert stack.text == THREADS.strip()


def test_a_crash_is_a_dump_with_its_cause() -> None:
    stack = last_stack(f"fine\nFatal Python error: Segmentation fault\n\n{THREADS}")
    assert stack is not None
    assert stack.text.startswith("Fatal Python error: Segmentation fault\n\nThread 0x")


def test_a_traceback_has_those_that_led_to_it() -> None:
    stack = last_stack(f"begun\n{CHAINED}error: b.py cannot h\n")
    assert stack is not None
    assert stack.kind == "traceback"
    assert stack.text == CHAINED.strip()
    other = last_stack("Traceback (most recent call last):\n  File x\nOSError: old\n\n" + CHAINED)
    assert other is not None
    assert other.text == CHAINED.strip()


def test_what_came_last_counts_and_a_log_without_any_has_none() -> None:
    stack = last_stack(CHAINED + THREADS)
    assert stack is not None
    assert stack.kind == "threads"
    assert last_stack("update 1\nThread 0x12 is no dump\n") is None
    assert last_stack("") is None


def test_stacks_of_a_run_by_process(run_dir: Path) -> None:
    logs = run_dir / "logs"
    logs.mkdir(exist_ok=True)
    (logs / "learner-0.log").write_text(THREADS)
    (logs / "generator-0.log").write_text("x" * 300_000 + f"\n{CHAINED}")
    (logs / "reward-0.log").write_bytes(b"\xff\xfe all is well\n")
    supervised(run_dir, event(5, "stacks", "learner-0"), event(5, "stacks", "generator-0"))
    found = queries.last_stacks(run_dir)
    assert list(found) == ["generator-0", "learner-0"]
    assert found["learner-0"].at == START + 5
    assert (found["generator-0"].kind, found["generator-0"].at) == ("traceback", None)
    assert queries.last_stacks(run_dir / "nowhere") == {}


def test_what_sql_lacks_is_told_with_its_day() -> None:
    word = queries.CoordinatorStatus(START, "finished", {}, {}, records=5)
    before, after = (word.lag(4, START + 86_400.0 * day) for day in (0, 1))
    assert before != after
