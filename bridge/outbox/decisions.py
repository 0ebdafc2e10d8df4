"""What was decided on approvals: the rows of the table ``approvals``.

Each message has a name, which others of the same content share, and a sequence number
of its own. The newest decision stands under the name; what was decided of another
message of that name, under the name with that message's number: ``name#number``.
"""

import sqlite3

from bridge.outbox.records import Decision


def keep(db: sqlite3.Connection, decision: Decision, now: float) -> None:
    """Keep what became of an EventId of an approval.

    What was posted stays so, until a new intent follows a decision: of the new try no
    POST was begun. What was decided of another message with the same name stays beside
    it under that message's own: it may be delivered once more.
    """
    db.execute(
        """UPDATE OR REPLACE approvals SET message = message || '#' || sequence
           WHERE message = ? AND key = ? AND state <> 'intent' AND sequence <> ?""",
        (decision.message, decision.key, decision.sequence),
    )
    db.execute(
        """INSERT INTO approvals (message, key, event_id, sequence, state, posted,
           data, at, rule) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
           ON CONFLICT DO UPDATE SET sequence = excluded.sequence,
           state = excluded.state,
           posted = CASE WHEN excluded.state = 'intent' AND state <> 'intent'
               THEN excluded.posted ELSE max(posted, excluded.posted) END,
           data = coalesce(excluded.data, data), at = excluded.at,
           rule = excluded.rule""",
        (
            decision.message,
            decision.key,
            decision.event_id,
            decision.sequence,
            decision.state,
            decision.posted,
            decision.data,
            now,
            decision.rule,
        ),
    )


def of_message(
    db: sqlite3.Connection, message: str, sequence: int | None
) -> dict[str, Decision]:
    """Return what is kept of a message, by key of the EventId.

    Args:
        db: the state file.
        message: what it is known by, as are others of the same content.
        sequence: its own number: what was decided of it goes before all else.
    """
    own = f"{message}#{sequence}"  # see keep; longer than the other, so it is last
    found = select(db, "message IN (?, ?) ORDER BY message", (message, own))
    return {decision.key: decision for decision in found}


def select(
    db: sqlite3.Connection, condition: str, values: tuple[object, ...] = ()
) -> list[Decision]:
    """Return the decisions for which ``condition`` (SQL of ours) holds."""
    query = f"""SELECT message, key, event_id, sequence, state, posted, data, rule
        FROM approvals WHERE {condition}"""  # noqa: S608 - conditions of ours  # nosec B608
    names = (
        "message",
        "key",
        "event_id",
        "sequence",
        "state",
        "posted",
        "data",
        "rule",
    )
    found = [dict(zip(names, row, strict=True)) for row in db.execute(query, values)]
    return [Decision(**{**row, "posted": bool(row["posted"])}) for row in found]
