"""`headrace train`: from a recipe (or a run to go on with) to a finished run.

In: parsed arguments. Out: an exit code, a run folder, a summary on the terminal. Everything that a
user can get wrong is checked before the folder is made.
"""

import argparse
import json
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from rich.console import Console

from headrace.config.loading.hub import with_local_model
from headrace.config.loading.recipe import build, deep_merge, load_recipe, merge_overrides
from headrace.config.preflight.checks import check_recipe, ignores_age, never_ends
from headrace.config.sections.run import RunConfig
from headrace.errors import UserError
from headrace.host.hardware import connections, detect
from headrace.host.install import lacking, setup_seconds
from headrace.run_files import run_folder
from headrace.run_files.run_notes import change_notes
from headrace_cli.commands.checks.preflight import check_start
from headrace_cli.launch.display.progress import (
    ConsoleController,
    LiveScreen,
    PlainScreen,
    print_line,
)
from headrace_cli.launch.display.units import duration
from headrace_cli.launch.keys import with_keys
from headrace_cli.launch.plan import (
    USES_MORE_GPUS,
    ProcessSpec,
    idle_gpus,
    page_port,
    plan_processes,
)
from headrace_cli.launch.process import ProcessLauncher
from headrace_cli.launch.supervisor import INTERRUPTED, OURS, USER, RunOutcome, Supervisor

RESUMABLE = ("stop", "checkpoint", "evaluation", "dashboard", "transport", "storage", "generator")


def train(arguments: argparse.Namespace) -> int:
    hardware = detect()
    run_dir, config = prepare_run(arguments, lambda config: check_start(config, hardware))
    console, fresh = Console(), not arguments.resume

    def discarded(outcome: RunOutcome, controller: ConsoleController) -> bool:
        return fresh and outcome.code == USER and not has_begun(controller)

    with ExitStack() as held:
        held.enter_context(run_folder.locked(run_dir))

        def at_end(outcome: RunOutcome, controller: ConsoleController) -> Callable[[], bool]:
            held.close()  # the page is no reason to keep a run from being resumed
            if discarded(outcome, controller):
                return lambda: False  # reported below, as the page's log makes the folder again
            print_summary(console, run_dir, controller, outcome, fresh=fresh)
            wanted = page_is_wanted(config, outcome, console)
            report(outcome, run_dir)
            return wanted

        config = with_keys(run_dir, config)
        specs = plan_processes(config, run_dir, hardware)
        if idle := idle_gpus(specs, hardware):
            print_line(console, f"idle GPUs  {idle}: {USES_MORE_GPUS}")
        outcome, controller = supervise(
            run_dir, config, specs, console, plain=arguments.plain, resume=not fresh, at_end=at_end
        )
    if discarded(outcome, controller):
        run_folder.discard_run_folder(run_dir)
        report(outcome, run_dir)
    return outcome.code


def has_begun(controller: ConsoleController) -> bool:
    """Return whether the learner ever had a batch."""
    last = controller.last
    return last is not None and bool(last.update or last.gauges.get("schedule/learner_busy"))


def page_is_wanted(
    config: RunConfig, outcome: RunOutcome, console: Console, grace_s: float = 5.0
) -> Callable[[], bool]:
    """Return a test whether a browser has, or had a moment ago, the page of an ended run open.
    Never after a Ctrl-C or `dashboard.stay_s`. Where the page stays, the terminal says so."""
    page, begun = config.dashboard, time.monotonic()
    if not page.enabled or outcome.code == INTERRUPTED or not connections(page.port):
        return lambda: False
    if page.stay_s:
        print_line(
            console,
            f"{'the page':<18} http://{page.host}:{page.port} stays while a browser has it open, "
            f"{duration(page.stay_s)} at most; Ctrl-C ends it",
        )
    seen = begun

    def wanted() -> bool:
        nonlocal seen
        now = time.monotonic()
        seen = now if connections(page.port) else seen
        return now - begun < page.stay_s and now - seen < grace_s

    return wanted


