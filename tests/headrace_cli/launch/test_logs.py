"""What processes print reaches their logs, or memory where a disk takes nothing."""

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace_cli.launch import logs
from headrace_cli.launch.logs import ProcessLog, first_cause
from tests.small_disk import small_disk


def soon(condition: Callable[[], bool], timeout_s: float = 10.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def test_what_is_printed_is_in_the_file_and_in_memory(tmp_path: Path) -> None:
    ours, theirs = os.pipe()
    path = tmp_path / "logs" / "x.log"
    log = ProcessLog(path, os.fdopen(ours, "rb"))
    os.write(theirs, b"one\ntwo\n")
    assert soon(lambda: path.exists() and path.read_text() == "one\ntwo\n")
    os.write(theirs, b"three")
    os.close(theirs)
    log.end(10.0)
    assert path.read_text() == "one\ntwo\nthree"
    assert log.tail(2) == "two\nthree"


def test_nothing_that_is_printed_can_hide_in_a_log(tmp_path: Path) -> None:
    read, write = os.pipe()
    log = ProcessLog(tmp_path / "role.log", os.fdopen(read, "rb"))
    for part in (b"caf\xc3", b"\xa9\ta\x1b[2Jb\rc \xe2\x80", b"\xaed \xff\n"):
        os.write(write, part)
        time.sleep(0.02)
    os.close(write)
    log.end(10.0)
    expected = "caf\u00e9\ta\\x1b[2Jb\nc \\u202ed \\xff"
    assert log.tail(9) == expected
    assert (tmp_path / "role.log").read_text(encoding="utf-8") == expected + "\n"


def test_a_full_disk_neither_holds_up_a_process_nor_loses_its_last_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "RETRY_S", 0.01)
    monkeypatch.setattr(logs, "MAX_WAITING_BYTES", 50_000)
    with small_disk(tmp_path / "disk", "1m") as small:
        path = small.path / "x.log"
        ours, theirs = os.pipe()
        log = ProcessLog(path, os.fdopen(ours, "rb"))
        os.write(theirs, b"before\n")
        assert soon(path.exists)
        small.fill()
        for number in range(2_000):  # 200 kB, far more than a pipe holds
            os.write(theirs, f"line {number:04d} {'x' * 90}\n".encode())
        os.write(theirs, b"the last one\n")
        assert soon(lambda: log.tail(1) == "the last one")
        os.close(theirs)
        log.end(10.0)
        small.free()
        assert soon(lambda: path.read_text().endswith("the last one\n"))
        text = path.read_text()
        assert text.startswith("before\n")
        told = re.compile(r"\[([0-9,]+) bytes left out: the disk took none\]\n")
        left_out = sum(int(number.replace(",", "")) for number in told.findall(text))
        assert left_out + len(told.sub("", text)) == len("before\nthe last one\n") + 2_000 * 101
        assert text.count("line 1999") == 1


@pytest.mark.parametrize(
    ("printed", "cause"),
    [
        ("", ""),
        ("starting\nending\n", "ending"),
        ("error: no such row\nsome library says goodbye\n", "no such row"),
        (
            "Traceback (most recent call last):\n  File x, line 1, in f\n    f()\n"
            "sqlalchemy.exc.E: it broke\n[SQL: x]\n(Background on this error at: https://x)\n",
            "sqlalchemy.exc.E: it broke",
        ),
        (
            "error: an old one\nTraceback (most recent call last):\n  File x\nKeyError: 3\n",
            "KeyError: 3",
        ),
    ],
)
def test_the_first_cause(printed: str, cause: str) -> None:
    assert first_cause(printed) == cause
