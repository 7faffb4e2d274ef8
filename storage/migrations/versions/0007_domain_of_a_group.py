"""The domain of a group, where the task is a mixture."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Groups of before are of no domain."""
    op.add_column("groups", sa.Column("domain", sa.Text(), nullable=False, server_default=""))
