"""How long the app may take before it answers a click."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """How long the app waits for the namespace while a person waits, in seconds.

    Attributes:
        store: until a click is on its queue; Slack waits three seconds for an answer.
        count: until a click in Teams is counted, or a card is read.
    """

    store: float = 2.4
    count: float = 8.0
