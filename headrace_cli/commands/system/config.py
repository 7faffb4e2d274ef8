"""`headrace config show|check|explain`: look at a recipe without starting anything."""

import argparse
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.config.preflight.checks import check_machine, check_model, problems
from headrace.config.preflight.explain import Fact, facts, memory_facts
from headrace.errors import UserError
from headrace.host.hardware import detect
from headrace_cli.commands.checks.preflight import check_family, start_checks
from headrace_cli.commands.checks.reward_check import check_reward
from headrace_cli.commands.run.train import configured
from headrace_cli.launch.plan import plan_processes


def show(arguments: argparse.Namespace) -> int:
    """Every key with its value, defaults included."""
    config = configured(arguments).public()
    if arguments.json:
        print(config.model_dump_json(indent=2))
        return 0
    for name, value in _leaves(json.loads(config.model_dump_json())):
        print(f"{name} = {json.dumps(value)}")
    return 0


def _leaves(value: Any, prefix: str = "") -> list[tuple[str, Any]]:
    if not isinstance(value, dict):
        return [(prefix, value)]
    return [
        leaf
        for key, inner in value.items()
        for leaf in _leaves(inner, f"{prefix}.{key}" if prefix else key)
    ]


def check(arguments: argparse.Namespace) -> int:
    """All that is wrong; exit code 2 where something is."""
    config = configured(arguments)
    found = problems(config)
    hardware = detect()
    tests: list[Callable[[], object]] = [
        lambda: check_model(config),
        lambda: check_machine(config, hardware),
        *start_checks(config, hardware),
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
        print("\n".join(found))
    else:
        print(f"{arguments.recipe}: nothing wrong")
    return 2 if found else 0


def explain(arguments: argparse.Namespace) -> int:
    """Derived numbers, memory, and the processes that a run would have."""
    config = configured(arguments)
    hardware = detect()
    found, missing = facts(config), ""
    try:
        found += memory_facts(config, check_model(config), hardware)
    except UserError as error:
        missing = str(error)
    specs = plan_processes(config, Path(config.root) / "RUN", hardware)
    wrong = problems(config)
    if arguments.json:
        processes = [{"name": spec.name, "argv": list(spec.argv)} for spec in specs]
        rows = {fact.name: fact.value for fact in found}
        print(json.dumps({"facts": rows, "processes": processes, "problems": wrong}, indent=2))
        return 0
    for fact in found:
        print(_line(fact))
    if missing:
        print(f"{'memory':<28} unknown: {missing}")
    print("\nprocesses")
    for spec in specs:
        places = f"cores {','.join(map(str, spec.cpus))}" if spec.cpus else ""
        places += f"GPUs {','.join(map(str, spec.gpus))}" if spec.gpus else ""
        print(f"  {spec.name:<14} {places:<12} {shlex.join(spec.argv[1:])}")
    for line in wrong:
        print(f"\nwrong: {line}")
    return 0


def _line(fact: Fact) -> str:
    value = f"{fact.value:,}" if isinstance(fact.value, int) else str(fact.value)
    return f"{fact.name:<28} {f'{value} {fact.unit}'.strip():<40} {fact.meaning}"
