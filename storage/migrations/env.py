"""Alembic's environment, over the connection of `storage.database.engine.upgrade`."""

from alembic import context

from storage.database.tables import Base

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=Base.metadata, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
if connection.in_transaction():
    connection.commit()
