"""Windows from the moment they are complete, sequences with inserted tokens, metrics by bins.

The rows of windows are not carried over: they come from the journal, and `projection.format` says
that all rows of a run from before this migration have to be made again.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Bring the tables to the second format."""
    for table in ("drops", "windows", "value_uses"):
        op.drop_table(table)
    with op.batch_alter_table("projection") as batch_op:
        batch_op.add_column(sa.Column("format", BIG, nullable=False, server_default="1"))
    with op.batch_alter_table("metric_info") as batch_op:
        batch_op.add_column(sa.Column("bins", sa.JSON(), nullable=False, server_default="[]"))
    with op.batch_alter_table("trajectories") as batch_op:
        batch_op.add_column(sa.Column("sampled", BIG, nullable=False, server_default="0"))
        batch_op.add_column(sa.Column("inserted", BIG, nullable=False, server_default="0"))
        batch_op.add_column(sa.Column("correct", sa.Boolean(), nullable=True))
        batch_op.add_column(sa.Column("rewards", sa.JSON(), nullable=True))
    op.create_table(
        "metric_arrays",
        sa.Column("run", BIG, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("offset", BIG, autoincrement=False, nullable=False),
        sa.Column("update", BIG, nullable=False),
        sa.Column("lineage", BIG, nullable=True),
        sa.Column("values", sa.JSON(), nullable=False),
        sa.Column("wall_time", sa.Float(precision=53), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name=op.f("fk_metric_arrays_run")),
        sa.PrimaryKeyConstraint("run", "name", "offset", name=op.f("pk_metric_arrays")),
    )
    op.create_table(
        "token_losses",
        sa.Column("run", BIG, nullable=False),
        sa.Column("generator", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("tokens", BIG, nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name=op.f("fk_token_losses_run")),
        sa.PrimaryKeyConstraint("run", "generator", "reason", name=op.f("pk_token_losses")),
    )
    op.create_table(
        "value_uses",
        sa.Column("run", BIG, nullable=False),
        sa.Column("trajectory_id", BIG, autoincrement=False, nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("lineage", BIG, nullable=True),
        sa.Column("update", BIG, nullable=True),
        sa.Column("offset", BIG, nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name=op.f("fk_value_uses_run")),
        sa.PrimaryKeyConstraint("run", "trajectory_id", name=op.f("pk_value_uses")),
    )
    op.create_table(
        "windows",
        sa.Column("run", BIG, nullable=False),
        sa.Column("window_id", BIG, autoincrement=False, nullable=False),
        sa.Column("trajectory_id", BIG, nullable=False),
        sa.Column("index", BIG, nullable=False),
        sa.Column("start", BIG, nullable=False),
        sa.Column("end", BIG, nullable=False),
        sa.Column("tokens", BIG, nullable=False),
        sa.Column("min_version", BIG, nullable=False),
        sa.Column("max_version", BIG, nullable=False),
        sa.Column("final", sa.Boolean(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("at", sa.Float(precision=53), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("masked", sa.JSON(), nullable=False),
        sa.Column("masked_tokens", BIG, nullable=False),
        sa.Column("lineage", BIG, nullable=True),
        sa.Column("update", BIG, nullable=True),
        sa.Column("version", BIG, nullable=True),
        sa.Column("offset", BIG, nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name=op.f("fk_windows_run")),
        sa.PrimaryKeyConstraint("run", "window_id", name=op.f("pk_windows")),
    )
    for table, column in (
        ("value_uses", "update"),
        ("windows", "trajectory_id"),
        ("windows", "update"),
    ):
        op.create_index(op.f(f"ix_{table}_run_{column}"), table, ["run", column], unique=False)


def downgrade() -> None:
    """Undo it, without the rows of windows."""
    for table in ("windows", "value_uses", "token_losses", "metric_arrays"):
        op.drop_table(table)
    with op.batch_alter_table("trajectories") as batch_op:
        for column in ("rewards", "correct", "inserted", "sampled"):
            batch_op.drop_column(column)
    with op.batch_alter_table("metric_info") as batch_op:
        batch_op.drop_column("bins")
    with op.batch_alter_table("projection") as batch_op:
        batch_op.drop_column("format")
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
    for table, column in (
        ("drops", "trajectory_id"),
        ("value_uses", "update"),
        ("windows", "trajectory_id"),
        ("windows", "update"),
    ):
        op.create_index(op.f(f"ix_{table}_run_{column}"), table, ["run", column], unique=False)
