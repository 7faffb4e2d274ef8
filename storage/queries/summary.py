"""One run in one dict: what `headrace show RUN --json` prints."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from sqlalchemy import case, func, select

from headrace.errors import UserError
from headrace.metrics.health_ranges import alert_sentence
from headrace.run_files.run_folder import is_reward_model
from storage.database.reader import RunReader, open_run, read_config
from storage.database.tables import (
    Checkpoint,
    Evaluation,
    Metric,
    TokenLoss,
    Trajectory,
    Update,
    WeightVersion,
    Window,
)
from storage.queries.evaluations import is_undone
from storage.queries.metrics import alerts_of, latest_values, same_update
from storage.queries.processes import supervisor_events
from storage.queries.reward_models import reward_model_summary
from storage.queries.rewards import ALERT, alert_texts, source_rows
from storage.queries.runs import line_of_folder, run_state, surviving

_DROPPED = "ledger/dropped/"
_TOKENS = (
    "generated", "trained_policy", "ready", "in_flight", "abandoned", "evaluation", "inserted",
    "value_finished", "trained_value", "value_waiting", "value_dropped",
)  # fmt: skip


def run_summary(run_dir: Path) -> dict[str, Any]:
    """Everything about a run that fits one screen; JSON types only, None where nothing is known.

    Token counts are the coordinator's ledger as of the newest update or sample; `headrace audit`
    counts them again from the journal. Times count from the run's first record: to the first update
    of any kind, and to the first that changed the policy. A reward model's run has other figures,
    see `reward_model_summary`. Where a server cannot be asked, the few that the folder itself has.
    """
    if is_reward_model(run_dir):
        return reward_model_summary(run_dir)
    try:
        reader = open_run(run_dir)
    except UserError as error:
        if (line := line_of_folder(run_dir, str(error))) is None:
            raise
        names = ("run_id", "status", "sql", "seed", "mode", "updates", "wall_s")
        return {"recipe": line.name, **{name: getattr(line, name) for name in names}}
    config, latest = read_config(run_dir), latest_values(reader)
    evaluations = _evaluations(reader)
    by_label = {row["label"]: row for row in evaluations}
    before, after = by_label.get("before", {}), by_label.get("after", {})
    rewards = _per_update(reader, "reward/mean")["reward/mean"]
    left, judges = alerts_of(reader), config.get("reward", {}).get("judges", {})
    return {
        **_standing(reader, config),
        "eval": {"before": before.get("accuracy"), "after": after.get("accuracy")},
        "evaluations": evaluations,
        "reward": {
            "first": rewards[0] if rewards else None,
            "last": rewards[-1] if rewards else None,
            "best": max(rewards, default=None),
        },
        "rewards": {row["source"]: _source(row) for row in source_rows(reader)},
        "alerts": [
            *(alert_sentence(alert) for alert in left),
            *alert_texts(reader),
            *(event["text"] for event in supervisor_events(run_dir) if event["kind"] == ALERT),
        ],
        "bands": [asdict(alert) for alert in left],
        "response_length": {
            "first": before.get("response_length"),
            "last": after.get("response_length"),
        },
        "tokens": _tokens(reader, latest),
        "trajectories": _trajectories(reader),
        **_ages(reader),
        "idle_share": {
            "learner": latest.get("idle/learner"),
            "generator": latest.get("idle/generator"),
        },
        "checkpoints": _checkpoints(reader),
        "judges": {name: _lives(run_dir, name) for name in judges},
    }


def run_figures(run_dir: Path) -> dict[str, Any]:
    """`run_summary` without counts of answers and windows, fast enough for every record of a long
    run. Of a reward model's run all figures."""
    if is_reward_model(run_dir):
        return reward_model_summary(run_dir)
    reader = open_run(run_dir)
    return {
        **_standing(reader, read_config(run_dir)),
        "evaluations": _evaluations(reader),
        "tokens": _tokens(reader, latest_values(reader, "ledger/")),
        **_ages(reader),
    }


def _standing(reader: RunReader, config: dict[str, Any]) -> dict[str, Any]:
    """The run's identity, and its progress. `config` is not checked: that takes a page seconds."""
    state = run_state(reader)
    return {
        "run_id": reader.run_id,
        "status": state.status,
        "detail": state.detail,
        "ended": state.ended,
        "sql": state.sql,
        "recipe": config.get("name"),
        "seed": config.get("seed"),
        "mode": config.get("schedule", {}).get("mode"),
        "lineage": state.lineage,
        **(updates := _updates(reader, state.started_at)),
        "updates": max(updates["updates"], state.updates),
        "wall_s": (state.last_at or 0.0) - (state.started_at or 0.0),
    }


def _tokens(reader: RunReader, latest: dict[str, float | None]) -> dict[str, Any]:
    """The balances of policy and value model, and what is in neither."""
    return {
        **{name: int(latest.get(f"ledger/{name}") or 0) for name in _TOKENS},
        **_outside(reader),
        "dropped": {
            name.removeprefix(_DROPPED): int(value or 0)
            for name, value in sorted(latest.items())
            if name.startswith(_DROPPED)
        },
    }


