"""Trajectories say which source scored them. Those from before had one source."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the tables to the third format."""
    with op.batch_alter_table("trajectories") as batch_op:
        batch_op.add_column(sa.Column("reward_source", sa.Text(), nullable=True))
    trajectories = sa.table("trajectories", sa.column("reward_source"), sa.column("reward_status"))
    scored = trajectories.c.reward_status.is_not(None)
    op.execute(trajectories.update().where(scored).values(reward_source="default"))


def downgrade() -> None:
    """Back to the second format."""
    with op.batch_alter_table("trajectories") as batch_op:
        batch_op.drop_column("reward_source")
