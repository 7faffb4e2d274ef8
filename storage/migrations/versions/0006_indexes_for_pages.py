"""Indexes for pages of long runs: updates by number, answers by their end, and what lost tokens,
failed or was inserted. The last three hold those rows alone, which are few."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_ALL = (("updates", "update"), ("trajectories", "finished_at"))
"""Table and column."""
_FEW = (
    ("inserted", "trajectories", "inserted", "inserted > 0"),
    ("reward_error", "trajectories", "rewarded_at", "reward_error IS NOT NULL"),
    ("audit_error", "trajectories", "rewarded_at", "audit_error IS NOT NULL"),
    ("lost", "windows", "at", "state = 'dropped' OR masked_tokens > 0"),
)
"""End of the name, table, column, of which rows."""


def upgrade() -> None:
    """Bring the tables to the sixth format."""
    for table, column in _ALL:
        op.create_index(op.f(f"ix_{table}_run_{column}"), table, ["run", column])
    for name, table, column, where in _FEW:
        rows = sa.text(where)
        op.create_index(
            *(f"ix_{table}_{name}", table, ["run", column]),
            sqlite_where=rows,
            postgresql_where=rows,
        )


def downgrade() -> None:
    """Back to the fifth format."""
    for name, table, *_ in reversed(_FEW):
        op.drop_index(f"ix_{table}_{name}", table)
    for table, column in reversed(_ALL):
        op.drop_index(op.f(f"ix_{table}_run_{column}"), table)
