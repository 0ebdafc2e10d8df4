"""Messages of the app to itself, on the queue of the clicks, for a later time. Pure.

show    let the card in Teams show what is known: it could not be shown before, or
        its NotBefore passes
forget  delete the state of an event that is over
"""

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

from approver.errors import UnreadableError
from approver.loading import load

_MARK = "reminder"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reminder:
    """What is to be done.

    Attributes:
        what: see above.
        event_id: of the event.
        tries: how often Teams has refused it in a row.
    """

    what: Literal["show", "forget"]
    event_id: str
    tries: int = 0

    def to_bytes(self) -> bytes:
        """Return it as the body of a message."""
        return json.dumps({_MARK: asdict(self)}, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, body: bytes) -> Self | None:
        """Read the result of ``to_bytes``; None: it is something else."""
        try:
            members: Any = load(body, "the message")
            return cls(**members[_MARK])
        except (UnreadableError, TypeError, KeyError):
            return None