def _ages(reader: RunReader) -> dict[str, Any]:
    """The newest weights, and how old tokens were when they were trained."""
    found = _per_update(reader, "staleness/mean", "staleness/max")
    mean, largest = found["staleness/mean"], found["staleness/max"]
    query = select(func.max(WeightVersion.version)).where(WeightVersion.run == reader.key)
    return {
        "weight_version": reader.value(query),
        "staleness": {
            "mean": sum(mean) / len(mean) if mean else None,
            "max": max(largest, default=None),
        },
    }


def _lives(run_dir: Path, name: str) -> dict[str, int]:
    """Numbers of starts and deaths of a judge, and of times that it was given up."""
    own = [e.get("event") for e in supervisor_events(run_dir) if e.get("name") == f"judge-{name}"]
    return {
        "starts": own.count("started") + own.count("restarted"),
        "deaths": own.count("died"),
        "gave_up": own.count("gave_up"),
    }


def _source(row: dict[str, Any]) -> dict[str, Any]:
    """The figures of a source of rewards for one screen."""
    names = ("answers", "reward", "correct", "seconds", "audits", "gap", "error")
    return {"failed": row["answers"] - row["ok"], **{name: row[name] for name in names}}


def _outside(reader: RunReader) -> dict[str, int]:
    """Tokens that the journal lacks: thrown away at a hold, lost on the way."""
    by_reason = (
        select(TokenLoss.reason, func.sum(TokenLoss.tokens))
        .where(TokenLoss.run == reader.key)
        .group_by(TokenLoss.reason)
    )
    losses = {reason: int(tokens) for reason, tokens in reader.rows(by_reason)}
    return {
        "discarded_at_hold": losses.get("held", 0),
        "lost": sum(tokens for reason, tokens in losses.items() if reason != "held"),
    }


def _updates(reader: RunReader, started_at: float | None) -> dict[str, Any]:
    """Numbers of updates, and clocks."""
    of_policy = (Update.state == "committed") & (Update.num_windows > 0)
    count, first, policy, train_time, skipped = reader.rows(
        select(
            func.max(Update.update),
            func.min(Update.committed_at),
            func.min(case((of_policy, Update.committed_at))),
            func.max(Update.train_time_s),
            func.count(case((Update.state == "skipped", 1))),
        ).where(*surviving(reader))
    )[0]
    begun = started_at or 0.0
    return {
        "updates": count or 0,
        "skipped_updates": skipped,
        "train_time_s": train_time or 0.0,
        "time_to_first_update_s": None if first is None else first - begun,
        "time_to_first_policy_update_s": None if policy is None else policy - begun,
    }


def _per_update(reader: RunReader, *names: str) -> dict[str, list[float]]:
    """Values of metrics in the surviving updates, in order, by name."""
    query = (
        select(Metric.name, Metric.value)
        .join(Update, same_update())
        .where(*surviving(reader), Metric.name.in_(names), Metric.value.is_not(None))
        .order_by(Update.update)
    )
    found: dict[str, list[float]] = {name: [] for name in names}
    for name, value in reader.tuples(query):
        found[name].append(value)
    return found


def _trajectories(reader: RunReader) -> dict[str, int]:
    """Training trajectories by status. `unfinished`: cut off by the run's end, no failure;
    `dropped`: with a dropped window that no update had."""
    mine = (Trajectory.run == reader.key, Trajectory.purpose == "train")
    by_status = select(Trajectory.status, func.count()).where(*mine).group_by(Trajectory.status)
    counts: dict[str, int] = {status: count for status, count in reader.rows(by_status)}
    dropped = select(func.count(Window.trajectory_id.distinct())).where(
        Window.run == reader.key, Window.state == "dropped", Window.update.is_(None)
    )
    return {
        "issued": sum(counts.values()),
        "running": counts.get("running", 0) + counts.get("issued", 0),
        "finished": counts.get("finished", 0),
        "truncated": counts.get("truncated", 0),
        "failed": counts.get("failed", 0),
        "unfinished": counts.get("aborted", 0),
        "dropped": reader.value(dropped),
    }


def _evaluations(reader: RunReader) -> list[dict[str, Any]]:
    """Evaluations in order, but those that a rollback undid."""
    columns = [c for c in Evaluation.__table__.columns if c.name not in ("run", "offset")]
    query = select(*columns).where(Evaluation.run == reader.key, ~is_undone())
    return [dict(row._mapping) for row in reader.rows(query.order_by(Evaluation.offset))]


def _checkpoints(reader: RunReader) -> list[dict[str, Any]]:
    """Checkpoints in order, each with the accuracy of its own weights or none.

    An evaluation of the same update on a lineage that was given up is another policy's."""
    query = select(Checkpoint.update, Checkpoint.lineage, Checkpoint.path)
    query = query.where(Checkpoint.run == reader.key).order_by(Checkpoint.offset)
    evaluated = select(Evaluation.update, WeightVersion.lineage, Evaluation.accuracy).where(
        Evaluation.run == reader.key,
        WeightVersion.run == Evaluation.run,
        WeightVersion.version == Evaluation.version,
    )
    # Most checkpoints are written just before their update is evaluated.
    found = reader.rows(evaluated.order_by(Evaluation.offset))
    own = {(update, lineage): accuracy for update, lineage, accuracy in found}
    rows = [dict(row._mapping) for row in reader.rows(query)]
    return [row | {"accuracy": own.get((row["update"], row["lineage"]))} for row in rows]
