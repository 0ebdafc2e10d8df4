"""Deliveries as the judge has seen them committed."""

import json
from dataclasses import dataclass

from tests.simulation.plan import Event


@dataclass(frozen=True, slots=True)
class Row:
    """A delivery as it was committed, and when."""

    id: int
    sink: str
    key: str | None
    item: int
    kind: str
    body: Event
    at: float
    life: int
    is_durable: bool = True

    @property
    def message_id(self) -> str | None:
        """Of the approval that it answers, or tells the outcome of."""
        if self.kind == "reply":
            return str(json.loads(self.body["body"])["messageId"])
        if ".startrequest." not in self.body["type"]:
            return None
        found: str | None = self.body["data"]["request"]["messageId"]
        return found
