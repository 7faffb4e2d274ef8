"""How surprising an answer was, and indices that find evaluations and all answers to a prompt."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Of answers before nobody said it."""
    zero = sa.Column("surprise", sa.Float(53), nullable=False, server_default="0")
    op.add_column("trajectories", zero)
    op.create_index("ix_groups_run_prompt_id", "groups", ["run", "prompt_id"])
    few = sa.text("purpose = 'eval'")
    op.create_index(
        "ix_groups_evaluation", "groups", ["run", "offset"],
        sqlite_where=few, postgresql_where=few,
    )  # fmt: skip
