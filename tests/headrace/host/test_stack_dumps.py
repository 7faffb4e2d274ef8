"""Who listens writes down what it is doing; who does not is left alone."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from headrace.host import stack_dumps

LISTENS = """
import time
from headrace.host import stack_dumps
stack_dumps.listen()
def nobody_comes():
    open({mark!r}, "w").close()
    time.sleep(60)
nobody_comes()
"""
DEAF = "import time; open({mark!r}, 'w').close(); time.sleep(60)"


def _started(code: str, mark: Path, log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as stream:
        command = [sys.executable, "-c", code.format(mark=str(mark))]
        process = subprocess.Popen(command, stderr=stream, start_new_session=True)
    assert _soon(mark.exists)
    return process


def _soon(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def test_only_who_listens_in_the_groups_is_asked_and_says_what_it_does(tmp_path: Path) -> None:
    log, other_log = tmp_path / "log", tmp_path / "other"
    listens = _started(LISTENS, tmp_path / "a", log)
    deaf = _started(DEAF, tmp_path / "b", tmp_path / "deaf")
    stranger = _started(LISTENS, tmp_path / "c", other_log)
    try:
        assert stack_dumps.ask({listens.pid, deaf.pid}) == [listens.pid]
        assert _soon(lambda: "nobody_comes" in log.read_text())
        assert other_log.read_text() == ""
        assert [p.poll() for p in (listens, deaf, stranger)] == [None, None, None]
    finally:
        for process in (listens, deaf, stranger):
            os.kill(process.pid, signal.SIGKILL)
            process.wait()


def test_a_group_that_is_gone_is_nobody() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""], start_new_session=True)
    process.wait()
    assert stack_dumps.ask({process.pid}) == []
