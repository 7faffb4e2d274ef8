"""The images of a prompt."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Prompts before were text alone."""
    op.add_column("prompts", sa.Column("images", sa.JSON(), nullable=True))
