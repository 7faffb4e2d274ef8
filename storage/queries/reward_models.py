"""Runs that train reward models: how they stand, their curves and their reports."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import UserError
from headrace.run_files.reward_model_run import (
    REPORT_PAGE,
    RewardModelStatus,
    read_report,
    read_status,
    steps_and_evaluations,
)
from headrace.run_files.run_folder import REWARD_MODEL, is_reward_model, is_running

if TYPE_CHECKING:
    import pandas as pd

_GOING_ON = ("starting", "training")
WITHOUT_UPDATES = ("reward model", "fine-tuning")
"""Kinds of runs without updates of RL."""


def reward_model_status(run_dir: Path) -> RewardModelStatus:
    """The run's status; `lost` where it should be going on and no process holds it."""
    status = read_status(run_dir)
    if status.status in _GOING_ON and not is_running(run_dir):
        return RewardModelStatus(
            "lost", status.step, status.steps, status.started_at, status.at,
            f"its process is gone, last seen while {status.status}",
        )  # fmt: skip
    return status


def reward_model_config(run_dir: Path) -> dict[str, Any]:
    """The resolved recipe; UserError where the folder holds no reward model's run."""
    if not is_reward_model(run_dir):
        raise UserError(f"{run_dir} is not the run of a reward model: it has no {REWARD_MODEL}")
    try:
        values: dict[str, Any] = json.loads((run_dir / REWARD_MODEL).read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{run_dir / REWARD_MODEL} cannot be read: {error}") from error
    return values


def reward_model_summary(run_dir: Path) -> dict[str, Any]:
    """Everything about a reward model's run that fits one screen; JSON types only."""
    config, status = reward_model_config(run_dir), reward_model_status(run_dir)
    steps, evaluations = steps_and_evaluations(run_dir)
    last = steps[-1] if steps else None
    report = read_report(run_dir) or {}
    kept = evaluations[-1:]
    if config["training"].get("patience") is not None:  # The model of the lowest loss is kept.
        known = [line for line in evaluations if line.figures.get("loss") is not None]
        kept = sorted(known, key=lambda line: line.figures["loss"] or 0.0)[:1] or kept
    return {
        "run_id": run_dir.name,
        "kind": WITHOUT_UPDATES[config["objective"]["kind"] == "sft"],
        "status": status.status,
        "detail": status.detail,
        "recipe": config["name"],
        "seed": config["seed"],
        "objective": config["objective"]["kind"],
        "start": config["model"]["path"],
        "steps": status.step,
        "of_steps": status.steps,
        "started_at": status.started_at or None,
        "wall_s": max(0.0, status.at - status.started_at),
        "train_time_s": last.train_time_s if last else 0.0,
        "tokens": last.tokens if last else 0,
        "loss": last.loss if last else None,
        "held_out": {
            "before": evaluations[0].figures if evaluations else {},
            "after": kept[0].figures if len(evaluations) > 1 else {},
        },
        "examples": report.get("examples"),
        "model": report.get("model"),
    }


def reward_model_curves(run_dir: Path) -> "pd.DataFrame":
    """Curves as columns x (step), name, value: `loss`, `grad_norm`, `lr`, `held_out/NAME`."""
    import pandas as pd

    rows: list[tuple[int, str, float | None]] = []
    steps, evaluations = steps_and_evaluations(run_dir)
    for name in ("loss", "grad_norm", "lr"):
        rows += [(step.step, name, getattr(step, name)) for step in steps]
    for line in evaluations:
        rows += [(line.step, f"held_out/{k}", v) for k, v in line.figures.items()]
    return pd.DataFrame(rows, columns=["x", "name", "value"]).astype({"value": float})


def reward_model_page(run_dir: Path) -> str | None:
    """The report in Markdown, once there is one."""
    path = run_dir / REPORT_PAGE
    return path.read_text(encoding="utf-8") if path.is_file() else None
