"""`headrace eval`: accuracy of a model folder on a recipe's held-out prompts.

A run without a learner: coordinator, generators and reward workers evaluate the folder as it is.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from headrace.config.loading.hub import named_model
from headrace.config.sections.run import RunConfig
from headrace.errors import RunFailedError, UserError
from headrace.host.hardware import detect
from headrace.run_files import run_folder
from headrace_cli.commands.checks.preflight import check_start
from headrace_cli.commands.run.train import prepare_run, report, supervise
from headrace_cli.launch.keys import with_keys
from headrace_cli.launch.plan import plan_processes
from headrace_cli.launch.supervisor import DONE, USER


def evaluate(arguments: argparse.Namespace) -> int:
    """Evaluate and print the result, as text or as one JSON object."""
    model = named_model(arguments.model)
    arguments.overrides += [
        f"model.path={json.dumps(model)}", "model.critic_path=null", "name=eval",
    ]  # fmt: skip
    run_dir, code = evaluate_once(arguments)
    if code == DONE:
        result = _result(run_dir) | {"model": model, "recipe": arguments.recipe}
        lines = (f"{name:<18} {value}" for name, value in result.items())
        print(json.dumps(result) if arguments.json else "\n".join(lines))
    return code


def evaluate_once(arguments: argparse.Namespace) -> tuple[Path, int]:
    """Evaluate once; return run folder and exit code. A resumed run keeps the answers it has."""
    resumes = getattr(arguments, "resume", None) is not None
    arguments.overrides += [] if resumes else [
        "evaluation.only=true", "evaluation.before=true", "evaluation.after=false",
        "dashboard.enabled=false",
    ]  # fmt: skip
    hardware = detect()

    def check(config: RunConfig) -> RunConfig:
        if not config.evaluation.only:
            raise UserError(f"{arguments.resume} trains: resume it by `headrace train --resume`")
        return check_start(config, hardware)

    run_dir, config = prepare_run(arguments, check, trains=False)
    console = Console(file=sys.stderr)
    with run_folder.locked(run_dir):
        if resumes and _evaluations(run_dir):
            return run_dir, DONE
        config = with_keys(run_dir, config)
        specs = plan_processes(config, run_dir, hardware)
        outcome, _ = supervise(run_dir, config, specs, console, resume=resumes)
    if outcome.code == USER and not resumes:
        run_folder.discard_run_folder(run_dir)
    return run_dir, report(outcome, run_dir)


def _evaluations(run_dir: Path) -> list[dict[Any, Any]]:
    from storage.queries import evaluations

    return evaluations(run_dir).to_dict("records")


def _result(run_dir: Path) -> dict[str, Any]:
    """Return the figures of the only evaluation; UserError where it asked no prompt."""
    rows = _evaluations(run_dir)
    if not rows:
        raise RunFailedError(f"the evaluation left no result; see {run_dir / 'logs'}")
    if not rows[-1]["num_prompts"]:
        raise UserError("all held-out prompts are longer than task.max_prompt_length, or refused")
    kept = ("num_prompts", "accuracy", "response_length", "max_response_length", "truncated",
            "failed", "seconds")  # fmt: skip
    found = {name: rows[-1][name] for name in kept}
    if (k := run_folder.read_config(run_dir).evaluation.samples) > 1:
        from storage.queries import prompt_scores

        found[f"pass@{k}"] = float((prompt_scores(run_dir)["solved"] > 0).mean())
    return {"run_id": run_dir.name, **found, "seconds": round(found["seconds"], 1)}
