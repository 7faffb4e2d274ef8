"""Which runs there are, and what state they are in."""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import func, select

from headrace.errors import UserError
from headrace.run_folder import REWARD_MODEL, find_run, is_reward_model
from storage.projection.history import FINAL_PHASES
from storage.queries.reward_models import reward_model_config, reward_model_summary
from storage.reader import RunReader, open_run, read_config
from storage.tables import Evaluation, Metric, Projection, Run, Update

_SILENCE_S = 30.0


@dataclass(frozen=True)
class RunLine:
    """One run in a list of runs. Accuracies are held-out; None: not evaluated. `kind` is training,
    or reward model, whose updates are optimizer steps."""

    run_id: str
    run_dir: Path
    name: str
    status: str
    started_at: float | None
    wall_s: float
    updates: int
    trained_tokens: int
    accuracy_before: float | None
    accuracy_after: float | None
    reward: float | None
    kind: str = "training"


@dataclass(frozen=True)
class RunState:
    """The state of a run. `status` is its last phase, or `lost` where its coordinator is gone
    without having said how the run ended."""

    status: str
    detail: str
    name: str
    lineage: int
    started_at: float | None
    last_at: float | None


def list_runs(root: Path) -> list[RunLine]:
    """Runs under a root, newest first; folders that are no readable runs are left out."""
    lines = []
    for name in ("resolved.json", REWARD_MODEL):
        for config in root.glob(f"*/{name}"):
            try:
                lines.append(run_line(config.parent))
            except UserError:
                continue
    return sorted(lines, key=lambda line: line.started_at or 0.0, reverse=True)


def run_line(run_dir: Path) -> RunLine:
    """The line of one run; UserError where the folder holds none."""
    if is_reward_model(run_dir):
        return _reward_model_line(run_dir)
    return _line(open_run(run_dir))


def resolve_run(root: Path, run: str) -> Path:
    """The folder of a run named by `latest`, its id, a unique beginning of it, or its path;
    UserError naming the nearest for anything else."""
    return find_run(root, run)


def run_config(run_dir: Path) -> dict[str, Any]:
    """The resolved configuration of a run."""
    return reward_model_config(run_dir) if is_reward_model(run_dir) else read_config(run_dir)


def run_state(reader: RunReader) -> RunState:
    """Where a run stands now."""
    query = (
        select(Run.status, Run.detail, Run.name, Run.lineage, Run.started_at, Projection.last_at)
        .join(Projection, Projection.run == Run.id)
        .where(Run.id == reader.key)
    )
    status, detail, name, lineage, started_at, last_at = reader.rows(query)[0]
    if status not in FINAL_PHASES and _is_gone(reader.run_dir, last_at):
        status, detail = "lost", f"the coordinator is gone, last seen while {status}"
    return RunState(status, detail, name, lineage, started_at, last_at)


def _is_gone(run_dir: Path, last_at: float | None) -> bool:
    """Silent for long, and no process with the coordinator's id on this machine."""
    if last_at is not None and time.time() - last_at < _SILENCE_S:
        return False
    try:
        pid = int(json.loads((run_dir / "coordinator.json").read_text())["pid"])
        os.kill(pid, 0)
    except PermissionError:
        return False
    except (OSError, ValueError, KeyError):
        return last_at is not None
    return False


def _line(reader: RunReader) -> RunLine:
    state = run_state(reader)
    updates = reader.rows(
        select(func.max(Update.update), func.max(Update.trained_tokens)).where(
            Update.run == reader.key,
            Update.state.in_(["committed", "skipped"]),
            Update.abandoned.is_(False),
        )
    )[0]
    accuracies: dict[str, float] = {
        label: accuracy
        for label, accuracy in reader.rows(
            select(Evaluation.label, Evaluation.accuracy)
            .where(Evaluation.run == reader.key)
            .order_by(Evaluation.offset)
        )
    }
    reward = reader.rows(
        select(Metric.value)
        .where(Metric.run == reader.key, Metric.name == "reward/mean")
        .order_by(Metric.offset.desc())
        .limit(1)
    )
    return RunLine(
        run_id=reader.run_id,
        run_dir=reader.run_dir,
        name=state.name,
        status=state.status,
        started_at=state.started_at,
        wall_s=(state.last_at or 0.0) - (state.started_at or 0.0),
        updates=updates[0] or 0,
        trained_tokens=updates[1] or 0,
        accuracy_before=accuracies.get("before"),
        accuracy_after=accuracies.get("after"),
        reward=reward[0][0] if reward else None,
    )


def _reward_model_line(run_dir: Path) -> RunLine:
    run_dir = run_dir.resolve()
    row = reward_model_summary(run_dir)
    return RunLine(
        run_id=row["run_id"],
        run_dir=run_dir,
        name=row["recipe"],
        status=row["status"],
        started_at=row["started_at"],
        wall_s=row["wall_s"],
        updates=row["steps"],
        trained_tokens=row["tokens"],
        accuracy_before=row["held_out"]["before"].get("accuracy"),
        accuracy_after=row["held_out"]["after"].get("accuracy"),
        reward=None,
        kind=row["kind"],
    )
