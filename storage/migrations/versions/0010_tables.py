"""First migration: the tables of `storage.database.tables` when they were first stamped.

A new database gets today's tables as a whole (`storage.database.engine.upgrade`), so there is
nothing to do here; what changes the tables of databases that are there is a migration after this
one. The id is that of the last one before, so that databases of that schema need none.
"""

revision = "0010"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """The tables are there."""
