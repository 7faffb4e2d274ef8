"""Evaluations of a run, their single answers, and what each prompt earned in them."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from sqlalchemy import ColumnElement, ScalarSelect, case, false, func, select, text

from headrace.errors import UserError
from storage.database.filters import parse
from storage.database.reader import RunReader, open_run
from storage.database.tables import (
    EVALUATION_GROUPS,
    Evaluation,
    Group,
    Metric,
    Prompt,
    Run,
    Trajectory,
    Update,
    WeightVersion,
)
from storage.exports.query_rows import ScoreRows
from storage.queries.metrics import CPU, newest_before

if TYPE_CHECKING:
    import pandas as pd


def evaluations(run_dir: Path) -> "pd.DataFrame":
    """One row per evaluation, in order.

    label, update, version, accuracy, lengths, seconds; wall_s (seconds since the run began),
    trained_tokens (policy tokens trained before), abandoned (whether a rollback undid its update),
    cpu_s (CPU seconds as last sampled, or empty)."""
    reader = open_run(run_dir)
    columns = [c for c in Evaluation.__table__.columns if c.name not in ("run", "offset")]
    began = select(Run.started_at).where(Run.id == reader.key).scalar_subquery()
    query = (
        select(
            *columns,
            (Evaluation.at - began).label("wall_s"),
            func.coalesce(_of_update(Update.trained_tokens), 0).label("trained_tokens"),
            is_undone().label("abandoned"),
            newest_before(Evaluation, CPU, Metric.value).label("cpu_s"),
        )
        .where(Evaluation.run == reader.key)
        .order_by(Evaluation.offset)
    )
    return reader.frame(query)


def is_undone() -> ColumnElement[bool]:
    """An evaluation whose update a rollback undid."""
    return func.coalesce(_of_update(Update.abandoned), false())


def _of_update(column: Any) -> ScalarSelect[Any]:
    """Return a column of the update that each evaluation came after; null before the first."""
    mine = (Update.run == Evaluation.run, Update.update == Evaluation.update)
    before = (Update.offset < Evaluation.offset, Update.trained_tokens.is_not(None))
    newest = select(column).where(*mine, *before).order_by(Update.offset.desc()).limit(1)
    return newest.correlate(Evaluation).scalar_subquery()


def answers_of(reader: RunReader, number: int) -> list[ColumnElement[bool]]:
    """Conditions of the answers of evaluation `number`, from 1.

    The number after the last one is an evaluation that has not ended. An evaluation asks each
    prompt once in a group; of groups that a coordinator gave up and repeated the newest count."""
    ended = reader.rows(
        select(Evaluation.offset, Evaluation.num_prompts)
        .where(Evaluation.run == reader.key)
        .order_by(Evaluation.offset)
        .offset(max(0, number - 2))
        .limit(2)
    )
    before, own = [*([None] if number == 1 else []), *ended, None, None][:2]
    # A branch of an agent's episode has no position; it is no answer of the evaluation.
    mine = (
        Group.run == reader.key,
        text(f"groups.{EVALUATION_GROUPS}"),
        Group.offset > (before.offset if before else -1),
        Group.position >= 0,
    )
    groups = select(func.max(Group.group_id)).where(*mine).group_by(Group.position)
    if number < 1 or (number > 1 and before is None):
        groups = groups.limit(0)
    elif own is not None:
        groups = select(Group.group_id).where(*mine, Group.offset < own.offset)
        groups = groups.order_by(Group.offset.desc()).limit(own.num_prompts)
    return [Trajectory.group_id.in_(groups)]


def asked_number(run_dir: Path) -> int:
    """Number of evaluations that have issued prompts, an unfinished one included."""
    reader = open_run(run_dir)
    (ended, last) = reader.rows(
        select(func.count(), func.max(Evaluation.offset)).where(Evaluation.run == reader.key)
    )[0]
    newest = select(func.max(Group.offset)).where(
        Group.run == reader.key, text(f"groups.{EVALUATION_GROUPS}")
    )
    asked = reader.value(newest)
    return int(ended) + (asked is not None and asked > (-1 if last is None else last))


def prompt_history(run_dir: Path, prompt_id: str, *, most: int = 1000) -> "pd.DataFrame":
    """The newest answers to a prompt, at most `most`, in the order of their beginning.

    trajectory_id, group_id, attempt, purpose, status, length, reward, correct, update (of the
    weights that began it, empty without a token) and evaluation (its number; empty in training)."""
    reader, t = open_run(run_dir), Trajectory
    begun = (
        select(WeightVersion.update)
        .where(WeightVersion.run == t.run, WeightVersion.version == t.min_version)
        .scalar_subquery()
    )
    ended = (
        select(func.count())
        .where(Evaluation.run == Group.run, Evaluation.offset < Group.offset)
        .scalar_subquery()
    )
    columns = (
        t.trajectory_id, t.group_id, t.attempt, t.purpose, t.status, t.length, t.reward, t.correct
    )  # fmt: skip
    query = (
        select(
            *columns,
            begun.label("update"),
            case((t.purpose == "eval", ended + 1)).label("evaluation"),
        )
        .join(Group, (Group.run == t.run) & (Group.group_id == t.group_id))
        .where(Group.run == reader.key, Group.prompt_id == prompt_id, t.purpose != "probe")
        .order_by(t.trajectory_id.desc())
        .limit(most)
    )
    return reader.frame(query)[::-1].reset_index(drop=True)


def prompt_scores(run_dir: Path) -> "pd.DataFrame":
    """Rows of the export `scores` for evaluated prompts, with answers. UserError: not all yet."""
    reader = open_run(run_dir)
    rows = ScoreRows(reader, parse("purpose = 'eval'"), None)
    batches = [part.rows.batch() for part in rows.parts()]
    if not batches or evaluations(run_dir).empty:
        raise UserError(f"{run_dir.name} has unscored prompts: run `headrace score` (--resume)")
    found = pa.Table.from_batches(batches).to_pandas()
    answers = reader.frame(select(Prompt.prompt_id, Prompt.answer).where(Prompt.run == reader.key))
    return found.merge(answers, on="prompt_id")


def score_summary(run_dir: Path) -> list[dict[str, Any]]:
    """Per source of rewards (None: unscored): prompts, answers, failures, mean, never solved."""
    found = prompt_scores(run_dir)
    return [
        {
            "source": name if isinstance(name, str) else None,
            "prompts": len(own), "answers": int(own.samples.sum()),
            "failed": int((own.samples - own.scored).sum()),
            "mean": float(own["mean"].mean()) if own.scored.any() else None,
            "never_solved": int((own.solved.fillna(0) == 0).sum()),
        }
        for name, own in found.groupby("reward_source", dropna=False, observed=True)
    ]  # fmt: skip
