"""The tables of the first release."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """The tables of the first release."""
    op.create_table(
        "metric_info",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("unit", sa.Text(), nullable=False),
        sa.Column("meaning", sa.Text(), nullable=False),
        sa.Column("healthy", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_metric_info")),
    )
    op.create_table(
        "runs",
        sa.Column(
            "id",
            BIG,
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("config", sa.JSON(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("started_at", sa.Float(precision=53), nullable=True),
        sa.Column("ended_at", sa.Float(precision=53), nullable=True),
        sa.Column("lineage", BIG, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
        sa.UniqueConstraint("run_id", name=op.f("uq_runs_run_id")),
    )
    op.create_table(
        "checkpoints",
        sa.Column("run", BIG, nullable=False),
        sa.Column("offset", BIG, autoincrement=False, nullable=False),
        sa.Column("at", sa.Float(precision=53), nullable=False),
        sa.Column("lineage", BIG, nullable=False),
        sa.Column("update", BIG, nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("accuracy", sa.Float(precision=53), nullable=True),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name=op.f("fk_checkpoints_run")),
        sa.PrimaryKeyConstraint("run", "offset", name=op.f("pk_checkpoints")),
    )
    op.create_table(
        "drops",
        sa.Column("run", BIG, nullable=False),
        sa.Column("offset", BIG, autoincrement=False, nullable=False),
        sa.Column("at", sa.Float(precision=53), nullable=False),
        sa.Column("trajectory_id", BIG, nullable=False),
        sa.Column("start", BIG, nullable=False),
        sa.Column("end", BIG, nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("tokens", BIG, nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name=op.f("fk_drops_run")),
        sa.PrimaryKeyConstraint("run", "offset", name=op.f("pk_drops")),
    )
    with op.batch_alter_table("drops", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_drops_run_trajectory_id"), ["run", "trajectory_id"], unique=False
        )

    op.create_table(
        "evaluations",
        sa.Column("run", BIG, nullable=False),
        sa.Column("offset", BIG, autoincrement=False, nullable=False),
        sa.Column("at", sa.Float(precision=53), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("update", BIG, nullable=False),
        sa.Column("version", BIG, nullable=False),
        sa.Column("num_prompts", BIG, nullable=False),
        sa.Column("accuracy", sa.Float(precision=53), nullable=True),
        sa.Column("response_length", sa.Float(precision=53), nullable=True),
        sa.Column(
            "max_response_length",
            BIG,
            nullable=False,
        ),
        sa.Column("truncated", sa.Float(precision=53), nullable=True),
        sa.Column("failed", BIG, nullable=False),
        sa.Column("seconds", sa.Float(precision=53), nullable=False),
        sa.Column("train_time_s", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name=op.f("fk_evaluations_run")),
        sa.PrimaryKeyConstraint("run", "offset", name=op.f("pk_evaluations")),
    )
    op.create_table(
        "events",
        sa.Column("run", BIG, nullable=False),
        sa.Column("offset", BIG, autoincrement=False, nullable=False),
        sa.Column("at", sa.Float(precision=53), nullable=False),
        sa.Column("level", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name=op.f("fk_events_run")),
        sa.PrimaryKeyConstraint("run", "offset", name=op.f("pk_events")),
    )
    op.create_table(
        "groups",
        sa.Column("run", BIG, nullable=False),
        sa.Column("group_id", BIG, autoincrement=False, nullable=False),
        sa.Column("prompt_id", sa.Text(), nullable=False),
        sa.Column("position", BIG, nullable=False),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("size", BIG, nullable=False),
        sa.Column("issued_at", sa.Float(precision=53), nullable=False),
        sa.Column("offset", BIG, nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name=op.f("fk_groups_run")),
        sa.PrimaryKeyConstraint("run", "group_id", name=op.f("pk_groups")),
    )
    op.create_table(
        "metrics",
        sa.Column("run", BIG, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("offset", BIG, autoincrement=False, nullable=False),
        sa.Column("update", BIG, nullable=False),
        sa.Column("lineage", BIG, nullable=True),
        sa.Column("value", sa.Float(precision=53), nullable=True),
        sa.Column("wall_time", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name=op.f("fk_metrics_run")),
        sa.PrimaryKeyConstraint("run", "name", "offset", name=op.f("pk_metrics")),
    )
    with op.batch_alter_table("metrics", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_metrics_run_update"), ["run", "update"], unique=False)

    op.create_table(
        "processes",
        sa.Column("run", BIG, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("pid", BIG, nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("first_seen_at", sa.Float(precision=53), nullable=False),
        sa.Column("changed_at", sa.Float(precision=53), nullable=False),
        sa.Column("starts", BIG, nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name=op.f("fk_processes_run")),
        sa.PrimaryKeyConstraint("run", "name", name=op.f("pk_processes")),
    )
    op.create_table(
        "projection",
        sa.Column("run", BIG, nullable=False),
        sa.Column("next_offset", BIG, nullable=False),
        sa.Column("last_at", sa.Float(precision=53), nullable=True),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name=op.f("fk_projection_run")),
        sa.PrimaryKeyConstraint("run", name=op.f("pk_projection")),
    )
    op.create_table(
        "prompts",
        sa.Column("run", BIG, nullable=False),
        sa.Column("prompt_id", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("answer", sa.Text(), nullable=False),
        sa.Column("info", sa.Text(), nullable=False),
        sa.Column("prompt_ids", sa.LargeBinary(), nullable=False),
        sa.Column("offset", BIG, nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name=op.f("fk_prompts_run")),
        sa.PrimaryKeyConstraint("run", "prompt_id", name=op.f("pk_prompts")),
    )
    op.create_table(
        "trajectories",
        sa.Column("run", BIG, nullable=False),
        sa.Column("trajectory_id", BIG, autoincrement=False, nullable=False),
        sa.Column("group_id", BIG, nullable=False),
        sa.Column("attempt", BIG, nullable=False),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("seed", BIG, nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("finish", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("reward", sa.Float(precision=53), nullable=True),
        sa.Column("reward_status", sa.Text(), nullable=True),
        sa.Column("reward_parts", sa.JSON(), nullable=True),
        sa.Column("reward_seconds", sa.Float(precision=53), nullable=True),
        sa.Column("reward_error", sa.Text(), nullable=True),
        sa.Column("length", BIG, nullable=False),
        sa.Column("min_version", BIG, nullable=True),
        sa.Column("max_version", BIG, nullable=True),
        sa.Column("generator", sa.Text(), nullable=True),
        sa.Column("issued_at", sa.Float(precision=53), nullable=False),
        sa.Column("first_token_at", sa.Float(precision=53), nullable=True),
        sa.Column("finished_at", sa.Float(precision=53), nullable=True),
        sa.Column("rewarded_at", sa.Float(precision=53), nullable=True),
        sa.Column("first_offset", BIG, nullable=True),
        sa.Column("last_offset", BIG, nullable=True),
        sa.Column("offset", BIG, nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name=op.f("fk_trajectories_run")),
        sa.PrimaryKeyConstraint("run", "trajectory_id", name=op.f("pk_trajectories")),
    )
    with op.batch_alter_table("trajectories", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_trajectories_run_group_id"), ["run", "group_id"], unique=False
        )
        batch_op.create_index(
            batch_op.f("ix_trajectories_run_status"), ["run", "status"], unique=False
        )

    op.create_table(
        "updates",
        sa.Column("run", BIG, nullable=False),
        sa.Column("lineage", BIG, autoincrement=False, nullable=False),
        sa.Column("update", BIG, autoincrement=False, nullable=False),
        sa.Column("version", BIG, nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("taken_at", sa.Float(precision=53), nullable=False),
        sa.Column("committed_at", sa.Float(precision=53), nullable=True),
        sa.Column("train_time_s", sa.Float(precision=53), nullable=True),
        sa.Column("trained_tokens", BIG, nullable=True),
        sa.Column("num_windows", BIG, nullable=False),
        sa.Column("num_values", BIG, nullable=False),
        sa.Column("skipped", sa.Text(), nullable=True),
        sa.Column("abandoned", sa.Boolean(), nullable=False),
        sa.Column("offset", BIG, nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name=op.f("fk_updates_run")),
        sa.PrimaryKeyConstraint("run", "lineage", "update", name=op.f("pk_updates")),
    )
    op.create_table(
        "value_uses",
        sa.Column("run", BIG, nullable=False),
        sa.Column("trajectory_id", BIG, autoincrement=False, nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("lineage", BIG, nullable=False),
        sa.Column("update", BIG, nullable=False),
        sa.Column("offset", BIG, nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name=op.f("fk_value_uses_run")),
        sa.PrimaryKeyConstraint("run", "trajectory_id", name=op.f("pk_value_uses")),
    )
    with op.batch_alter_table("value_uses", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_value_uses_run_update"), ["run", "update"], unique=False
        )

    op.create_table(
        "version_loads",
        sa.Column("run", BIG, nullable=False),
        sa.Column("offset", BIG, autoincrement=False, nullable=False),
        sa.Column("at", sa.Float(precision=53), nullable=False),
        sa.Column("generator", sa.Text(), nullable=False),
        sa.Column("version", BIG, nullable=False),
        sa.Column("gap_s", sa.Float(precision=53), nullable=False),
        sa.Column("load_s", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name=op.f("fk_version_loads_run")),
        sa.PrimaryKeyConstraint("run", "offset", name=op.f("pk_version_loads")),
    )
    op.create_table(
        "weight_versions",
        sa.Column("run", BIG, nullable=False),
        sa.Column("version", BIG, autoincrement=False, nullable=False),
        sa.Column("lineage", BIG, nullable=False),
        sa.Column("update", BIG, nullable=False),
        sa.Column("num_bytes", BIG, nullable=False),
        sa.Column("published_at", sa.Float(precision=53), nullable=False),
        sa.Column("offset", BIG, nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name=op.f("fk_weight_versions_run")),
        sa.PrimaryKeyConstraint("run", "version", name=op.f("pk_weight_versions")),
    )
    op.create_table(
        "windows",
        sa.Column("run", BIG, nullable=False),
        sa.Column("window_id", BIG, autoincrement=False, nullable=False),
        sa.Column("trajectory_id", BIG, nullable=False),
        sa.Column("index", BIG, nullable=False),
        sa.Column("start", BIG, nullable=False),
        sa.Column("end", BIG, nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("lineage", BIG, nullable=False),
        sa.Column("update", BIG, nullable=False),
        sa.Column("version", BIG, nullable=False),
        sa.Column("trained", BIG, nullable=False),
        sa.Column("dropped", sa.JSON(), nullable=False),
        sa.Column("min_version", BIG, nullable=False),
        sa.Column("max_version", BIG, nullable=False),
        sa.Column("offset", BIG, nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name=op.f("fk_windows_run")),
        sa.PrimaryKeyConstraint("run", "window_id", name=op.f("pk_windows")),
    )
    with op.batch_alter_table("windows", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_windows_run_trajectory_id"), ["run", "trajectory_id"], unique=False
        )
        batch_op.create_index(batch_op.f("ix_windows_run_update"), ["run", "update"], unique=False)


def downgrade() -> None:
    """Undo it."""
    with op.batch_alter_table("windows", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_windows_run_update"))
        batch_op.drop_index(batch_op.f("ix_windows_run_trajectory_id"))

    op.drop_table("windows")
    op.drop_table("weight_versions")
    op.drop_table("version_loads")
    with op.batch_alter_table("value_uses", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_value_uses_run_update"))

    op.drop_table("value_uses")
    op.drop_table("updates")
    with op.batch_alter_table("trajectories", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_trajectories_run_status"))
        batch_op.drop_index(batch_op.f("ix_trajectories_run_group_id"))

    op.drop_table("trajectories")
    op.drop_table("prompts")
    op.drop_table("projection")
    op.drop_table("processes")
    with op.batch_alter_table("metrics", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_metrics_run_update"))

    op.drop_table("metrics")
    op.drop_table("groups")
    op.drop_table("events")
    op.drop_table("evaluations")
    with op.batch_alter_table("drops", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_drops_run_trajectory_id"))

    op.drop_table("drops")
    op.drop_table("checkpoints")
    op.drop_table("runs")
    op.drop_table("metric_info")
