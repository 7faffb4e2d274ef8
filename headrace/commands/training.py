"""`headrace train`: from a recipe (or a run to go on with) to a finished run.

In: parsed arguments. Out: an exit code, a run folder, a summary on the terminal. Everything that a
user can get wrong is checked before the folder is made.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from headrace import run_folder
from headrace.config.checks import check_machine, check_recipe
from headrace.config.load import build, deep_merge, load_recipe, merge_overrides
from headrace.config.run import RunConfig
from headrace.errors import UserError
from headrace.hardware import Hardware, detect, free_port
from headrace.launch import plan_processes
from headrace.progress import LiveScreen, PlainScreen, Watch, duration
from headrace.supervise import INTERRUPTED, OURS, USER, Outcome, Supervisor

RESUMABLE = ("stop", "checkpoint", "evaluation", "dashboard", "transport", "storage", "generator")


def train(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    hardware = detect()
    if arguments.resume:
        run_dir, config = _resumed(arguments)
    else:
        config = configured(arguments)
        check_recipe(config)
        check_machine(config, hardware)
        run_dir = run_folder.make_run_folder(config)
    with run_folder.locked(run_dir):
        outcome, watch = supervise(run_dir, config, hardware, arguments)
    console = Console()
    fresh = not arguments.resume
    if fresh and outcome.code == USER and (watch.last is None or watch.last.update == 0):
        run_folder.discard_run_folder(run_dir)
    else:
        print_summary(console, run_dir, watch, outcome)
    return report(outcome, run_dir)


def configured(arguments: argparse.Namespace) -> RunConfig:
    """The recipe with the overrides and the options of the command line on top."""
    if not arguments.recipe:
        raise UserError("name a recipe, e.g. headrace train recipes/quickstart.toml")
    overrides = list(arguments.overrides)
    if arguments.root:
        overrides.append(f"root={json.dumps(str(arguments.root))}")
    if getattr(arguments, "no_dashboard", False):
        overrides.append("dashboard.enabled=false")
    config = load_recipe(Path(arguments.recipe), overrides)
    return with_port(config)


def with_port(config: RunConfig) -> RunConfig:
    """The same with a real port for the dashboard where a free one is asked for."""
    if not config.dashboard.enabled or config.dashboard.port:
        return config
    page = config.dashboard.model_copy(update={"port": free_port(config.dashboard.host)})
    return config.model_copy(update={"dashboard": page})


def _resumed(arguments: argparse.Namespace) -> tuple[Path, RunConfig]:
    """An earlier run and its configuration, changed where a running experiment may be."""
    run_dir = run_folder.find_run(Path(arguments.root or "runs"), arguments.resume)
    overrides = [*filter(None, [arguments.recipe]), *arguments.overrides]
    if any("=" not in override for override in overrides):
        raise UserError("--resume takes its recipe from the run; give only overrides (key=value)")
    if arguments.no_dashboard:
        overrides.append("dashboard.enabled=false")
    table: dict[str, Any] = json.loads(run_folder.read_config(run_dir).model_dump_json())
    changes: dict[str, Any] = {}
    changed = merge_overrides(changes, overrides)
    for key in changed:
        if key.split(".")[0] not in RESUMABLE:
            raise UserError(
                f"{key} cannot change in a resumed run; {', '.join(RESUMABLE)} can"
            )
    deep_merge(table, changes)
    config = with_port(build(table, source=str(run_dir / "resolved.json"), overridden=changed))
    check_recipe(config)
    with run_folder.locked(run_dir):
        check_machine(config, detect())
        run_folder.write_config(run_dir, config)
    run_folder.write_atomically(run_dir.parent / run_folder.LATEST, run_dir.name + "\n")
    return run_dir, config


def supervise(
    run_dir: Path, config: RunConfig, hardware: Hardware, arguments: argparse.Namespace
) -> tuple[Outcome, Watch]:
    """Start the run's processes and stay until they are gone."""
    console = Console()
    live = console.is_terminal and not getattr(arguments, "plain", False)
    console.print(f"run {run_dir.name}  in {run_dir}", markup=False, highlight=False)
    if config.dashboard.enabled:
        page = f"http://{config.dashboard.host}:{config.dashboard.port}"
        console.print(f"dashboard {page}", markup=False, highlight=False)
    screen = LiveScreen(config, console) if live else PlainScreen(config, console)
    watch = Watch(config, screen)
    specs = plan_processes(config, run_dir, hardware)
    supervisor = Supervisor(run_dir, specs, watch, resume=bool(getattr(arguments, "resume", None)))
    try:
        outcome = supervisor.run()
    finally:
        watch.close()
    return outcome, watch


def print_summary(console: Console, run_dir: Path, watch: Watch, outcome: Outcome) -> None:
    """Accuracy and length before and after, times, and where to look."""

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    gauges = watch.last.gauges if watch.last else {}
    pairs = (
        ("held-out accuracy", "eval/before/accuracy", "eval/after/accuracy", "{:.3f}"),
        ("response length", "eval/before/response_length", "eval/after/response_length", "{:.1f}"),
    )
    say("")
    for name, before, after, form in pairs:
        if before in gauges or after in gauges:
            first, last = (
                form.format(gauges[key]) if key in gauges else "not measured"
                for key in (before, after)
            )
            say(f"{name:<18} {first} before, {last} after")
    if watch.time_to_first_update_s is not None:
        say(f"{'first update':<18} {duration(watch.time_to_first_update_s)} after the start")
    if watch.last is not None:
        say(f"{'updates':<18} {watch.last.update}")
    say(f"{'run folder':<18} {run_dir}")
    root = "" if run_dir.parent == Path("runs").resolve() else f" --root {run_dir.parent}"
    if outcome.code == INTERRUPTED:
        say(f"go on with          headrace train --resume {run_dir.name}{root}")
    say(f"look at it          headrace dashboard{root.replace(' --root', '')}")
    say(f"                    headrace show {run_dir.name}{root}")
    say(f"take it along       headrace export {run_dir.name} trajectories --out FILE.parquet{root}")


def report(outcome: Outcome, run_dir: Path) -> int:
    """Print what went wrong, last; returns the exit code."""
    if outcome.cause:
        if outcome.tail:
            print(f"\n{outcome.tail}\n", file=sys.stderr)
        prefix = "" if outcome.cause.startswith("error:") else "error: "
        where = f"; logs in {run_dir / 'logs'}" if outcome.code == OURS else ""
        print(f"{prefix}{outcome.cause}{where}", file=sys.stderr)
    return outcome.code
