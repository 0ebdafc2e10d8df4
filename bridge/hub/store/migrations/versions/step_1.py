"""The first schema: ``tables``, as long as no version is released.

With the first release the tables are written out here, since a released step never
changes; each later change is a step of its own.
"""

from alembic import op

from bridge.hub.store.tables import metadata

revision = "1"
down_revision = None


def upgrade() -> None:
    """Apply the step."""
    metadata.create_all(op.get_bind(), checkfirst=False)
