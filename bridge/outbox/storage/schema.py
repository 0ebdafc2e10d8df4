"""The tables of the state file, and the migrations of older files.

A file holds two numbers: ``user_version`` is the oldest schema that can read it, and
``schema`` in ``meta`` is the schema that wrote it. A new column does not change
``user_version``, so that an older version of the program can be installed again: it
names the columns that it writes, and the others get their defaults.
"""

import sqlite3

from bridge.foundation.errors import (
    ForeignDatabaseError,
    NewerSchemaError,
    OutboxCorruptError,
)

# Each entry migrates a file from the schema before to its own (1, 2, …). An entry is
# never changed after a release, because files in use have already run it.
MIGRATIONS = (
    """
    CREATE TABLE meta (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;

    -- How often an event of this cause was published: a repetition gets another id.
    CREATE TABLE told (
        cause TEXT PRIMARY KEY, times INTEGER NOT NULL, at REAL NOT NULL
    ) WITHOUT ROWID;
    CREATE INDEX told_at ON told (at);

    -- EventIds that were in a document, also after they are gone.
    CREATE TABLE sightings (key TEXT PRIMARY KEY, at REAL NOT NULL) WITHOUT ROWID;
    CREATE INDEX sightings_at ON sightings (at);

    -- Sinks that got an event of an EventId: they get all later ones, too.
    CREATE TABLE followers (
        key TEXT NOT NULL, sink TEXT NOT NULL, at REAL NOT NULL,
        PRIMARY KEY (key, sink)
    ) WITHOUT ROWID;
    CREATE INDEX followers_at ON followers (at);

    CREATE TABLE items (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        kind TEXT NOT NULL,               -- 'event' | 'reply'
        key TEXT,                         -- rows with equal keys keep their order
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
        state TEXT NOT NULL,              -- pending|dead|delivered|discarded|skipped
        is_head INTEGER NOT NULL,         -- the first pending one of its key
        attempts INTEGER NOT NULL DEFAULT 0,
        due REAL NOT NULL,
        urgent_from REAL,                 -- goes before all others between them
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

    -- Counts by sink and state, updated by triggers: a scrape must not scan the table.
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

    -- What was decided on each EventId of each message; state is 'intent' before.
    CREATE TABLE approvals (
        message TEXT NOT NULL,            -- hash of entity, MessageId and body
        key TEXT NOT NULL,
        event_id TEXT NOT NULL,
        sequence INTEGER,
        state TEXT NOT NULL,
        posted INTEGER NOT NULL DEFAULT 0,
        data BLOB,                        -- the outcome, as it was published
        at REAL NOT NULL,
        PRIMARY KEY (message, key)
    ) WITHOUT ROWID;
    CREATE INDEX approvals_at ON approvals (at);
    CREATE INDEX approvals_key ON approvals (key) WHERE posted;
    """,
    """
    -- The EventId: rows are kept as long as it lives.
    ALTER TABLE told ADD COLUMN key TEXT;
    CREATE INDEX told_key ON told (key) WHERE key IS NOT NULL;
    """,
    """
    -- The rule that asked, if no message did; message is a hash of the event then.
    ALTER TABLE approvals ADD COLUMN rule TEXT;
    CREATE INDEX approvals_rule ON approvals (rule) WHERE state = 'intent';
    """,
    """
    -- What a sink must know of an EventId, for example which message to update.
    CREATE TABLE sink_memory (
        sink TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL, at REAL NOT NULL,
        PRIMARY KEY (sink, key)
    ) WITHOUT ROWID;
    CREATE INDEX sink_memory_at ON sink_memory (at);
    CREATE INDEX sink_memory_key ON sink_memory (key);
    """,
    """
    -- Detects damage on the disk; NULL = the row has no checksum.
    ALTER TABLE items ADD COLUMN checksum INTEGER;
    """,
    """
    -- The running time of the sink (meta 'running:') when the row was inserted: the
    -- difference is its age, which does not depend on the wall clock.
    ALTER TABLE deliveries ADD COLUMN born REAL NOT NULL DEFAULT 0;
    -- Whether it failed because the sink did not answer: due when it answers again.
    ALTER TABLE deliveries ADD COLUMN waits_for_sink INTEGER NOT NULL DEFAULT 0;
    """,
    """
    -- How often an EventId has gone: one that comes back is another event.
    CREATE TABLE appearances (
        key TEXT PRIMARY KEY, n INTEGER NOT NULL, at REAL NOT NULL
    ) WITHOUT ROWID;
    CREATE INDEX appearances_at ON appearances (at);

    -- The last success of each command for each EventId, until it is undone.
    CREATE TABLE command_successes (
        sink TEXT NOT NULL, key TEXT NOT NULL,
        appearance INTEGER NOT NULL,      -- n of the table above at that time
        content BLOB NOT NULL,            -- the CloudEvent for which it was run
        at REAL NOT NULL,
        PRIMARY KEY (sink, key)
    ) WITHOUT ROWID;
    CREATE INDEX command_successes_at ON command_successes (at);
    CREATE INDEX command_successes_key ON command_successes (key);
    """,
    """
    -- When it was: "at" is renewed as long as the event lives. 0 = not known.
    ALTER TABLE command_successes ADD COLUMN succeeded REAL NOT NULL DEFAULT 0;
    """,
    """
    -- Like that of items, over the name and the value, and over the decision.
    ALTER TABLE meta ADD COLUMN checksum INTEGER;
    ALTER TABLE approvals ADD COLUMN checksum INTEGER;
    -- An older program changes a row and not its checksum: remove the checksum then.
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

# The oldest schema that can read the file after the last migration. It does not change
# as long as migrations only add tables, indexes, and columns with a default.
READABLE_SINCE = 4
_PLAUSIBLE = 1000  # a higher schema number means damage


def migrate(connection: sqlite3.Connection) -> None:
    """Migrate the file to the present schema, in one transaction for each step.

    Raises:
        NewerSchemaError: a newer version has written it, and this one cannot read it.
        ForeignDatabaseError: another program has written it.
        OutboxCorruptError: the two numbers of the file contradict each other.
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
        connection: to which the database is attached.
        name: the name under which it is attached.

    Raises:
        ForeignDatabaseError: it has tables, but not those of a state file.
        OutboxCorruptError: the two numbers cannot both be right.
    """
    (reader,) = connection.execute(f"PRAGMA {name}.user_version").fetchone()
    query = f"SELECT name FROM {name}.sqlite_master WHERE type = 'table'"  # noqa: S608 - our own names  # nosec B608
    tables = {table for (table,) in connection.execute(query)}
    if reader == 0 and tables and not tables & {"told", "deliveries"}:
        raise ForeignDatabaseError("it is a database of another program")
    has_meta = "meta" in tables
    query = f"SELECT value FROM {name}.meta WHERE key = 'schema'"  # noqa: S608 - our own names  # nosec B608
    row = connection.execute(query).fetchone() if has_meta else None
    writer = reader if row is None else row[0]
    is_right = isinstance(writer, int) and has_meta == (writer > 0)
    if not is_right or not 0 <= reader <= _PLAUSIBLE:
        raise OutboxCorruptError(
            f"the state file is damaged: schema {writer!r}, readable since {reader}"
        )
    return reader, writer
