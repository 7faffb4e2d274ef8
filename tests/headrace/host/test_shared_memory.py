"""What killed owners leave in /dev/shm, with real processes and their maps."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO
from uuid import uuid4

import psutil
import pytest

from benchmarks.robustness.chaos_job import is_alive
from headrace.host import shared_memory
from headrace.host.install import ROOT
from tests.headrace_cli.launch.test_supervisor import soon

ENGINE = """
import mmap, multiprocessing, sys
file = open(sys.argv[1], "w+b")
file.truncate(4096)
mapped = mmap.mmap(file.fileno(), 4096)
lock = multiprocessing.get_context("spawn").Lock()
print(lock._semlock.name, flush=True)
sys.stdin.read()
"""
OWNER = """
import sys
from headrace.host.shared_memory import EngineMemory
memory = EngineMemory([int(sys.argv[1])])
print("recorded", flush=True)
if sys.stdin.read():
    memory.close()
"""


class Pair:
    """An owner and an engine of its own, whose files are `mapped`, and one that nobody mapped."""

    def __init__(self) -> None:
        name = f"headrace-test-{uuid4().hex}"
        self.foreign = shared_memory.FOLDER / f"{name}-foreign"
        self.foreign.write_bytes(b"not mapped")
        segment = shared_memory.FOLDER / name
        self.engine = _start(ENGINE, str(segment))
        semaphore = shared_memory.FOLDER / f"sem.{_line(self.engine).removeprefix('/')}"
        self.mapped = [segment, semaphore]
        # Killed with its owner's group, as under a supervisor, the tracker removes nothing.
        for tracker in psutil.Process(self.engine.pid).children():
            tracker.kill()
        self.owner = _start(OWNER, str(self.engine.pid))
        self.survivor, self.record = survivor_of(self.owner)

    def left(self) -> list[Path]:
        return [path for path in (*self.mapped, self.record) if path.exists()]

    def close(self) -> None:
        for process in (self.owner, self.engine):
            process.kill()
            process.communicate()
        for path in (*self.left(), self.foreign):
            path.unlink(missing_ok=True)


def survivor_of(owner: "subprocess.Popen[str]") -> tuple[psutil.Process, Path]:
    """What removes the owner's files, and its record, once that is written."""
    assert _line(owner) == "recorded"
    (survivor,) = psutil.Process(owner.pid).children()
    while not (command := survivor.cmdline()):  # empty for a moment while it is being executed
        time.sleep(0.01)
    record = Path(command[-1])
    assert record.name.startswith(shared_memory.RECORD_PREFIX)
    return survivor, record


def _start(code: str, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def _line(process: "subprocess.Popen[str]") -> str:
    output: IO[str] | None = process.stdout
    assert output is not None
    return output.readline().strip()


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


def test_what_a_killed_owner_left_goes_once_its_engine_is_gone(pair: Pair) -> None:
    """And not before: what a living process maps stays, whoever looks."""
    shared_memory.sweep()
    assert len(pair.left()) == 3
    pair.owner.kill()
    shared_memory.sweep()
    assert len(pair.left()) == 3
    pair.engine.kill()
    pair.engine.wait()
    assert soon(lambda: pair.left() == [], 2.0)
    # An orphan that has ended waits for PID 1 to reap it, which takes its own time.
    assert soon(lambda: not is_alive(pair.survivor.pid), 2.0)
    assert pair.foreign.exists()


def test_the_next_one_removes_it_where_nobody_survived(pair: Pair) -> None:
    pair.survivor.kill()
    for process in (pair.owner, pair.engine):
        process.kill()
        process.wait()
    assert len(pair.left()) == 3
    shared_memory.EngineMemory([])
    assert pair.left() == []


def test_an_owner_that_ends_in_good_order_removes_it(pair: Pair) -> None:
    pair.engine.kill()
    pair.engine.wait()
    pair.owner.communicate("end")
    assert pair.left() == []
    assert pair.foreign.exists()


def test_a_name_that_became_another_file_is_left_alone(pair: Pair) -> None:
    pair.survivor.kill()
    for process in (pair.owner, pair.engine):
        process.kill()
        process.wait()
    segment = pair.mapped[0]
    segment.rename(segment.with_suffix(".old"))  # Its inode is not given to the next file.
    segment.write_bytes(b"another's")
    shared_memory.sweep()
    assert pair.left() == [segment]
    segment.with_suffix(".old").unlink()


def test_engines_without_shared_memory_need_nobody() -> None:
    owner = _start(OWNER, "0")
    assert _line(owner) == "recorded"
    assert psutil.Process(owner.pid).children() == []
    owner.communicate("end")
    assert owner.returncode == 0
