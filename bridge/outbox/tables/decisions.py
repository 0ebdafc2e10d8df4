"""The table ``approvals``: the decisions on approval messages.

A message is identified by a hash of its content and by its sequence number; a copy of
the message has the same hash. The newest decision is stored under the hash. Decisions
on other messages with the same hash are stored under ``hash#number``.
"""

import sqlite3
from typing import Any

from bridge.outbox.records import Decision, checksum_of_decision, json_of, log_damage


def save(db: sqlite3.Connection, decision: Decision, now: float) -> None:
    """Save the decision on one EventId of an approval.

    ``posted`` stays set until a new intent follows a decision: no POST has begun for
    the new try. A decision on another message with the same hash is moved to
    ``hash#number``, because that message may be delivered again.
    """
    db.execute(
        """UPDATE OR REPLACE approvals SET message = message || '#' || sequence
           WHERE message = ? AND key = ? AND state <> 'intent' AND sequence <> ?""",
        (decision.message, decision.key, decision.sequence),
    )
    state, posted, data = decision.state, decision.posted, decision.data
    for earlier in select(
        db, "message = ? AND key = ?", (decision.message, decision.key)
    ):
        is_new_try = decision.is_intent and not earlier.is_intent
        posted = posted if is_new_try else max(posted, earlier.posted)
        data = earlier.data if data is None else data
    columns = (
        decision.key,
        decision.event_id,
        decision.sequence,
        state,
        int(posted),
        data,
        decision.rule,
    )
    db.execute(
        """INSERT INTO approvals (message, key, event_id, sequence, state, posted,
           data, rule, at, checksum) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
           ON CONFLICT DO UPDATE SET event_id = excluded.event_id,
           sequence = excluded.sequence, state = excluded.state,
           posted = excluded.posted, data = excluded.data, at = excluded.at,
           rule = excluded.rule, checksum = excluded.checksum""",
        (decision.message, *columns, now, checksum_of_decision(*columns)),
    )


def claim(db: sqlite3.Connection, decision: Decision, now: float) -> Decision:
    """Save a record unless its message has one; return the one that is there."""
    earlier = of_message(db, decision.message, None).get(decision.key)
    if earlier is None:
        save(db, decision, now)
    return earlier or decision


def of_message(
    db: sqlite3.Connection, message: str, sequence: int | None
) -> dict[str, Decision]:
    """Return the decisions on a message, by the key of the EventId.

    Args:
        db: the state file.
        message: the hash of its content.
        sequence: its sequence number. A decision on the message with this number takes
            precedence over a decision on a copy of the message.
    """
    own = f"{message}#{sequence}"  # sorts after the hash alone, so it wins in the dict
    found = select(db, "message IN (?, ?) ORDER BY message", (message, own))
    return {decision.key: decision for decision in found}


def select(
    db: sqlite3.Connection, condition: str, values: tuple[object, ...] = ()
) -> list[Decision]:
    """Return the decisions for which ``condition`` (our own SQL) holds.

    Damaged rows are left out: their ``posted`` might be wrong.
    """
    query = f"""SELECT key, event_id, sequence, state, posted, data, rule, message,
        checksum FROM approvals WHERE {condition}"""  # noqa: S608 - conditions of ours  # nosec B608
    found = (_decision(row) for row in db.execute(query, values))
    return [decision for decision in found if decision is not None]


def _decision(row: tuple[Any, ...]) -> Decision | None:
    *columns, message, checksum = row
    if checksum is not None and checksum != checksum_of_decision(*columns):
        log_damage("approval")
        return None
    key, event_id, sequence, state, posted, data, rule = columns
    return Decision(
        message=message,
        key=key,
        event_id=event_id,
        sequence=sequence,
        state=state,
        posted=bool(posted),
        data=data,
        rule=rule,
    )


def open_initiatives(db: sqlite3.Connection) -> list[Decision]:
    """Return the intents of rules that have no outcome yet."""
    return select(db, "state = 'intent' AND rule IS NOT NULL")


def delete(db: sqlite3.Connection, message: str, key: str) -> None:
    """Delete the decision on one EventId of a message."""
    db.execute("DELETE FROM approvals WHERE message = ? AND key = ?", (message, key))


def posted(db: sqlite3.Connection) -> frozenset[str]:
    """Return the keys of the EventIds for which a POST has begun."""
    query = "SELECT DISTINCT key FROM approvals WHERE posted"
    return frozenset(key for (key,) in db.execute(query))


def recent_outcomes(db: sqlite3.Connection, limit: int) -> list[bytes]:
    """Return the data of the last outcomes as JSON, newest first."""
    last = "data IS NOT NULL ORDER BY at DESC LIMIT ?"
    found = (one.data or b"" for one in select(db, last, (limit,)))
    return [data for data in found if json_of(data) is not None]