def config_from_arguments(arguments: argparse.Namespace) -> RunConfig:
    """The recipe with the overrides and the options of the command line on top."""
    if not arguments.recipe:
        raise UserError("name a recipe, e.g. headrace train recipes/quickstart.toml")
    overrides = list(arguments.overrides)
    if arguments.root:
        overrides.append(f"root={json.dumps(str(arguments.root))}")
    if getattr(arguments, "no_dashboard", False):
        overrides.append("dashboard.enabled=false")
    config = load_recipe(Path(arguments.recipe), overrides)
    return with_local_model(with_port(config), download=False)


def with_port(config: RunConfig) -> RunConfig:
    """The configuration with a free port for its page; without a page where none is installed."""
    page = config.dashboard
    if page.enabled and (line := lacking("dashboard")):
        print(f"no page: {line}", file=sys.stderr)
        page = page.model_copy(update={"enabled": False})
    elif page.enabled:
        page = page.model_copy(update={"port": page_port(page.host, page.port)})
    return config.model_copy(update={"dashboard": page})


def prepare_run(
    arguments: argparse.Namespace, check: Callable[[RunConfig], RunConfig], *, trains: bool = True
) -> tuple[Path, RunConfig]:
    """Return folder and configuration of a new run, or of a resumed one, which has to train if
    `trains`. `check` as in `resume_run`."""
    if getattr(arguments, "resume", None):
        return resume_run(arguments, check, trains=trains)
    config = config_from_arguments(arguments)
    check_recipe(config)
    config = check(with_local_model(config, download=True))
    return run_folder.make_run_folder(config), config


def resume_run(
    arguments: argparse.Namespace, check: Callable[[RunConfig], RunConfig], *, trains: bool = True
) -> tuple[Path, RunConfig]:
    """The folder of an earlier run and its configuration, with the overrides that a resumed run may
    have. `check` raises UserError where it cannot run, and gives the configuration that does."""
    from storage.database.reader import check_formats  # a new run does not pay for it

    run_dir = run_folder.find_run(Path(arguments.root or "runs"), arguments.resume)
    if trains:
        run_folder.need_training(run_dir)
    check_formats(run_dir)
    overrides = [*filter(None, [arguments.recipe]), *arguments.overrides]
    if any("=" not in override for override in overrides):
        raise UserError("--resume takes its recipe from the run; give only overrides (key=value)")
    if getattr(arguments, "no_dashboard", False):
        overrides.append("dashboard.enabled=false")
    table: dict[str, Any] = json.loads(run_folder.read_config(run_dir).model_dump_json())
    changes: dict[str, Any] = {}
    changed = merge_overrides(changes, overrides)
    for key in changed:
        if key.split(".")[0] not in RESUMABLE:
            raise UserError(f"{key} cannot change in a resumed run; {', '.join(RESUMABLE)} can")
    deep_merge(table, changes)
    config = with_port(build(table, source=str(run_dir / "resolved.json"), overridden=changed))
    if trains and config.evaluation.only:
        raise UserError("evaluation.only cannot change in a resumed run; use `headrace eval`")
    check_recipe(config)
    with run_folder.locked(run_dir):
        config = check(config)
        run_folder.write_config(run_dir, config)
    if run_folder.is_archived(run_dir):
        change_notes(run_dir, archived=False)
    run_folder.name_latest(run_dir)
    return run_dir, config


