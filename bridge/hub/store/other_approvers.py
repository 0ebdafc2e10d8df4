"""Finds people who approve without this hub, by outcomes of approvals it did not send.

A Functions app on the same approval entity would count votes of its own, for example.
"""

from dataclasses import dataclass
from datetime import datetime

import orjson
from sqlalchemy import Connection, select

from bridge.events.build import clean
from bridge.hub.facts import Kind, table, text
from bridge.hub.store.rows import moment_of
from bridge.hub.store.tables import decisions, messages

_MOST = 500  # the newest outcomes are enough to see whether somebody else approves
_LONGEST = 100
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherApprover:
    """A person who has approved an event without this hub.

    Attributes:
        name: the name in the approval, not verified; "" = it had none.
        heard: when the latest outcome of such an approval was enqueued.
        event_id: the EventId of that outcome.
    """

    name: str
    heard: datetime
    event_id: str


def other_approvers(connection: Connection) -> list[OtherApprover]:
    """Return the people who have approved without this hub, the latest first.

    Approvals by the rules of bridges have no MessageId, and do not count.
    """
    of = messages.c
    query = select(of.body, of.heard, of.event_key)
    outcomes = query.where(of.kind == Kind.OUTCOME.value).order_by(of.seq.desc())
    rows = connection.execute(outcomes.limit(_MOST)).all()
    asked = [(row, _request(row.body)) for row in rows]
    ids = {message_id for _, (message_id, _) in asked if message_id}
    known = select(decisions.c.id).where(decisions.c.id.in_(ids))
    ours = set(connection.scalars(known))
    found: dict[str, OtherApprover] = {}
    for row, (message_id, name) in asked:
        if message_id and message_id not in ours:
            heard = moment_of(row.heard)
            one = OtherApprover(name=name, heard=heard, event_id=row.event_key)
            found.setdefault(name, one)
    return list(found.values())


def _request(body: bytes) -> tuple[str, str]:
    """Return the MessageId of an approval, and the name of the approver in it."""
    data = table(orjson.loads(body.removeprefix(_BOM)).get("data"))
    asked = table(data.get("request"))
    name = clean(text(asked.get("approvedBy"))[:_LONGEST])
    return text(asked.get("messageId")), name
