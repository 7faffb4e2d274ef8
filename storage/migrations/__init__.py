"""Alembic migrations of the tables; run by `storage.database.upgrade`."""
