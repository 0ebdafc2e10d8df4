"""What every handling of an approval works with."""

from collections.abc import Callable
from dataclasses import dataclass

from bridge.approvals.envelope import ReplyRules
from bridge.approvals.looking import Starter, Watcher
from bridge.approvals.policy import Terms
from bridge.clock import Clock
from bridge.events import Teller
from bridge.outbox.store import Outbox


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """The collaborators and settings that all approvals of one entity share.

    Attributes:
        entity: what the approval entity is called in ids.
        abandons_unknown: whether a message about an event that is not known here is
            given back: another VM may know it.
        chance: a random number in [0, 1) at each call.
        count: called with each outcome.
    """

    entity: str
    terms: Terms
    abandons_unknown: bool
    replies: ReplyRules
    outbox: Outbox
    teller: Teller
    watcher: Watcher
    starter: Starter
    clock: Clock
    chance: Callable[[], float]
    count: Callable[[str], None]
