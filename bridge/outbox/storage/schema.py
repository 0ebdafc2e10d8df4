"""The tables of the state file, and how older files become new ones.

Two numbers stand in a file. ``user_version`` is the oldest schema that can read it, and
``schema`` in ``meta`` is the one that wrote it. A column more leaves ``user_version``
as it is, so that an older program can be installed again: it works on the file, names
the columns it writes, and leaves the others at their defaults.
"""

import sqlite3

from bridge.foundation.errors import (
    ForeignDatabaseError,
    NewerSchemaError,
    OutboxCorruptError,
)

# Each entry takes a file from the version before it to its own (1, 2, …). Entries
# are never changed once released: a file in the field has run them as they were.
MIGRATIONS = (
    """
    CREATE TABLE meta (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;

    -- How often exactly this was told, so that a repetition gets another id.
    CREATE TABLE told (
        cause TEXT PRIMARY KEY, times INTEGER NOT NULL, at REAL NOT NULL
    ) WITHOUT ROWID;
    CREATE INDEX told_at ON told (at);

    -- EventIds that stood in a document, also after they are gone.
    CREATE TABLE sightings (key TEXT PRIMARY KEY, at REAL NOT NULL) WITHOUT ROWID;
    CREATE INDEX sightings_at ON sightings (at);

    -- Sinks that were told of an EventId: they are told to its end.
    CREATE TABLE followers (
        key TEXT NOT NULL, sink TEXT NOT NULL, at REAL NOT NULL,
        PRIMARY KEY (key, sink)
    ) WITHOUT ROWID;
    CREATE INDEX followers_at ON followers (at);

    CREATE TABLE items (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        kind TEXT NOT NULL,               -- 'event' | 'reply'
        key TEXT,                         -- order is kept among equal keys
        event_id TEXT,                    -- the EventId as received
        cloud_event_id TEXT,
        type TEXT NOT NULL,
        body BLOB NOT NULL,
        created REAL NOT NULL,
        not_before REAL
    );
    CREATE INDEX items_created ON items (created);

    CREATE TABLE deliveries (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        item INTEGER NOT NULL REFERENCES items (id),
        sink TEXT NOT NULL,
        key TEXT,
        state TEXT NOT NULL,              -- pending | delivered | dead | discarded
        is_head INTEGER NOT NULL,         -- the first pending one of its key
        attempts INTEGER NOT NULL DEFAULT 0,
        due REAL NOT NULL,
        urgent_from REAL,                 -- goes before all else in between
        urgent_until REAL,
        last_error TEXT,
        reason TEXT,
        settled REAL
    );
    CREATE INDEX deliveries_due ON deliveries (sink, due)
        WHERE state = 'pending' AND is_head;
    CREATE INDEX deliveries_urgent ON deliveries (sink, urgent_until)
        WHERE state = 'pending' AND is_head AND urgent_until IS NOT NULL;
    CREATE INDEX deliveries_key ON deliveries (sink, key, id)
        WHERE state = 'pending' AND key IS NOT NULL;
    CREATE INDEX deliveries_state ON deliveries (sink, state, id);
    CREATE INDEX deliveries_item ON deliveries (item);

    -- Counts by sink and state, kept by triggers: a scrape must not scan the table.
    CREATE TABLE tallies (
        sink TEXT NOT NULL, state TEXT NOT NULL, n INTEGER NOT NULL,
        PRIMARY KEY (sink, state)
    ) WITHOUT ROWID;
    CREATE TRIGGER deliveries_added AFTER INSERT ON deliveries BEGIN
        INSERT INTO tallies VALUES (new.sink, new.state, 1)
            ON CONFLICT DO UPDATE SET n = n + 1;
    END;
    CREATE TRIGGER deliveries_moved AFTER UPDATE OF state ON deliveries
    WHEN old.state <> new.state BEGIN
        UPDATE tallies SET n = n - 1 WHERE sink = old.sink AND state = old.state;
        INSERT INTO tallies VALUES (new.sink, new.state, 1)
            ON CONFLICT DO UPDATE SET n = n + 1;
    END;
    CREATE TRIGGER deliveries_removed AFTER DELETE ON deliveries BEGIN
        UPDATE tallies SET n = n - 1 WHERE sink = old.sink AND state = old.state;
    END;

    -- What was decided on each EventId of each message. state 'intent' until then.
    CREATE TABLE approvals (
        message TEXT NOT NULL,            -- hash of entity, MessageId and body
        key TEXT NOT NULL,
        event_id TEXT NOT NULL,
        sequence INTEGER,
        state TEXT NOT NULL,
        posted INTEGER NOT NULL DEFAULT 0,
        data BLOB,                        -- the outcome, as it was told
        at REAL NOT NULL,
        PRIMARY KEY (message, key)
    ) WITHOUT ROWID;
    CREATE INDEX approvals_at ON approvals (at);
    CREATE INDEX approvals_key ON approvals (key) WHERE posted;
    """,
    """
    -- Whose event it was: what was told of one is remembered as long as it lives.
    ALTER TABLE told ADD COLUMN key TEXT;
    CREATE INDEX told_key ON told (key) WHERE key IS NOT NULL;
    """,
    """
    -- The rule that asked, where no message did; message is then the event's content.
    ALTER TABLE approvals ADD COLUMN rule TEXT;
    CREATE INDEX approvals_rule ON approvals (rule) WHERE state = 'intent';
    """,
    """
    -- What a sink has to know of an EventId, such as which message to update.
    CREATE TABLE sink_memory (
        sink TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL, at REAL NOT NULL,
        PRIMARY KEY (sink, key)
    ) WITHOUT ROWID;
    CREATE INDEX sink_memory_at ON sink_memory (at);
    CREATE INDEX sink_memory_key ON sink_memory (key);
    """,
    """
    -- What bits that flip on the disk are noticed by; NULL = nobody has counted.
    ALTER TABLE items ADD COLUMN checksum INTEGER;
    """,
    """
    -- What meta holds of the sink under 'running:' when the delivery came: the
    -- difference is its age. It runs while the forwarder does, whatever clocks say.
    ALTER TABLE deliveries ADD COLUMN born REAL NOT NULL DEFAULT 0;
    -- Whether it failed for the sink's sake, and is due as soon as the sink is back.
    ALTER TABLE deliveries ADD COLUMN waits_for_sink INTEGER NOT NULL DEFAULT 0;
    """,
    """
    -- How often an EventId has gone: one that comes back is another event.
    CREATE TABLE appearances (
        key TEXT PRIMARY KEY, n INTEGER NOT NULL, at REAL NOT NULL
    ) WITHOUT ROWID;
    CREATE INDEX appearances_at ON appearances (at);

    -- The last success of each command for each EventId, until something voids it.
    CREATE TABLE command_successes (
        sink TEXT NOT NULL, key TEXT NOT NULL,
        appearance INTEGER NOT NULL,      -- n of the above when it was
        content BLOB NOT NULL,            -- the CloudEvent that it was run for
        at REAL NOT NULL,
        PRIMARY KEY (sink, key)
    ) WITHOUT ROWID;
    CREATE INDEX command_successes_at ON command_successes (at);
    CREATE INDEX command_successes_key ON command_successes (key);
    """,
    """
    -- When it was: "at" is renewed as long as the event is there. 0 = not noted.
    ALTER TABLE command_successes ADD COLUMN succeeded REAL NOT NULL DEFAULT 0;
    """,
    """
    -- As that of items: of the name and the value, and of what was decided.
    ALTER TABLE meta ADD COLUMN checksum INTEGER;
    ALTER TABLE approvals ADD COLUMN checksum INTEGER;
    -- A program that counts none changes what it was over: nobody has counted then.
    CREATE TRIGGER approvals_rewritten AFTER UPDATE ON approvals
    WHEN new.checksum IS old.checksum AND (
        new.sequence IS NOT old.sequence OR new.state <> old.state
        OR new.posted <> old.posted OR new.data IS NOT old.data
        OR new.rule IS NOT old.rule)
    BEGIN
        UPDATE approvals SET checksum = NULL
        WHERE message = new.message AND key = new.key;
    END;
    """,
)

