"""The tables of the state file, and how older files become new ones."""

import sqlite3

from bridge.errors import NewerSchemaError

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
)


def migrate(connection: sqlite3.Connection) -> None:
    """Bring the file to the present version, in one transaction.

    Raises:
        NewerSchemaError: it was written by a newer version.
    """
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > len(MIGRATIONS):
        raise NewerSchemaError(
            f"the state file has schema version {version}, but this version of the "
            f"bridge knows {len(MIGRATIONS)} at most; install a newer one"
        )
    for number in range(version, len(MIGRATIONS)):
        connection.executescript(
            f"BEGIN IMMEDIATE; {MIGRATIONS[number]} "
            f"PRAGMA user_version = {number + 1}; COMMIT;"
        )
