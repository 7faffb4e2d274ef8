"""Lines are scored, perhaps before their answer ends: each scoring has a row, and a window says
what had become of its lines when it got ready."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Bring the tables to the fourth format."""
    with op.batch_alter_table("windows") as batch_op:
        batch_op.add_column(sa.Column("lines", sa.Text(), nullable=True))
    op.create_table(
        "line_scores",
        sa.Column("run", _BIG, nullable=False),
        sa.Column("offset", _BIG, autoincrement=False, nullable=False),
        sa.Column("at", sa.Float(precision=53), nullable=False),
        sa.Column("trajectory_id", _BIG, nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("through", _BIG, nullable=False),
        sa.Column("lines", sa.JSON(), nullable=False),
        sa.Column("rewards", sa.JSON(), nullable=False),
        sa.Column("seconds", sa.Float(precision=53), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name=op.f("fk_line_scores_run")),
        sa.PrimaryKeyConstraint("run", "offset", name=op.f("pk_line_scores")),
    )
    index = op.f("ix_line_scores_run_trajectory_id")
    op.create_index(index, "line_scores", ["run", "trajectory_id"])


def downgrade() -> None:
    """Back to the third format."""
    op.drop_table("line_scores")
    with op.batch_alter_table("windows") as batch_op:
        batch_op.drop_column("lines")