# The oldest schema that can read what the last migration leaves behind. It stays as it
# is while migrations only add columns that may be left out, tables and indexes.
READABLE_SINCE = 4
_PLAUSIBLE = 1000  # beyond it the number itself is damaged


def migrate(connection: sqlite3.Connection) -> None:
    """Bring the file to the present version, in one transaction for each step.

    Raises:
        NewerSchemaError: this version cannot read what a newer one has written.
        ForeignDatabaseError: another program has written it.
        OutboxCorruptError: the file's own numbers contradict each other.
    """
    reader, writer = versions(connection)
    if reader > len(MIGRATIONS):
        raise NewerSchemaError(
            f"the state file has schema version {reader}, but this version of the "
            f"bridge knows {len(MIGRATIONS)} at most; install a newer one"
        )
    for number in range(writer, len(MIGRATIONS)):
        connection.executescript(
            f"BEGIN IMMEDIATE; {MIGRATIONS[number]} "
            f"PRAGMA user_version = {min(number + 1, READABLE_SINCE)};"
        )
        connection.execute(
            "INSERT OR REPLACE INTO meta (key, value) VALUES ('schema', ?)",
            (number + 1,),
        )
        connection.execute("COMMIT")


def versions(connection: sqlite3.Connection, name: str = "main") -> tuple[int, int]:
    """Return the oldest schema that can read a database, and the one that wrote it.

    Args:
        connection: where it is attached.
        name: under which name.

    Raises:
        ForeignDatabaseError: neither is there, but something else is.
        OutboxCorruptError: the two cannot both be right.
    """
    (reader,) = connection.execute(f"PRAGMA {name}.user_version").fetchone()
    query = f"SELECT name FROM {name}.sqlite_master WHERE type = 'table'"  # noqa: S608 - names of ours  # nosec B608
    tables = {table for (table,) in connection.execute(query)}
    if reader == 0 and tables and not tables & {"told", "deliveries"}:
        raise ForeignDatabaseError("it is a database of another program")
    has_meta = "meta" in tables
    query = f"SELECT value FROM {name}.meta WHERE key = 'schema'"  # noqa: S608 - names of ours  # nosec B608
    row = connection.execute(query).fetchone() if has_meta else None
    writer = reader if row is None else row[0]
    is_right = isinstance(writer, int) and has_meta == (writer > 0)
    if not is_right or not 0 <= reader <= _PLAUSIBLE:
        raise OutboxCorruptError(
            f"the state file is damaged: schema {writer!r}, readable since {reader}"
        )
    return reader, writer
