"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Apply the step."""
    op.create_table(
        "addresses",
        sa.Column("event_key", sa.String(), nullable=False),
        sa.Column("origin", sa.String(), nullable=False),
        sa.Column("entity", sa.String(), nullable=False),
        sa.Column("session", sa.String(), nullable=False),
        sa.Column("vm_id", sa.String(), nullable=False),
        sa.Column("heard", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("event_key", "origin", "entity", "session", "vm_id"),
    )
    op.create_table(
        "alarms",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.Column("handed", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("alarms_handed", "alarms", ["handed"], unique=False)
    op.create_table(
        "bridges",
        sa.Column("vm_id", sa.String(), nullable=False),
        sa.Column("origin", sa.String(), nullable=False),
        sa.Column("subscription", sa.String(), nullable=False),
        sa.Column("group", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("resource", sa.String(), nullable=False),
        sa.Column("heard", sa.BigInteger(), nullable=False),
        sa.Column("forgotten", sa.BigInteger(), nullable=True),
        sa.Column("was_silent", sa.Boolean(), nullable=False),
        sa.Column("state", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("vm_id"),
    )
    op.create_index("bridges_name", "bridges", ["name"], unique=False)
    op.create_index("bridges_resource", "bridges", ["resource"], unique=False)
    op.create_table(
        "decisions",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("event_key", sa.String(), nullable=False),
        sa.Column("event_id", sa.String(), nullable=False),
        sa.Column("life", sa.Integer(), nullable=False),
        sa.Column("action", sa.String(), nullable=False),
        sa.Column("via", sa.String(), nullable=False),
        sa.Column("content", sa.String(), nullable=False),
        sa.Column("rule", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("persons", sa.LargeBinary(), nullable=False),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.Column("expires", sa.BigInteger(), nullable=True),
        sa.Column("origin", sa.String(), nullable=False),
        sa.Column("entity", sa.String(), nullable=False),
        sa.Column("session", sa.String(), nullable=False),
        sa.Column("message", sa.LargeBinary(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.Column("outcome_reason", sa.String(), nullable=False),
        sa.Column("sent", sa.BigInteger(), nullable=True),
        sa.Column("closed", sa.BigInteger(), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("decisions_event", "decisions", ["event_key"], unique=False)
    op.create_index("decisions_state", "decisions", ["state"], unique=False)
    op.create_index("decisions_time", "decisions", ["time"], unique=False)
    op.create_table(
        "events",
        sa.Column("event_key", sa.String(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("xid", sa.BigInteger(), nullable=False),
        sa.Column("event_id", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("is_open", sa.Boolean(), nullable=False),
        sa.Column("event_type", sa.String(), nullable=False),
        sa.Column("event_source", sa.String(), nullable=False),
        sa.Column("subscription", sa.String(), nullable=False),
        sa.Column("group", sa.String(), nullable=False),
        sa.Column("content", sa.String(), nullable=False),
        sa.Column("has_bridge", sa.Boolean(), nullable=False),
        sa.Column("lives", sa.Integer(), nullable=False),
        sa.Column("not_before", sa.BigInteger(), nullable=True),
        sa.Column("opened", sa.BigInteger(), nullable=False),
        sa.Column("ended", sa.BigInteger(), nullable=True),
        sa.Column("told", sa.BigInteger(), nullable=False),
        sa.Column("heard", sa.BigInteger(), nullable=False),
        sa.Column("azure_received", sa.BigInteger(), nullable=True),
        sa.Column("azure_seen", sa.BigInteger(), nullable=True),
        sa.Column("state", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("event_key"),
    )
    op.create_index("events_open", "events", ["is_open", "not_before"], unique=False)
    op.create_index("events_told", "events", ["told"], unique=False)
    op.create_index("events_version", "events", ["version"], unique=False)
    op.create_table(
        "machines",
        sa.Column("event_key", sa.String(), nullable=False),
        sa.Column("subscription", sa.String(), nullable=False),
        sa.Column("group", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("event_key", "subscription", "group", "name"),
    )
    op.create_index("machines_name", "machines", ["name"], unique=False)
    op.create_table(
        "messages",
        sa.Column(
            "seq",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("event_key", sa.String(), nullable=False),
        sa.Column("source", sa.String(), nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.Column("vm_id", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("origin", sa.String(), nullable=False),
        sa.Column("reply_to", sa.String(), nullable=True),
        sa.Column("session", sa.String(), nullable=True),
        sa.Column("heard", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("seq"),
    )
    op.create_index(
        "messages_once", "messages", ["event_key", "source", "id"], unique=True
    )
    op.create_table(
        "meta",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("value", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "unreadable",
        sa.Column(
            "seq",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("origin", sa.String(), nullable=False),
        sa.Column("heard", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("seq"),
    )
    op.create_table(
        "votes",
        sa.Column("event_key", sa.String(), nullable=False),
        sa.Column("life", sa.Integer(), nullable=False),
        sa.Column("via", sa.String(), nullable=False),
        sa.Column("person", sa.String(), nullable=False),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("seen", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("event_key", "life", "via", "person"),
    )
    if op.get_bind().dialect.name == "postgresql":
        op.execute("CREATE SEQUENCE event_versions")
