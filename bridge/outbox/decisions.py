"""What was decided on approvals: the rows of the table ``approvals``.

Each message has a name, which others of the same content share, and a sequence number
of its own. The newest decision stands under the name; what was decided of another
message of that name, under the name with that message's number: ``name#number``.
"""

import sqlite3
from typing import Any

from bridge.outbox.checksum import checksum_of_decision, tell_of_damage
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
    state, posted, data = decision.state, decision.posted, decision.data
    for earlier in select(
        db, "message = ? AND key = ?", (decision.message, decision.key)
    ):
        is_new_try = state == "intent" and earlier.state != "intent"
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
    """Return the decisions for which ``condition`` (SQL of ours) holds.

    What is damaged on the disk is left out: it might say that a POST was begun.
    """
    query = f"""SELECT key, event_id, sequence, state, posted, data, rule, message,
        checksum FROM approvals WHERE {condition}"""  # noqa: S608 - conditions of ours  # nosec B608
    found = (_decision(row) for row in db.execute(query, values))
    return [decision for decision in found if decision is not None]


def _decision(row: tuple[Any, ...]) -> Decision | None:
    *columns, message, checksum = row
    if checksum is not None and checksum != checksum_of_decision(*columns):
        tell_of_damage("approval")
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
