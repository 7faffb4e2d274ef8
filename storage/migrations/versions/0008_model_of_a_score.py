"""The version of the model that scored, where the run trains it along."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Of scores before nobody said it."""
    op.add_column("trajectories", sa.Column("reward_model", sa.Text(), nullable=True))
    op.add_column("weight_versions", sa.Column("ranker", sa.Text(), nullable=True))
