"""Processes of a run, and where each one runs. Pure: nothing is started here.

In: a configuration, the run's folder, the machine. Out: one `ProcessSpec` for each process, the
coordinator first. Addresses that exist only later are placeholders that the supervisor fills in at
the start.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headrace.config.device_defaults import ALONE, GpuPlacement, gpu_places
from headrace.config.preflight.checks import check_gpus
from headrace.config.sections.run import RunConfig
from headrace.errors import UserError
from headrace.host import memory
from headrace.host.hardware import Hardware, free_port, port_is_free
from headrace.host.install import own_imports
from headrace.protocol.messages.judges import FOLDER, JUDGES_VARIABLE
from headrace_cli.launch.judge_plan import judge_argv, place_judges

ADDRESS = "{address}"
MASTER_ADDRESS = "{master_address}"
MASTER_PORT = "{master_port}"
SpecRole = Literal[
    "coordinator", "learner", "generator", "reward", "environment", "judge", "dashboard"
]


@dataclass(frozen=True)
class RestartPolicy:
    """Maximum restarts of a process before the run is given up. The wait doubles from `delay_s`
    with each death; a process that lived `forgive_s` resets the count."""

    limit: int = 0
    delay_s: float = 1.0
    forgive_s: float = 300.0


@dataclass(frozen=True)
class ProcessSpec:
    """One process of a run. `argv` may contain ADDRESS, MASTER_ADDRESS and MASTER_PORT; `env` is
    added to the supervisor's; `needed` is False for what a run can do without (the dashboard, a
    judge that only audits); `leaves` is False for what does not end by itself when the run does."""

    name: str
    role: SpecRole
    argv: tuple[str, ...]
    env: dict[str, str]
    log: Path
    cpus: tuple[int, ...] = ()
    gpus: tuple[str, ...] = ()
    restarts: RestartPolicy = RestartPolicy()
    needed: bool = True
    leaves: bool = True


def cpu_places(
    config: RunConfig, hardware: Hardware
) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """Cores of each generator and of the learner; empty means anywhere. Without GPUs each generator
    has a core of its own and the learner the others, except in lockstep modes, where the learner
    may use all of them; a single core is shared."""
    cores, count = hardware.cores, config.generator.count
    for key, wanted in (("generator", config.generator.cpus), ("learner", config.learner.cpus)):
        if wanted and not set(wanted) <= set(cores):
            raise UserError(f"{key}.cpus = {wanted}, but this machine offers {list(cores)}")
    if hardware.gpus:
        return (tuple(config.generator.cpus or ()),) * count, tuple(config.learner.cpus or ())
    if config.generator.cpus:
        generators = tuple(tuple(config.generator.cpus) for _ in range(count))
    elif len(cores) == 1:
        generators = ((),) * count
    elif config.schedule.mode != "streaming":
        # Generators and learner take turns: each has the machine while the other waits.
        generators = (cores,) * count
    else:
        named = config.learner.cpus or ()
        free = tuple(core for core in cores if core not in named) or cores
        own = max(1, min(count, len(free) - (not named)))
        generators = tuple((free[index % own],) for index in range(count))
    if config.learner.cpus:
        return generators, tuple(config.learner.cpus)
    if len(cores) == 1 or config.schedule.mode != "streaming":
        return generators, cores if len(cores) > 1 else ()
    taken = {core for group in generators for core in group}
    return generators, tuple(core for core in cores if core not in taken) or cores


def plan_processes(config: RunConfig, run_dir: Path, hardware: Hardware) -> list[ProcessSpec]:
    """Every process of a run, in the order in which they start."""
    judges, others = place_judges(config, hardware)
    check_gpus(config, others)
    generator_cpus, learner_cpus = cpu_places(config, others)
    gpu_of = gpu_places(config, others.gpus)
    keys = ("--curve-keys", config.transport.curve_keys) if config.transport.curve_keys else ()
    logs = run_dir / "logs"

    def spec(
        name: str,
        role: SpecRole,
        module: str,
        *arguments: str,
        threads: int = 1,
        cpus: tuple[int, ...] = (),
        gpus: tuple[str, ...] = (),
        restarts: RestartPolicy = RestartPolicy(),
        environment: dict[str, str] | None = None,
        needed: bool = True,
        leaves: bool = True,
    ) -> ProcessSpec:
        pinned = ("--cpus", ",".join(map(str, cpus))) if cpus else ()
        argv = (sys.executable, "-m", module, *arguments, *pinned)
        env = role_environment(threads, gpus if hardware.gpus else None) | (environment or {})
        log = logs / f"{name}.log"
        return ProcessSpec(name, role, argv, env, log, cpus, gpus, restarts, needed, leaves)

    specs = [
        spec(
            "coordinator", "coordinator", "coordinator.run", "--run-dir", str(run_dir),
            restarts=RestartPolicy(limit=3),
        ),
    ]  # fmt: skip
    if not config.evaluation.only:
        threads = config.learner.threads
        if config.schedule.mode != "streaming" and not hardware.gpus:
            share = max(1, hardware.core_count // config.learner.ranks)
            threads = config.learner.lockstep_threads or share
        specs += [
            spec(
                f"learner-{rank}", "learner", *learner_argv(ADDRESS, run_dir)[2:],
                "--rank", str(rank), "--world-size", str(config.learner.ranks),
                "--master-address", MASTER_ADDRESS, "--master-port", MASTER_PORT,
                threads=threads, cpus=learner_cpus, gpus=gpu_of.learner[rank],
                restarts=RestartPolicy(limit=3), environment=learner_environment(config, hardware),
            )
            for rank in range(config.learner.ranks)
        ]  # fmt: skip
    specs += [
        spec(
            f"generator-{index}", "generator",
            *generator_argv(ADDRESS, f"generator-{index}", config.transport.curve_keys)[2:],
            *_evaluation_cpus(config, hardware), *_company(gpu_of, index),
            cpus=generator_cpus[index], gpus=gpu_of.generators[index],
            restarts=RestartPolicy(limit=5),
        )
        for index in range(config.generator.count)
    ]  # fmt: skip
    specs += [
        spec(
            f"judge-{name}", "judge", *judge_argv(name, run_dir)[2:],
            cpus=spot.cpus, gpus=spot.gpus, restarts=RestartPolicy(limit=5),
            needed=name not in config.reward.audit_judges(), leaves=False,
        )
        for name, spot in judges.items()
    ]  # fmt: skip
    specs += [
        spec(
            f"reward-{index}", "reward", "rewards.run", "--connect", ADDRESS,
            "--name", f"reward-{index}", *keys, restarts=RestartPolicy(limit=5),
            environment={JUDGES_VARIABLE: str(run_dir / FOLDER)} if judges else None,
        )
        for index in range(config.reward.workers if config.is_scored else 0)
    ]  # fmt: skip
    specs += [
        spec(
            f"environment-{index}", "environment", "environments.run", "--connect", ADDRESS,
            "--name", f"environment-{index}", *keys, restarts=RestartPolicy(limit=5),
        )
        for index in range(config.environment.workers if config.environment else 0)
    ]  # fmt: skip
    if config.dashboard.enabled:
        page = dashboard_argv(config.dashboard.host, config.dashboard.port, run_dir.parent)
        limit = RestartPolicy(limit=2)
        specs.append(
            spec("dashboard", "dashboard", *page[2:], run_dir.name, restarts=limit, needed=False)
        )
    return specs


USES_MORE_GPUS = "learner.ranks, generator.count and generator.tensor_parallel_size take more"


def idle_gpus(specs: Sequence[ProcessSpec], hardware: Hardware) -> str:
    """The GPUs that no process works on."""
    used = {device for spec in specs for device in spec.gpus}
    return ", ".join(gpu.device for gpu in hardware.gpus if gpu.device not in used)


def _evaluation_cpus(config: RunConfig, hardware: Hardware) -> tuple[str, ...]:
    """While the run evaluates, the learner's cores are free: a generator whose front is apart from
    its engine uses them. Not where someone chose the cores."""
    chosen = config.generator.cpus or config.learner.cpus
    apart = config.generator.engine == "vllm" and not hardware.gpus
    if chosen or not apart or config.schedule.mode != "streaming" or len(hardware.cores) == 1:
        return ()
    return ("--evaluation-cpus", ",".join(map(str, hardware.cores)))


def _company(places: GpuPlacement, index: int) -> tuple[str, ...]:
    """A generator's options about the other processes on its GPUs."""
    found = places.company(*places.generators[index])
    return () if found == ALONE else ("--company", *map(str, found))


