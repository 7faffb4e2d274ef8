"""`headrace launch`: a run over several hosts, on Slurm or on Ray.

In: parsed arguments. Out: for Slurm a run folder with the scripts of a job, and inside that job a
finished run; for Ray a finished run. What starts, restarts and ends the processes is the supervisor
of `headrace train`, and so are lines, logs and exit codes.
"""

import argparse
import os
import shlex
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from rich.console import Console

from headrace.config.device_defaults import resolve_learner
from headrace.config.preflight.checks import check_model
from headrace.config.sections.run import RunConfig
from headrace.errors import UserError
from headrace.host.hardware import own_address, torch_cuda
from headrace.protocol.transport.sockets import is_loopback
from headrace.run_files import run_folder
from headrace_cli.commands.checks.preflight import check_data, check_environment, say_overruled
from headrace_cli.commands.checks.reward_check import check_reward
from headrace_cli.commands.run.train import (
    prepare_run,
    print_summary,
    report,
    root_option,
    supervise,
)
from headrace_cli.launch.hosts import EVERYWHERE, plan_hosts
from headrace_cli.launch.keys import with_keys
from headrace_cli.launch.slurm import FOLDER, JOB, HostPlan, SlurmJob, job_of, steps, write_scripts
from headrace_cli.launch.supervisor import INTERRUPTED, signal_handler


def launch(arguments: argparse.Namespace) -> int:
    arguments.no_dashboard = True
    if arguments.on == "ray":
        return _on_ray(arguments)
    return _in_job(arguments) if arguments.inside else _write_job(arguments)


# -- preparing ---------------------------------------------------------------------------------


def _prepared(
    arguments: argparse.Namespace, *, gpus: bool, find_room: Callable[[HostPlan], object]
) -> tuple[Path, RunConfig]:
    """The folder of the run and its configuration with keys, whose sockets other hosts reach.

    `find_room` raises UserError where there is none for a plan: then there is no folder."""
    run_dir, config = prepare_run(
        arguments, lambda config: _check(config, gpus=gpus, find_room=find_room)
    )
    if is_loopback(config.transport.host):
        transport = config.transport.model_copy(update={"host": EVERYWHERE})
        config = config.model_copy(update={"transport": transport})
    config = with_keys(run_dir, config)
    run_folder.write_config(run_dir, config)
    return run_dir, config


def _check(config: RunConfig, *, gpus: bool, find_room: Callable[[HostPlan], object]) -> RunConfig:
    """Check a run that works elsewhere as far as possible here: its files, not memory and ports."""
    check_model(config)
    check_data(config)
    on_gpu = gpus and torch_cuda() is not None
    # Which products its processor has the learner sees itself.
    found = resolve_learner(config, on_gpu=on_gpu, bfloat16=True)
    checked = check_reward(check_environment(found.config))
    find_room(plan_hosts(checked, Path(config.root), gpus=gpus))
    say_overruled(config, found)
    return checked


# -- Ray ---------------------------------------------------------------------------------------


def _on_ray(arguments: argparse.Namespace) -> int:
    """Supervise the run from here; everything else is in actors of the cluster."""
    from headrace_cli.launch.ray_launcher import RayLauncher, check_room, connect

    offered, free = connect(arguments.address)
    gpus = offered.get("GPU", 0) > 0
    run_dir, config = _prepared(
        arguments, gpus=gpus, find_room=lambda plan: check_room(plan, offered, free)
    )
    plan = plan_hosts(config, run_dir, gpus=gpus)
    console = Console()
    resume = bool(arguments.resume)
    with run_folder.locked(run_dir):
        outcome, controller = supervise(
            run_dir, config, [spec for spec, _ in plan], console,
            plain=arguments.plain, resume=resume, launcher=RayLauncher(plan),
        )  # fmt: skip
    again = "headrace launch --on ray --resume {name}{root}"
    print_summary(console, run_dir, controller, outcome, fresh=not resume, again=again)
    return report(outcome, run_dir)


# -- Slurm -------------------------------------------------------------------------------------


def _write_job(arguments: argparse.Namespace) -> int:
    sizes = ("nodes", "cpus_per_node", "gpus_per_node", "learner_nodes")
    own = {name: getattr(arguments, name) for name in (*sizes, "time", "partition", "account")}
    asked = SlurmJob(**own, more=tuple(arguments.sbatch))
    gpus = asked.gpus_per_node > 0
    run_dir, config = _prepared(arguments, gpus=gpus, find_room=lambda plan: job_of(plan, asked))
    plan = plan_hosts(config, run_dir, gpus=gpus)
    job = job_of(plan, asked)
    script = write_scripts(plan, job, run_dir)
    print(f"run folder         {run_dir}")
    print(f"job                {job.nodes} nodes, each with {job.cpus_per_node} cores and "
          f"{job.gpus_per_node} GPUs; learner on {job.learner_nodes}")  # fmt: skip
    print(f"hand it in with    sbatch {shlex.quote(str(script))}")
    print(f"end it with        headrace stop {run_dir.name}{root_option(run_dir)}")
    print("go on with it by   the same sbatch again")
    return 0


def _in_job(arguments: argparse.Namespace) -> int:
    """Supervise the run from the first node of its job; queue the job again when its time ends."""
    run_dir = arguments.inside
    config = run_folder.read_config(run_dir)
    plan = plan_hosts(config, run_dir, gpus=arguments.gpus_per_node > 0)
    specs = steps(plan, run_dir, _host_of(arguments.hosts))
    resume = (run_dir / "journal").is_dir()
    console = Console()
    with run_folder.locked(run_dir), _warning() as warned:
        outcome, controller = supervise(run_dir, config, specs, console, plain=True, resume=resume)
    again = f"sbatch {shlex.quote(str(run_dir / FOLDER / JOB))}"
    print_summary(console, run_dir, controller, outcome, fresh=not resume, again=again)
    code = report(outcome, run_dir)
    if warned and outcome.code == INTERRUPTED:
        queued = subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]])
        done = "is queued again" if queued.returncode == 0 else "could not be queued again"
        print(f"the job's time is over: it {done}", flush=True)
    return code


def _host_of(hosts: list[str]) -> str:
    """Return the first host as others know it. A host often takes its own name for loopback; its
    address towards another one is then right."""
    first, *others = hosts
    try:
        if others and is_loopback(socket.gethostbyname(first)):
            return own_address(others[-1])
    except OSError as error:
        raise UserError(f"cannot find the address of {first}: {error}") from error
    return first


@contextmanager
def _warning() -> Iterator[list[int]]:
    """Turn Slurm's warning (SIGUSR2) into a request to end; the list then holds it."""
    seen: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        os.kill(os.getpid(), signal.SIGTERM)

    with signal_handler(pass_on, signal.SIGUSR2):
        yield seen
