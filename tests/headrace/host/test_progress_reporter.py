"""What counts as work: amounts that move, in this process and below it, and no sign of life."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from headrace.host import progress_reporter as reporter_module
from headrace.host.progress_reporter import ProgressReporter
from headrace.protocol.messages.control import Progress


def said(work: ProgressReporter, within_s: float = 60.0) -> Progress:
    """The next news; there is some."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if (news := work.news()) is not None:
            return news
        time.sleep(0.01)
    raise AssertionError("nothing moved")


def test_what_has_moved_is_said_once() -> None:
    work = ProgressReporter()
    assert work.news() is None
    work.at("update 9: step 3 of 8", 57, unit="micro-batches")
    assert said(work).done == 57
    work.at("update 9: step 3 of 8", 57, unit="micro-batches")
    assert work.news() is None
    work.at("")
    assert said(work) == Progress(stage="")
    assert work.news() is None


def test_a_wait_is_said_as_long_as_it_lasts() -> None:
    """A coordinator that came after its beginning has to hear of it, too."""
    work = ProgressReporter()
    work.at("update 9: step 3 of 8", 57, unit="micro-batches")
    said(work)
    for seconds in (37, 38):
        work.wait = ("room for 9 bytes", time.monotonic() - seconds)
        waiting = f"update 9: step 3 of 8, waiting {seconds} s for room for 9 bytes"
        assert said(work) == Progress(stage=waiting, done=57, unit="micro-batches")
    work.wait = None
    assert said(work).stage == "update 9: step 3 of 8"
    assert work.news() is None


@pytest.mark.parametrize(("stall_s", "every_s"), [(20.0, 2.0), (3000.0, 30.0)])
def test_what_has_moved_is_said_ten_times_in_a_stall_time_out(
    stall_s: float, every_s: float
) -> None:
    assert ProgressReporter(stall_s)._every_s == every_s


MOVES = {
    "writes": "open({path!r}, 'wb').write(bytes(8 << 20))",
    "reads": "open('/dev/zero', 'rb').read(8 << 20)",
    "touches memory": "b = bytearray(8 << 20)",
}


@pytest.mark.parametrize("way", MOVES)
def test_what_a_child_moves_is_work(tmp_path: Path, way: str) -> None:
    """As the engine of a generator, whose start is one call here."""
    work = ProgressReporter(0.1)
    code = MOVES[way].format(path=str(tmp_path / "file"))
    with subprocess.Popen(
        [sys.executable, "-c", f"print(flush=True); input(); {code}; input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()  # it has started
        with work.moving("loading"):
            assert said(work).stage == "loading"
            child.stdin.write("\n")
            child.stdin.flush()
            deadline = time.monotonic() + 60
            while said(work).done < 8:
                assert time.monotonic() < deadline
            child.stdin.write("\n")
    assert said(work) == Progress(stage="")


def test_who_computes_for_ever_without_moving_anything_does_no_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a rank that waits for another one, while its process beats and looks at itself."""
    work = ProgressReporter(0.1)
    spins = "print(flush=True)\ninput()\nwhile True: pass"
    with subprocess.Popen(
        [sys.executable, "-c", spins], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()  # it has started
        child.stdin.write(b"\n")
        child.stdin.flush()
        with work.moving("loading"):
            said(work)
            began, looks = time.monotonic(), 0
            while looks < 2 / reporter_module.STALL_SHARE:  # as many as two stall time-outs have
                time.sleep(0.02)
                assert work.news() is None
                looks += 1
            assert time.monotonic() - began > 0.2
        child.kill()
