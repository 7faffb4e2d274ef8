"""Alembic migrations of the tables; run by `storage.database.engine.upgrade`."""
