"""The plan of a run over several hosts, which a scheduler places. Pure.

In: a configuration, the run's folder, whether the hosts have GPUs. Out: the processes of
`plan_processes` on one imaginary host with a GPU for everybody and no cores to pin, and each one's
`ResourceShare`. HOST stands for the name of the host that a process is started on. All hosts see
the run's folder, the models and this installation under the same paths.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from headrace.config.sections.run import RunConfig
from headrace.errors import UserError
from headrace.host.hardware import Gpu, Hardware
from headrace_cli.launch.plan import ProcessSpec, plan_processes

HOST = "{host}"
EVERYWHERE = "0.0.0.0"


@dataclass(frozen=True)
class ResourceShare:
    """Cores and GPUs that a process asks the scheduler for."""

    cpus: int
    gpus: int = 0


def plan_hosts(
    config: RunConfig, run_dir: Path, *, gpus: bool
) -> list[tuple[ProcessSpec, ResourceShare]]:
    """Every process of a run with its share, in the order in which they start."""
    _check(config)
    generator = config.generator
    cards = config.learner.ranks + generator.count * generator.tensor_parallel_size
    imaginary = tuple(Gpu(index, "", 0) for index in range(cards)) if gpus else ()
    machine = Hardware((0,), 0, 0, imaginary)
    return [
        (_unbound(spec), _share(spec, config)) for spec in plan_processes(config, run_dir, machine)
    ]


def _check(config: RunConfig) -> None:
    for key, cpus in (("generator", config.generator.cpus), ("learner", config.learner.cpus)):
        if cpus:
            raise UserError(f"{key}.cpus names cores of one host; leave it out on several hosts")
    if config.reward.judges:
        raise UserError(
            "reward.judges are served on one host; on several, serve them apart and name them by "
            "the option `url` of their source"
        )


def _unbound(spec: ProcessSpec) -> ProcessSpec:
    """The process without a choice of cores and GPUs: those are the scheduler's to give."""
    chosen = "CUDA_VISIBLE_DEVICES" if spec.gpus else None
    env = {name: value for name, value in spec.env.items() if name != chosen}
    argv = spec.argv
    if spec.role == "generator":
        argv = (*argv, "--cpus", "all")
    if spec.role == "coordinator":
        argv = (*argv, "--announce", HOST)
    return replace(spec, argv=argv, env=env, gpus=())


def _share(spec: ProcessSpec, config: RunConfig) -> ResourceShare:
    match spec.role:
        case "learner":
            return ResourceShare(int(spec.env["OMP_NUM_THREADS"]), len(spec.gpus))
        case "generator":
            # The front of vLLM has a core beside those of the engine's workers.
            return ResourceShare(1 + len(spec.gpus), len(spec.gpus))
        case "reward":
            return ResourceShare(sum(source.children for source in config.reward.each().values()))
        case "environment":
            assert config.environment is not None
            return ResourceShare(config.environment.children)
        case _:
            return ResourceShare(1)
