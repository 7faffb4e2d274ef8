"""A job's scripts run to the end, with a stand-in for Slurm on this host."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.host.hardware import own_address
from tests.integration import slurm_stand_in
from tests.integration.audit import assert_trained_once
from tests.integration.runs import QUICKSTART, SMALL, headrace

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
OVERRIDES = (
    *SMALL, "generator.engine=fake", "generator.count=2", "learner.ranks=2",
    "checkpoint.every_updates=1", "stop.updates=1000",
)  # fmt: skip


class Cluster:
    """Slurm's commands on PATH, and jobs that were handed in."""

    def __init__(self, root: Path) -> None:
        self.root, self._calls = root, root / "calls"
        self._commands = root / "bin"
        self._commands.mkdir()
        for name in ("srun", "scontrol", "squeue", "scancel"):
            program = self._commands / name
            program.write_text(f"#!{sys.executable}\n" + Path(slurm_stand_in.__file__).read_text())
            program.chmod(0o755)
        try:
            self.host = own_address("192.0.2.1")
        except OSError:
            self.host = "127.0.0.1"
        self.jobs: list[subprocess.Popen[bytes]] = []

    def submit(self, script: Path) -> "subprocess.Popen[bytes]":
        """Run a batch script as Slurm would on the job's first node."""
        environment = {
            **os.environ,
            "PATH": f"{self._commands}:{os.environ['PATH']}",
            "STAND_IN_LOG": str(self._calls),
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NODELIST": f"{self.host},{self.host}",
            "SLURM_NTASKS_PER_NODE": "1",
            "OMP_NUM_THREADS": "1",
        }
        with (self.root / "job.log").open("ab") as log:
            job = subprocess.Popen(
                ["bash", str(script)], env=environment, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        self.jobs.append(job)
        return job

    def calls(self, name: str) -> list[list[str]]:
        """What a command was called with."""
        rows = [json.loads(line) for line in self._calls.read_text().splitlines()]
        return [words for first, *words in rows if first == name]

    def text(self) -> str:
        """What the jobs printed."""
        return (self.root / "job.log").read_text(errors="replace")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    for job in made.jobs:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()


def test_a_job_drains_before_its_time_ends_and_goes_on_in_the_next(cluster: Cluster) -> None:
    runs = cluster.root / "runs"
    done = headrace(
        *("launch", str(QUICKSTART), "--on", "slurm", "--nodes", "2", "--learner-nodes", "2"),
        *("--root", str(runs), *OVERRIDES),
    )
    assert done.returncode == 0, done.stderr
    (run_dir,) = [path for path in runs.iterdir() if path.is_dir()]
    script = run_dir / "slurm" / "job.sbatch"
    assert f"sbatch {script}" in done.stdout
    assert (run_dir / "keys" / "server.key_secret").stat().st_mode & 0o077 == 0

    job = cluster.submit(script)
    checkpoints = run_dir / "checkpoints"
    deadline = time.monotonic() + 240
    while not list(checkpoints.glob("step_*/manifest.json")):
        assert job.poll() is None, cluster.text()
        assert time.monotonic() < deadline, cluster.text()
        time.sleep(0.2)
    job.send_signal(signal.SIGUSR2)
    assert job.wait(150) == 130, cluster.text()
    assert ["requeue", "7"] in cluster.calls("scontrol")
    before = shown(runs)
    assert before["status"] == "interrupted"
    assert before["updates"] >= 1

    resumed = headrace(
        *("launch", "--on", "slurm", "--resume", "latest", "--root", str(runs), "--nodes", "2"),
        *("--learner-nodes", "2", f"stop.updates={before['updates'] + 2}"),
    )
    assert resumed.returncode == 0, resumed.stderr
    assert cluster.submit(script).wait(240) == 0, cluster.text()
    after = shown(runs)
    assert after["status"] == "finished"
    assert after["updates"] == before["updates"] + 2
    assert_trained_once(run_dir)

    address = json.loads((run_dir / "coordinator.json").read_text())["address"]
    assert address.startswith(f"tcp://{cluster.host}:")
    calls = cluster.calls("srun")
    started = sorted(w.removeprefix("--job-name=") for words in calls for w in words[:1])
    assert started == sorted(["learner", "generator-0", "generator-1", "reward-0"] * 2)
    for words in calls:
        if words[0] == "--job-name=learner":
            assert cluster.host in words
        else:
            assert address in words


def shown(runs: Path) -> dict[str, Any]:
    """`headrace show latest --json`."""
    done = headrace("show", "latest", "--json", "--root", str(runs))
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_plan_without_room_leaves_no_folder(tmp_path: Path) -> None:
    done = headrace(
        *("launch", str(QUICKSTART), "--on", "slurm", "--cpus-per-node", "1"),
        *("--root", str(tmp_path / "runs"), *OVERRIDES),
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: the plan needs ")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "runs").exists()
