"""The scripts of a Slurm job, and a plan as its steps."""

import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.config.sections.run import RunConfig
from headrace.errors import UserError
from headrace_cli.launch.hosts import plan_hosts
from headrace_cli.launch.plan import ADDRESS, MASTER_PORT
from headrace_cli.launch.slurm import HostPlan, SlurmJob, job_of, scripts, steps

Make = Callable[..., RunConfig]
RUN = Path("/runs/r1")
OPEN = SlurmJob(nodes=2, cpus_per_node=0, learner_nodes=0)


def plan(make_config: Make, *overrides: str, gpus: bool = False) -> HostPlan:
    return plan_hosts(make_config("dashboard.enabled=false", *overrides), RUN, gpus=gpus)


def texts(make_config: Make, asked: SlurmJob, *overrides: str) -> dict[str, str]:
    found = plan(make_config, *overrides, gpus=asked.gpus_per_node > 0)
    return scripts(found, job_of(found, asked), RUN)


@pytest.mark.parametrize("gpus", [0, 4])
def test_the_shell_reads_every_script(make_config: Make, tmp_path: Path, gpus: int) -> None:
    found = texts(make_config, replace(OPEN, gpus_per_node=gpus), "learner.ranks=2")
    assert sorted(found) == ["generator.sh", "job.sbatch", "learner.sh", "ranks.sh", "reward.sh"]
    for name, text in found.items():
        path = tmp_path / name
        path.write_text(text)
        done = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), name


def test_options_stand_before_the_first_command(make_config: Make) -> None:
    """Slurm reads none after it."""
    asked = SlurmJob(
        nodes=3, cpus_per_node=16, gpus_per_node=4, time="2:00:00", partition="big", account="lab",
        more=("--qos=high",),
    )  # fmt: skip
    lines = texts(make_config, asked, "learner.ranks=4")["job.sbatch"].splitlines()
    assert lines[0] == "#!/bin/bash"
    options = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")]
    assert all(line.startswith("#") for line in lines[: len(options) + 1])
    assert options == [
        "--job-name=r1", "--nodes=3", "--ntasks-per-node=1", "--cpus-per-task=16", "--gres=gpu:4",
        "--time=2:00:00", "--partition=big", "--account=lab",
        "--output=/runs/r1/logs/slurm-%j.log", "--open-mode=append", "--requeue", "--no-kill",
        "--signal=B:USR2@300", "--qos=high",
    ]  # fmt: skip


def test_the_learners_ranks_fill_as_few_nodes_as_have_the_gpus(make_config: Make) -> None:
    found = texts(make_config, SlurmJob(3, 0, 4, learner_nodes=0), "learner.ranks=8")
    assert "--nodes=2 --relative=0 --ntasks=2 " in found["learner.sh"]
    assert "--gres=gpu:4" in found["learner.sh"]
    assert "--nnodes=2 " in found["ranks.sh"]
    assert "--nproc-per-node=4 " in found["ranks.sh"]
    assert "--gres=gpu:1" in found["generator.sh"]
    assert "--gres=none" in found["reward.sh"]
    on_cpu = texts(make_config, OPEN, "learner.ranks=8")
    assert "--nodes=1 --relative=0 " in on_cpu["learner.sh"]
    assert "gres" not in "".join(on_cpu.values())


def test_each_node_gets_the_cores_that_the_plan_needs(make_config: Make) -> None:
    four = plan(make_config, "learner.threads=3", "generator.count=3")
    # The learner's node takes one more; the other two generators and the reward worker follow.
    assert job_of(four, OPEN).cpus_per_node == 4
    assert job_of(four, replace(OPEN, nodes=1)).cpus_per_node == 7
    assert job_of(four, replace(OPEN, cpus_per_node=9)).cpus_per_node == 9
    with pytest.raises(UserError, match="needs 4 cores on each of 2 node"):
        job_of(four, replace(OPEN, cpus_per_node=3))


def test_a_job_without_room_is_refused(make_config: Make) -> None:
    with pytest.raises(UserError, match="5 GPU"):
        texts(make_config, SlurmJob(1, 0, 4), "learner.ranks=4")
    with pytest.raises(UserError, match="cannot be shared evenly by 2 nodes"):
        texts(make_config, SlurmJob(3, 0, learner_nodes=2), "learner.ranks=3")


def test_a_job_that_only_evaluates(make_config: Make) -> None:
    found = plan(make_config, "evaluation.only=true", "evaluation.before=true")
    assert job_of(found, OPEN).learner_nodes == 1


def test_processes_as_steps(make_config: Make) -> None:
    found = {s.name: s for s in steps(plan(make_config, "learner.ranks=2"), RUN, "node-7")}
    assert list(found) == ["coordinator", "learner", "generator-0", "reward-0"]
    assert found["coordinator"].argv[-2:] == ("--announce", "node-7")
    assert found["learner"].argv == (
        "bash", "/runs/r1/slurm/learner.sh", "learner", "node-7", MASTER_PORT,
        "-m", "learner.run", "--run-dir", "/runs/r1", "--connect", ADDRESS,
    )  # fmt: skip
    assert found["learner"].log.name == "learner.log"
    generator = found["generator-0"].argv
    assert generator[:3] == ("bash", "/runs/r1/slurm/generator.sh", "generator-0")
    assert "generators.run" in generator
    assert found["reward-0"].argv[1:3] == ("/runs/r1/slurm/reward.sh", "reward-0")


def test_a_step_whose_node_fails_has_failed(make_config: Make, tmp_path: Path) -> None:
    """srun's exit code is 0 then. What an srun that was killed left behind goes before."""
    calls = tmp_path / "calls"
    for name, does in (
        ("srun", f'echo "srun $*" >> {calls}'),
        ("squeue", "echo 7.2 generator-1; echo 7.3 generator-0"),
        ("scancel", f'echo "scancel $*" >> {calls}'),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    script = tmp_path / "generator.sh"
    script.write_text(texts(make_config, OPEN)["generator.sh"])
    done = subprocess.run(
        ["bash", str(script), "generator-0", "true"],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr == "a node of this step failed\n"
    first, second = calls.read_text().splitlines()
    assert first == "scancel --signal=KILL 7.3"
    assert second.startswith("srun --job-name=generator-0 --nodes=1 --ntasks=1 ")
