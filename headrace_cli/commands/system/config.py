"""`headrace config show|check|explain`: inspect a recipe without starting a run."""

import argparse
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from headrace.config.device_defaults import resolve
from headrace.config.loading.hub import with_local_model
from headrace.config.loading.keys import flattened
from headrace.config.preflight.checks import check_model, problems
from headrace.config.preflight.explain import Fact, facts, memory_facts
from headrace.errors import UserError, visible
from headrace.host.hardware import Hardware, detect
from headrace_cli.commands.checks.preflight import (
    check_environment,
    check_family,
    image_problems,
    start_checks,
)
from headrace_cli.commands.checks.reward_check import check_reward
from headrace_cli.commands.run.train import config_from_arguments
from headrace_cli.commands.system.measure import measure
from headrace_cli.launch.judge_plan import place_judges
from headrace_cli.launch.plan import USES_MORE_GPUS, idle_gpus, plan_processes


def show(arguments: argparse.Namespace) -> int:
    """Every key with its value, defaults included."""
    config = config_from_arguments(arguments).public()
    if arguments.json:
        print(config.model_dump_json(indent=2))
        return 0
    for name, value in flattened(json.loads(config.model_dump_json())).items():
        print(f"{name} = {json.dumps(value)}")
    return 0


def check(arguments: argparse.Namespace) -> int:
    """All that is wrong; exit code 2 where something is."""
    config = config_from_arguments(arguments)
    found = problems(config)
    hardware = detect()
    tests: list[Callable[[], object]] = [
        lambda: check_model(config),
        *start_checks(config, hardware),
        lambda: found.extend(image_problems(config)),
        lambda: check_environment(config),
        lambda: check_reward(config, every=True),
        lambda: check_family(config),
    ]
    for test in tests:
        try:
            test()
        except UserError as error:
            if str(error) not in found:
                found.append(str(error))
    if arguments.json:
        print(json.dumps({"ok": not found, "problems": found}))
    elif found:
        print(visible("\n".join(found)))
    else:
        print(f"{arguments.recipe}: nothing wrong")
    return 2 if found else 0


def explain(arguments: argparse.Namespace) -> int:
    """Print derived numbers, memory, chosen defaults with reasons, and a run's processes."""
    config = config_from_arguments(arguments)
    hardware = _machine(arguments.hardware)
    if arguments.against and not arguments.measure:
        raise UserError("--against compares what --measure forecasts: give both")
    if arguments.measure:
        if arguments.hardware:
            raise UserError("--measure is of this machine: leave --hardware out")
        config = with_local_model(config, download=True)
    shape, missing, wrong = None, "", problems(config)
    try:
        shape = check_model(config)
    except UserError as error:
        missing = str(error)
        if arguments.measure:
            raise
    config, choices = resolve(config, place_judges(config, hardware)[1], shape)
    found = facts(config) + [Fact(key, value, "", why) for key, value, why in choices]
    if shape is not None:
        found += memory_facts(config, shape, hardware)
    specs = plan_processes(config, Path(config.root) / "RUN", hardware)
    if idle := idle_gpus(specs, hardware):
        found.append(Fact("idle GPUs", idle, "", USES_MORE_GPUS))
    if arguments.measure and shape is not None:
        measured, code = measure(arguments, config, shape, hardware)
        if code:
            return code
        found += measured
    if arguments.json:
        processes = [{"name": spec.name, "argv": list(spec.argv)} for spec in specs]
        rows = {fact.name: fact.value for fact in found}
        print(json.dumps({"facts": rows, "processes": processes, "problems": wrong}, indent=2))
        return 0
    for fact in found:
        print(_line(fact))
    if missing:
        print(f"{'memory':<33} unknown: {missing}")
    print("\nprocesses")
    for spec in specs:
        places = [f"cores {','.join(map(str, spec.cpus))}"] if spec.cpus else []
        places += [f"GPUs {','.join(map(str, spec.gpus))}"] if spec.gpus else []
        print(f"  {spec.name:<14} {' '.join(places):<12} {shlex.join(spec.argv[1:])}")
    for line in wrong:
        print(f"\nwrong: {line}")
    return 0


def _machine(path: Path | None) -> Hardware:
    """Return the machine of a file with `Hardware`'s fields or `doctor --json`; None: this one."""
    if path is None:
        return detect()
    decode = msgspec.toml.decode if path.suffix == ".toml" else msgspec.json.decode
    try:
        table = decode(path.read_bytes(), type=dict[str, Any])
        return msgspec.convert(table.get("hardware", table), Hardware)
    except (OSError, UnicodeDecodeError, msgspec.MsgspecError) as error:
        raise UserError(f"--hardware {path}: {error}") from error


def _line(fact: Fact) -> str:
    value = f"{fact.value:,}" if type(fact.value) is int else str(fact.value)
    return f"{fact.name:<33} {f'{value} {fact.unit}'.strip():<40} {fact.meaning}"
