"""Trajectories of the audited share say what the second source said of them."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_COLUMNS: dict[str, sa.types.TypeEngine[Any]] = {
    "audit_source": sa.Text(),
    "audit_status": sa.Text(),
    "audit_reward": sa.Float(precision=53),
    "audit_correct": sa.Boolean(),
    "audit_parts": sa.JSON(),
    "audit_seconds": sa.Float(precision=53),
    "audit_error": sa.Text(),
}


def upgrade() -> None:
    """Bring the tables to the fifth format."""
    with op.batch_alter_table("trajectories") as batch_op:
        for name, kind in _COLUMNS.items():
            batch_op.add_column(sa.Column(name, kind, nullable=True))


def downgrade() -> None:
    """Back to the fourth format."""
    with op.batch_alter_table("trajectories") as batch_op:
        for name in reversed(_COLUMNS):
            batch_op.drop_column(name)