def supervise(
    run_dir: Path,
    config: RunConfig,
    specs: Sequence[ProcessSpec],
    console: Console,
    *,
    plain: bool = False,
    resume: bool = False,
    launcher: ProcessLauncher | None = None,
    at_end: Callable[[RunOutcome, ConsoleController], Callable[[], bool]] | None = None,
) -> tuple[RunOutcome, ConsoleController]:
    """Start the run's processes and stay until they are gone. The caller holds the run's lock and
    has given the run its keys. `launcher`: what starts them; None: they are processes of this host.
    `at_end` is called when all but the page are gone, and returns how long it stays."""
    print_line(console, f"run        {run_dir}")
    if config.dashboard.enabled:
        print_line(console, f"dashboard  http://{config.dashboard.host}:{config.dashboard.port}")
    if never_ends(config):
        print_line(console, "no stop condition: this run goes on until Ctrl-C or `headrace stop`")
    if ignores_age(config):
        print_line(
            console, "nothing corrects for the age of tokens: algorithm.ratio.kind=tis would"
        )
    live = console.is_interactive and not plain  # A dumb terminal would show the last picture.
    screen = LiveScreen(config, console) if live else PlainScreen(config, console)
    controller = ConsoleController(config, screen)

    def ended(outcome: RunOutcome) -> Callable[[], bool]:
        screen.close()
        return at_end(outcome, controller) if at_end else lambda: False

    supervisor = Supervisor(
        run_dir, specs, controller, resume=resume, launcher=launcher, at_end=ended
    )
    with closing(controller):
        outcome = supervisor.run()
    return outcome, controller


def print_summary(
    console: Console,
    run_dir: Path,
    controller: ConsoleController,
    outcome: RunOutcome,
    *,
    fresh: bool = True,
    again: str = "headrace train --resume {name}{root}",
) -> None:
    """Print accuracy and length before and after, times and paths. `again`: resumes the run."""
    gauges = controller.last.gauges if controller.last else {}
    rows: list[tuple[str, str]] = []
    for name, key, form in (
        ("held-out accuracy", "accuracy", "{:.3f}"),
        ("response length", "response_length", "{:.1f}"),
    ):
        values = {label: gauges.get(f"eval/{label}/{key}") for label in ("before", "after")}
        shown = [
            f"{form.format(value)} {label}" for label, value in values.items() if value is not None
        ]
        rows.append((name, ", ".join(shown) or "not measured"))
    found = stored_figures(run_dir)
    first = found.get("time_to_first_update_s")
    if fresh and first is not None:
        policy = found["time_to_first_policy_update_s"]
        later = f", of the policy {duration(policy)}" if policy and policy > first else ""
        rows.append(("first update", f"{duration(first)} after the start{later}"))
        is_first = run_folder.run_names(run_dir.parent) == [run_dir.name]
        if is_first and (setup := setup_seconds()) is not None:
            whole = f"{duration(setup)}, so {duration(setup + first)} from clone to first update"
            rows.append(("set-up took", whole))
    if controller.last is not None:
        rows.append(("updates", str(controller.last.update)))
    if found.get("ended"):
        rows.append(("ended", found["ended"]))
    root, name = root_option(run_dir), run_dir.name
    rows.append(("run folder", str(run_dir)))
    if outcome.code == INTERRUPTED:
        rows.append(("go on with", again.replace("{name}", name).replace("{root}", root)))
    rows.append(("look at it", f"headrace dashboard{root.replace(' --root', '')}"))
    rows.append(("", f"headrace show {name}{root}"))
    rows.append(("take it along", f"headrace export {name} trajectories --out t.parquet{root}"))
    rows += [
        ("" if number else "look into", text) for number, text in enumerate(controller.troubles)
    ]
    print_line(console, "")
    for label, value in rows:
        print_line(console, f"{label:<18} {value}")


def root_option(run_dir: Path) -> str:
    """Return the option by which a command finds a run besides its name."""
    root = run_dir.parent
    return "" if root == Path("runs").resolve() else f" --root {shlex.quote(str(root))}"


def stored_figures(run_dir: Path) -> dict[str, Any]:
    """Return the store's figures of a run for the terminal; empty where there are none."""
    try:
        from storage.queries import run_figures

        return run_figures(run_dir)
    except UserError:
        return {}


def report(outcome: RunOutcome, run_dir: Path) -> int:
    """Print what went wrong, last; returns the exit code."""
    if outcome.cause:
        if outcome.tail:
            print(f"\n{outcome.tail}\n", file=sys.stderr)
        prefix = "" if outcome.cause.startswith("error:") else "error: "
        where = f"; logs in {run_dir / 'logs'}" if outcome.code == OURS else ""
        print(f"{prefix}{outcome.cause}{where}", file=sys.stderr)
    return outcome.code
