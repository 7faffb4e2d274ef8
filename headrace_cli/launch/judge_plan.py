"""Processes of a run's judges, and their places. Pure, as `plan.py`.

In: a configuration, the machine. Out: cores and GPUs of each judge, and what of the machine is left
to the others. GPUs: judges take the last ones, where the learner and a generator still have theirs,
else they share the last. CPU: each takes one of the last cores, where three are left to others;
else it works on any.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.config.device_defaults import ranks_on_gpus
from headrace.config.sections.model import JudgeConfig
from headrace.config.sections.run import RunConfig
from headrace.errors import UserError
from headrace.host.hardware import Hardware

CORES_FOR_OTHERS = 3


@dataclass(frozen=True)
class JudgePlacement:
    """Cores and GPUs of one judge; empty means any core, and no GPU."""

    cpus: tuple[int, ...] = ()
    gpus: tuple[str, ...] = ()


def place_judges(
    config: RunConfig, hardware: Hardware
) -> tuple[dict[str, JudgePlacement], Hardware]:
    """The place of each judge, and what is left of the machine."""
    judges = config.reward.judges
    for name, judge in judges.items():
        if judge.cpus and not set(judge.cpus) <= set(hardware.cores):
            raise UserError(
                f"reward.judges.{name}.cpus = {judge.cpus}, but this machine offers "
                f"{list(hardware.cores)}"
            )
    places = _on_gpus(config, hardware) if hardware.gpus else _on_cores(judges, hardware)
    used = {gpu for place in places.values() for gpu in place.gpus}
    left = tuple(gpu for gpu in hardware.gpus if gpu.device not in used)
    if len(left) < ranks_on_gpus(config) + config.generator.tensor_parallel_size:
        left = hardware.gpus
    own = {core for place in places.values() for core in place.cpus}
    cores = tuple(core for core in hardware.cores if core not in own)
    if hardware.gpus or len(cores) < CORES_FOR_OTHERS:
        cores = hardware.cores
    return places, replace(hardware, gpus=left, cores=cores)


def _on_gpus(config: RunConfig, hardware: Hardware) -> dict[str, JudgePlacement]:
    """From the last GPU down; the last ones again where there are no more."""
    devices = [gpu.device for gpu in reversed(hardware.gpus)]
    places: dict[str, JudgePlacement] = {}
    taken = 0
    for name, judge in config.reward.judges.items():
        width = judge.tensor_parallel_size
        if width > len(devices):
            raise UserError(
                f"reward.judges.{name}.tensor_parallel_size = {width} but this machine has "
                f"{len(devices)} GPU(s)"
            )
        first = taken if taken + width <= len(devices) else 0
        gpus = tuple(reversed(devices[first : first + width]))
        places[name] = JudgePlacement(tuple(judge.cpus or ()), gpus)
        taken = first + width
    return places


def _on_cores(judges: Mapping[str, JudgeConfig], hardware: Hardware) -> dict[str, JudgePlacement]:
    chosen = {core for judge in judges.values() for core in judge.cpus or ()}
    free = [core for core in hardware.cores if core not in chosen]
    places: dict[str, JudgePlacement] = {}
    for name, judge in judges.items():
        own = judge.cpus or ([free.pop()] if len(free) > CORES_FOR_OTHERS else [])
        places[name] = JudgePlacement(tuple(own))
    return places


def judge_argv(name: str, run_dir: Path) -> tuple[str, ...]:
    """The command that serves a judge of a run."""
    run = ("--run-dir", str(run_dir), "--name", name)
    return (sys.executable, "-m", "generators.serving.judge", *run)
