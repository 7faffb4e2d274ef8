"""`headrace runs`, `show`, `stop` and `dashboard`: past runs, and live ones."""

import argparse
import contextlib
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from headrace.errors import UserError
from headrace.run_files import run_folder
from headrace_cli.commands.data.tables import figure_lines
from headrace_cli.launch.display.progress import ASK_EVERY_S, PlainScreen, print_line
from headrace_cli.launch.display.units import duration
from headrace_cli.launch.keys import link_of
from headrace_cli.launch.monitor import Monitor, waits_of
from headrace_cli.launch.plan import MAX_PORT, dashboard_argv, page_port, role_environment


def _root(arguments: argparse.Namespace) -> Path:
    return Path(arguments.root or "runs")


def runs(arguments: argparse.Namespace) -> int:
    """List the runs under the root, newest first."""
    root = _root(arguments)
    found: list[dict[str, Any]] = []
    if root.is_dir():
        from storage.queries import list_runs

        found = [asdict(line) for line in list_runs(root)]
    lines = [line for line in found if arguments.archived or not line["notes"]["archived"]]
    if arguments.json:
        print(json.dumps(lines, default=str))
        return 0
    if not found:
        print(f"no runs under {root}; start one with: headrace train RECIPE")
        return 0
    if lines:
        _print_lines(lines)
    if hidden := len(found) - len(lines):
        print(f"{hidden} archived; --archived lists them, too")
    return 0


def _print_lines(lines: list[dict[str, Any]]) -> None:
    width = max(len(line["run_dir"].name) for line in lines)
    console = Console()
    print_line(console, f"{'run':<{width}}  {'status':<11} {'updates':>7}  {'time':>7}  accuracy")
    for line in lines:
        is_read = line["status"] != "unreadable"
        print_line(console, _row(line, width), "" if is_read else "dim")
        if line["sql"]:
            print_line(console, f"{'':<{width}}  {line['sql']}", "dim")


def _row(line: dict[str, Any], width: int) -> str:
    """One run as a line, with what is noted on it; of a folder that cannot be read, the reason."""
    name = f"{line['run_dir'].name:<{width}}  {line['status']:<11}"
    if line["status"] == "unreadable":
        return f"{name} {line['detail']}{_noted(line['notes'])}"
    found = [line["accuracy_before"], line["accuracy_after"]]
    if line["kind"] == "evaluation" or found == [None, None]:
        found = [] if line["accuracy"] is None else [line["accuracy"]]
    accuracy = " -> ".join("?" if value is None else f"{value:.3f}" for value in found) or "-"
    kind = "" if line["kind"] == "training" else f"  ({line['kind']})"
    took = duration(line["wall_s"])
    return f"{name} {line['updates']:>7}  {took:>7}  {accuracy}{kind}{_noted(line['notes'])}"


def _noted(notes: dict[str, Any]) -> str:
    """Tags in brackets and the note's first line."""
    tags = f"[{', '.join(notes['tags'])}]" if notes["tags"] else ""
    parts = ["(archived)" if notes["archived"] else "", tags, *notes["note"].splitlines()[:1]]
    return "".join(f"  {part}" for part in (*parts, notes["trouble"]) if part)


def show(arguments: argparse.Namespace) -> int:
    run_dir = run_folder.find_run(_root(arguments), arguments.name)
    from storage.queries import run_summary

    row = run_summary(run_dir)
    if run_folder.is_running(run_dir) and not run_folder.is_reward_model(run_dir):
        row["waits"] = waits_of(run_dir, run_folder.read_config(run_dir))
    if arguments.json:
        print(json.dumps(row))
        return 0
    # The lines of `alerts` say in words what `bands` has as figures.
    for line in figure_lines({name: value for name, value in row.items() if name != "bands"}):
        print(line)
    return 0


def stop(arguments: argparse.Namespace) -> int:
    """Ask a run to drain, write a checkpoint and end; wait for that while it makes progress."""
    run_dir = run_folder.find_run(_root(arguments), arguments.name)
    if run_folder.is_reward_model(run_dir):
        raise UserError(f"{run_dir.name} trains a reward model: Ctrl-C where it runs ends it")
    if not run_folder.is_running(run_dir):
        raise UserError(f"{run_dir.name} is not running on this machine")
    config, address = run_folder.read_config(run_dir), link_of(run_dir).address
    screen = PlainScreen(config, Console())
    with contextlib.closing(Monitor(config, address)) as monitor:
        monitor.request_status()
        if monitor.latest_status(timeout_s=10.0) is None:
            raise UserError(
                f"the coordinator of {run_dir.name} does not answer at {address}; its supervisor "
                "ends the run at Ctrl-C"
            )
        moved_at = time.monotonic()
        while run_folder.is_running(run_dir):
            if time.monotonic() - moved_at > arguments.timeout:
                raise UserError(
                    f"{run_dir.name} was asked to stop and has made no progress for "
                    f"{arguments.timeout:.0f} s; see {run_dir / 'logs'}"
                )
            monitor.send_command("stop")  # Again: one that is killed is followed by another.
            monitor.request_status()
            time.sleep(ASK_EVERY_S)
            if status := monitor.latest_status():
                screen.show(status)
                moved_at = max(moved_at, time.monotonic() - status.moved_s)
    print(f"{run_dir.name} has ended")
    return 0


def dashboard(arguments: argparse.Namespace) -> int:
    """Become the server of the web page of a folder of runs; the process is replaced."""
    root = Path(arguments.folder or arguments.root or "runs")
    if not 0 <= arguments.port <= MAX_PORT:
        raise UserError(f"--port {arguments.port}: ports go from 1 to {MAX_PORT}; 0: a free one")
    if not root.is_dir() or run_folder.is_run(root):
        raise UserError(f"no folder of runs at {root}, such as the `runs` of `headrace train`")
    port = page_port(arguments.host, arguments.port)
    argv = dashboard_argv(arguments.host, port, root.resolve())
    print(f"dashboard  http://{arguments.host}:{port}  (Ctrl-C ends it)")
    sys.stdout.flush()
    os.execve(argv[0], argv, {**os.environ, **role_environment(threads=1)})
