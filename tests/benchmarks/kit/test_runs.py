"""A run of a benchmark does not outlive it."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headrace.host.install import ROOT

TRAIN = """
import signal, sys, time
from pathlib import Path
signal.signal(signal.SIGTERM, lambda *_: sys.exit(Path("ended").write_text("")))
Path("begun").touch()
time.sleep(60)
"""
BENCHMARK = """
import sys
from pathlib import Path
from benchmarks.kit import runs
runs.ROOT = Path(sys.argv[1])
runs.train("a.toml", [], root=runs.ROOT / "runs", name="one")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_is_asked_to_end_with_its_benchmark(tmp_path: Path, number: int) -> None:
    package = tmp_path / "headrace"
    package.mkdir()
    (package / "__main__.py").write_text(TRAIN)
    command = [sys.executable, "-c", BENCHMARK, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT) as benchmark:
        until(tmp_path / "begun")
        assert not (tmp_path / "ended").exists()
        benchmark.send_signal(number)
    until(tmp_path / "ended")


def until(there: Path) -> None:
    """Wait for a file."""
    deadline = time.monotonic() + 60
    while not there.exists():
        assert time.monotonic() < deadline, there
        time.sleep(0.02)