def learner_argv(address: str, run_dir: Path) -> tuple[str, ...]:
    """The command of every learner rank, without its place among the others."""
    run = ("--run-dir", str(run_dir), "--connect", address)
    return (sys.executable, "-m", "learner.run", *run)


def generator_argv(address: str, name: str, curve_keys: str | None) -> tuple[str, ...]:
    """The command of a generator, wherever it runs."""
    keys = ("--curve-keys", curve_keys) if curve_keys else ()
    argv = (sys.executable, "-m", "generators.run", "--connect", address, "--name", name)
    return (*argv, *keys)


def dashboard_argv(host: str, port: int, root: Path) -> tuple[str, ...]:
    """The command that serves the page of a folder of runs; a run's name behind it opens that."""
    return (sys.executable, "-m", "dashboard.server", host, str(port), str(root))


MAX_PORT, PORTS_SEARCHED = 65535, 100


def page_port(host: str, wanted: int) -> int:
    """Return the wanted port for a page, or, if it is in use, the next free one, with a notice. 0:
    any. UserError where `host` is not this machine's."""
    near = range(wanted, min(wanted + PORTS_SEARCHED, MAX_PORT) + 1) if wanted else ()
    try:
        port = next((port for port in near if port_is_free(host, port)), None) or free_port(host)
    except OSError as error:
        raise UserError(f"host {host}: no address of this machine ({error})") from error
    if wanted not in (0, port):
        print(f"port {wanted} is in use: the page is at port {port}", file=sys.stderr)
    return port


OPENMP_SPIN_COUNT = 5_000
"""Number of times that a waiting OpenMP thread looks before it sleeps, some tenths of a
millisecond. Threads that spin for milliseconds, as they do by default, stand still for seconds
where anything else uses their cores; those that sleep at once are no faster than one."""


def learner_environment(config: RunConfig, hardware: Hardware) -> dict[str, str]:
    """Return further variables of a learner rank. On a CPU, where it should save memory, it gives
    back what checkpointing frees (`headrace.host.memory`); only there, as layers of 4,096 tokens of
    width 128 take a third more time."""
    on_cpu = not hardware.gpus or config.learner.device == "cpu"
    if not on_cpu or not config.learner.gradient_checkpointing or memory.OWN_MAP in os.environ:
        return {}
    return {memory.OWN_MAP: str(memory.OWN_MAP_BYTES)}


def role_environment(threads: int, gpus: tuple[str, ...] | None = None) -> dict[str, str]:
    """Variables of a role's process. `gpus` None: leave CUDA's choice alone."""
    env = {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        **own_imports(),
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
        env["GOMP_SPINCOUNT"] = str(OPENMP_SPIN_COUNT)
    if gpus is not None:
        # The numbers are nvidia-smi's; left to itself CUDA counts faster GPUs first.
        env |= {"CUDA_VISIBLE_DEVICES": ",".join(gpus), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    return env
