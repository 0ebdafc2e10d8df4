"""Adds when each decision is handled next, and the record of votes and decisions."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Apply the step."""
    op.add_column("decisions", sa.Column("due", sa.BigInteger(), nullable=True))
    op.create_index("decisions_due", "decisions", ["due"], unique=False)
    op.create_table(
        "audit",
        sa.Column(
            "seq",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.Column("event_key", sa.String(), nullable=False),
        sa.Column("event_id", sa.String(), nullable=False),
        sa.Column("life", sa.Integer(), nullable=False),
        sa.Column("decision", sa.String(), nullable=False),
        sa.Column("what", sa.String(), nullable=False),
        sa.Column("via", sa.String(), nullable=False),
        sa.Column("person", sa.String(), nullable=False),
        sa.Column("detail", sa.String(), nullable=False),
        sa.Column("content", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("seq"),
    )
    op.create_index("audit_event", "audit", ["event_key"], unique=False)
    op.create_index("audit_time", "audit", ["time"], unique=False)
