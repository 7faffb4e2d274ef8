"""A run on a cluster of three Ray nodes, of which one is killed.

Ray is an extra. Where this Python has none, HEADRACE_RAY_PYTHON may name another one that has it
beside the project's dependencies.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.integration.audit import assert_trained_once
from tests.integration.runs import QUICKSTART, REPOSITORY, SMALL, headrace

PYTHON = os.environ.get("HEADRACE_RAY_PYTHON") or (sys.executable if find_spec("ray") else None)
ENVIRONMENT = {
    **os.environ, "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
}  # fmt: skip
needs_ray = pytest.mark.skipif(
    PYTHON is None,
    reason="Ray is not installed; HEADRACE_RAY_PYTHON may name a Python that has it",
)


class Cluster:
    """Three nodes with three cores each, in processes of their own."""

    def __init__(self, log: Path) -> None:
        assert PYTHON is not None
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [PYTHON, "-m", "tests.integration.ray_cluster", "3", "3", "3"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                cwd=REPOSITORY, env=ENVIRONMENT, start_new_session=True,
            )  # fmt: skip
        self.address = self._answer()

    def kill_node_of(self, name: str) -> str:
        """Kill the node that has a process; `none` where only the head has it."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{name}\n")
        self._process.stdin.flush()
        return self._answer()

    def end(self) -> None:
        """End all nodes."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        while line := self._process.stdout.readline():
            if line.startswith(("127.", "1", "killed", "none")):
                return line.strip()
        raise AssertionError("the cluster ended")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path / "cluster.log")
    yield made
    made.end()


@needs_ray
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_node_dies_and_the_run_goes_on(cluster: Cluster, tmp_path: Path) -> None:
    runs, log = tmp_path / "runs", tmp_path / "launch.log"
    command = [
        str(PYTHON), "-m", "headrace", "launch", str(QUICKSTART), "--on", "ray",
        "--address", cluster.address, "--plain", "--root", str(runs), *SMALL,
        "generator.engine=fake", "generator.count=2", "learner.ranks=2",
        "checkpoint.every_updates=1", "stop.updates=6",
    ]  # fmt: skip
    with log.open("wb") as output:
        run = subprocess.Popen(
            command, stdout=output, stderr=output, cwd=REPOSITORY, env=ENVIRONMENT,
            start_new_session=True,
        )  # fmt: skip
    try:
        until(lambda: list(runs.glob("*/checkpoints/step_*/manifest.json")), run, log)
        names = ["generator-1", "generator-0", "learner.run", "rewards.run"]
        assert any(cluster.kill_node_of(name) == "killed" for name in names)
        assert run.wait(300) == 0, log.read_text()
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()
    (run_dir,) = [path for path in runs.iterdir() if path.is_dir()]
    events = rows(run_dir)
    assert {"died", "restarted"} <= {row["event"] for row in events}, log.read_text()
    assert events[-1]["event"] == "ended"
    assert events[-1]["code"] == 0
    shown = headrace("show", "latest", "--json", "--root", str(runs))
    assert json.loads(shown.stdout)["status"] == "finished"
    assert_trained_once(run_dir)


@needs_ray
def test_a_cluster_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [str(PYTHON), "-m", "headrace", "launch", str(QUICKSTART), "--on", "ray", "--address",
         "127.0.0.1:9", "--root", str(tmp_path)],
        env=ENVIRONMENT,
        cwd=REPOSITORY, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: no Ray cluster at '127.0.0.1:9'")


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed here")
def test_without_ray_the_line_names_the_extra(tmp_path: Path) -> None:
    done = headrace("launch", str(QUICKSTART), "--on", "ray", "--root", str(tmp_path / "runs"))
    assert done.returncode == 2
    assert done.stderr.startswith("error: Ray is not installed; install the extra `ray`")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def until(condition: Any, run: "subprocess.Popen[bytes]", log: Path) -> None:
    """Wait while the run goes on."""
    deadline = time.monotonic() + 240
    while not condition():
        assert run.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.2)


def rows(run_dir: Path) -> list[dict[str, Any]]:
    """What the supervisor wrote down."""
    text = (run_dir / "supervisor.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]
