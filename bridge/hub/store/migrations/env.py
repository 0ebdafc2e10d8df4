"""Run by alembic: applies the steps, on the connection in its attributes."""

from alembic import context

from bridge.hub.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"], target_metadata=metadata
)
with context.begin_transaction():
    context.run_migrations()
