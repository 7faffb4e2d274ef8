"""Columns of trajectories, groups and prompts that pages, filters and exports share."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import func

from storage.database.tables import AnySelect, Group, Prompt, Trajectory

COLUMNS: Mapping[str, Any] = {
    "trajectory_id": Trajectory.trajectory_id,
    "group_id": Trajectory.group_id,
    "prompt_id": Group.prompt_id,
    "domain": Group.domain,
    "attempt": Trajectory.attempt,
    "purpose": Trajectory.purpose,
    "status": Trajectory.status,
    "finish": Trajectory.finish,
    "length": Trajectory.length,
    "sampled": Trajectory.sampled,
    "inserted": Trajectory.inserted,
    "surprise": Trajectory.surprise / func.nullif(Trajectory.sampled, 0),
    "reward": Trajectory.reward,
    "correct": Trajectory.correct,
    "reward_source": Trajectory.reward_source,
    "reward_status": Trajectory.reward_status,
    "reward_seconds": Trajectory.reward_seconds,
    "reward_error": Trajectory.reward_error,
    "reward_model": Trajectory.reward_model,
    "audit_source": Trajectory.audit_source,
    "audit_status": Trajectory.audit_status,
    "audit_reward": Trajectory.audit_reward,
    "audit_correct": Trajectory.audit_correct,
    "gap": Trajectory.reward - Trajectory.audit_reward,
    "audit_seconds": Trajectory.audit_seconds,
    "audit_error": Trajectory.audit_error,
    "min_version": Trajectory.min_version,
    "max_version": Trajectory.max_version,
    "generator": Trajectory.generator,
    "seed": Trajectory.seed,
    "error": Trajectory.error,
    "issued_at": Trajectory.issued_at,
    "first_token_at": Trajectory.first_token_at,
    "finished_at": Trajectory.finished_at,
    "rewarded_at": Trajectory.rewarded_at,
    "prompt": Prompt.text,
    "answer": Prompt.answer,
    "info": Prompt.info,
}
"""Scalar columns of a trajectory by name."""


def joined(query: AnySelect, run: int) -> AnySelect:
    """A query over the trajectories of a run but for probes, each with its group and prompt."""
    return (
        query.select_from(Trajectory)
        .join(Group, (Group.run == Trajectory.run) & (Group.group_id == Trajectory.group_id))
        .join(Prompt, (Prompt.run == Group.run) & (Prompt.prompt_id == Group.prompt_id))
        .where(Trajectory.run == run, Trajectory.purpose != "probe")
    )
