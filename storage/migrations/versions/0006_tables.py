"""All tables. Their id is that of the last migration before these were one, so that databases of
that schema need none.

A column is its kind, then "?" where it can be null, or "=" with what rows without it get.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = None
branch_labels = None
depends_on = None

_KINDS: dict[str, sa.types.TypeEngine[Any]] = {
    "big": sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
    "bool": sa.Boolean(),
    "bytes": sa.LargeBinary(),
    "json": sa.JSON(),
    "real": sa.Float(precision=53),
    "text": sa.Text(),
}
_INDICES = (
    ("line_scores", "trajectory_id"),
    ("metrics", "update"),
    *(("trajectories", column) for column in ("group_id", "status", "finished_at")),
    ("updates", "update"),
    ("value_uses", "update"),
    *(("windows", column) for column in ("trajectory_id", "update")),
)
"""Table and column."""
_FEW = (
    ("inserted", "trajectories", "inserted", "inserted > 0"),
    ("reward_error", "trajectories", "rewarded_at", "reward_error IS NOT NULL"),
    ("audit_error", "trajectories", "rewarded_at", "audit_error IS NOT NULL"),
    ("lost", "windows", "at", "state = 'dropped' OR masked_tokens > 0"),
)
"""Indices of those rows alone that meet a condition: end of the name, table, column, condition."""


def _column(name: str, kind: str) -> sa.Column[Any]:
    kind, _, otherwise = kind.partition("=")
    return sa.Column(
        name,
        _KINDS[kind.removesuffix("?")],
        nullable=kind.endswith("?"),
        server_default=otherwise or None,
        autoincrement="auto" if name == "id" else False,
    )


def _table(table: str, key: str, /, **columns: str) -> None:
    """A table of rows of runs; `key` names what identifies a row besides its run."""
    op.create_table(
        table,
        _column("run", "big"),
        *(_column(name, kind) for name, kind in columns.items()),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name=op.f(f"fk_{table}_run")),
        sa.PrimaryKeyConstraint("run", *key.split(), name=op.f(f"pk_{table}")),
    )


def upgrade() -> None:
    """Make the tables."""
    info = {"name": "text", "unit": "text", "meaning": "text", "healthy": "text", "bins": "json=[]"}
    op.create_table(
        "metric_info",
        *(_column(name, kind) for name, kind in info.items()),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_metric_info")),
    )
    runs = {
        "id": "big", "run_id": "text", "name": "text", "config": "json", "status": "text",
        "detail": "text", "started_at": "real?", "ended_at": "real?", "lineage": "big",
    }  # fmt: skip
    op.create_table(
        "runs",
        *(_column(name, kind) for name, kind in runs.items()),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
        sa.UniqueConstraint("run_id", name=op.f("uq_runs_run_id")),
    )
    _of_runs()
    for table, column in _INDICES:
        op.create_index(op.f(f"ix_{table}_run_{column}"), table, ["run", column])
    for name, table, column, where in _FEW:
        rows = sa.text(where)
        op.create_index(
            f"ix_{table}_{name}", table, ["run", column], sqlite_where=rows, postgresql_where=rows
        )


# fmt: off
def _of_runs() -> None:
    _table(
        "checkpoints", "offset", offset="big", at="real", lineage="big", update="big", path="text",
        accuracy="real?",
    )
    _table(
        "evaluations", "offset", offset="big", at="real", label="text", update="big",
        version="big", num_prompts="big", accuracy="real?", response_length="real?",
        max_response_length="big", truncated="real?", failed="big", seconds="real",
        train_time_s="real",
    )
    _table("events", "offset", offset="big", at="real", level="text", kind="text", text="text")
    _table(
        "groups", "group_id", group_id="big", prompt_id="text", position="big", purpose="text",
        size="big", issued_at="real", offset="big",
    )
    _table(
        "line_scores", "offset", offset="big", at="real", trajectory_id="big", source="text",
        status="text", through="big", lines="json", rewards="json", seconds="real", error="text?",
    )
    _table(
        "metric_arrays", "name offset", name="text", offset="big", update="big", lineage="big?",
        values="json", wall_time="real",
    )
    _table(
        "metrics", "name offset", name="text", offset="big", update="big", lineage="big?",
        value="real?", wall_time="real",
    )
    _table(
        "processes", "name", name="text", role="text", pid="big", host="text", state="text",
        detail="text", first_seen_at="real", changed_at="real", starts="big",
    )
    _table("projection", "", next_offset="big", last_at="real?", format="big=1")
    _table(
        "prompts", "prompt_id", prompt_id="text", text="text", answer="text", info="text",
        prompt_ids="bytes", offset="big",
    )
    _table("token_losses", "generator reason", generator="text", reason="text", tokens="big")
    _table(
        "trajectories", "trajectory_id", trajectory_id="big", group_id="big", attempt="big",
        purpose="text", seed="big", status="text", finish="text?", error="text?", reward="real?",
        reward_status="text?", reward_parts="json?", reward_seconds="real?", reward_error="text?",
        length="big", min_version="big?", max_version="big?", generator="text?", issued_at="real",
        first_token_at="real?", finished_at="real?", rewarded_at="real?", first_offset="big?",
        last_offset="big?", offset="big", sampled="big=0", inserted="big=0", correct="bool?",
        rewards="json?", reward_source="text?", audit_source="text?", audit_status="text?",
        audit_reward="real?", audit_correct="bool?", audit_parts="json?", audit_seconds="real?",
        audit_error="text?",
    )
    _table(
        "updates", "lineage update", lineage="big", update="big", version="big", state="text",
        taken_at="real", committed_at="real?", train_time_s="real?", trained_tokens="big?",
        num_windows="big", num_values="big", skipped="text?", abandoned="bool", offset="big",
    )
    _table(
        "value_uses", "trajectory_id", trajectory_id="big", state="text", lineage="big?",
        update="big?", offset="big",
    )
    _table(
        "version_loads", "offset", offset="big", at="real", generator="text", version="big",
        gap_s="real", load_s="real",
    )
    _table(
        "weight_versions", "version", version="big", lineage="big", update="big", num_bytes="big",
        published_at="real", offset="big",
    )
    _table(
        "windows", "window_id", window_id="big", trajectory_id="big", index="big", start="big",
        end="big", tokens="big", min_version="big", max_version="big", final="bool", state="text",
        at="real", reason="text?", masked="json", masked_tokens="big", lineage="big?",
        update="big?", version="big?", offset="big", lines="text?",
    )
# fmt: on
