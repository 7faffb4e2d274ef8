"""Memory and CPU seconds of a process are its own and those of all that it started."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from coordinator.training.host_use import HostUsage, ProcessSample, families

HOLDS = """
import subprocess, sys
if int(sys.argv[1]):
    child = [sys.executable, "-c", sys.argv[2], str(int(sys.argv[1]) - 1), sys.argv[2]]
    subprocess.run(child, stdin=sys.stdin)
else:
    held = bytearray(b"x" * (64 << 20))
    print("ready", flush=True)
    sys.stdin.read()
"""
WORKS = """
import subprocess, sys, time
def work():
    while time.process_time() < 0.5:
        pass
if len(sys.argv) > 1:
    work()
else:
    subprocess.run([sys.executable, __file__, "child"])
    print("child has ended", flush=True)
    sys.stdin.readline()
    work()
    print("worked", flush=True)
    sys.stdin.readline()
"""


def test_children_of_children_count() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, "2", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        found = HostUsage().find([process.pid, os.getpid()])
        assert found[process.pid] > 64 << 20
        assert found[os.getpid()] > found[process.pid]
        process.stdin.close()
    assert HostUsage().find([process.pid]) == {}


@pytest.fixture
def worker(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """A process whose child has worked for half a second; so does it when it gets a line."""
    script = tmp_path / "works.py"
    script.write_text(WORKS)
    with subprocess.Popen(
        [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "child has ended\n"
        yield process


def go_on(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_children_that_have_ended_count_and_so_does_who_is_gone(
    worker: "subprocess.Popen[str]",
) -> None:
    use = HostUsage(before_s=100.0)
    assert use.cpu_s() is None, "nothing was looked for yet"
    use.find([worker.pid])
    first = use.cpu_s()
    assert first is not None
    assert first > 100.45
    go_on(worker)
    assert worker.stdout is not None
    assert worker.stdout.readline() == "worked\n"
    then = use.cpu_s()
    assert then is not None
    assert then > first
    go_on(worker)
    worker.wait()
    use.find([worker.pid])
    assert use.cpu_s() == then


def test_who_was_there_before_counts_from_when_it_is_seen(worker: "subprocess.Popen[str]") -> None:
    """A coordinator that takes over knows what its predecessor had counted."""
    code = (
        "import sys; from coordinator.training.host_use import HostUsage; use = HostUsage(7.0);"
        "use.find([int(sys.argv[1])]); print(use.cpu_s())"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, str(worker.pid)], capture_output=True, text=True, check=True
    )
    assert float(found.stdout) == pytest.approx(7.0, abs=0.1)
    go_on(worker)
    go_on(worker)


def test_a_family_is_a_process_and_all_below_it() -> None:
    table = {
        pid: ProcessSample(parent, 0, 0.0, 0) for pid, parent in ((2, 1), (3, 2), (4, 3), (5, 1))
    }
    assert families([2, 5, 9], table) == {2: [2, 3, 4], 5: [5]}


def test_gpus_are_told_by_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs, of which the second cannot tell; a process and its child are on the first."""

    class Trouble(Exception):
        pass

    def used(handle: int, since: int) -> list[SimpleNamespace]:
        if handle:
            raise Trouble
        assert since in (0, 7)
        samples = ((11, 60, 5), (11, 80, 7), (12, 20, 6))
        return [SimpleNamespace(pid=p, smUtil=u, timeStamp=t) for p, u, t in samples]

    nvml = SimpleNamespace(
        NVMLError=Trouble, nvmlInit=lambda: None, nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index, nvmlDeviceGetProcessUtilization=used,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    use = HostUsage()
    use._families = {11: [11, 12], 13: [13]}
    for _ in range(2):
        assert use.gpus() == {11: pytest.approx(0.9)}
    nvml.nvmlDeviceGetProcessUtilization = lambda handle, since: used(1, since)
    assert use.gpus() == {11: 0.0}, "of processes that stand still it tells nothing"
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert HostUsage().gpus() == {}
