"""First migration: the tables of `storage.database.tables` as they are.

A new database gets them as a whole (`storage.database.engine.upgrade`), so there is nothing to do
here. Until the first release the id rises where tables change, and databases of another one are
refused; after it, what changes tables is a migration after this one.
"""

revision = "0011"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """The tables are there."""
