"""What is known and decided of one event, as a Service Bus session state. Pure."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Self

from approver.announcements import ENDS
from approver.buttons import Action
from approver.people import person_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """A person's approval.

    Attributes:
        user: the id of the person: of Slack, or an object id.
        click: what tells this click from others, so that it counts once.
        name: what Teams calls the person; "" for Slack.
    """

    user: str
    click: str
    name: str = ""

    @property
    def person(self) -> str:
        """The name of the person in approvals."""
        return person_of(self.user)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What was decided on an event.

    Attributes:
        action: approve or refuse.
        by: who decided.
        reason: in words.
        time: when, RFC 3339.
        request_id: MessageId of the StartRequest.
        reply_to: the approval entity.
        session: of the approval entity.
        click: the one that decided; empty where it was none.
        is_sent: whether the StartRequest is on the queue.
        names: what Teams calls those in ``by``, in their order.
        signature: of the StartRequest; "" = it is not signed.
    """

    action: Action
    by: tuple[str, ...]
    reason: str
    time: str
    request_id: str
    reply_to: str
    session: str | None
    click: str = ""
    is_sent: bool = False
    names: tuple[str, ...] = ()
    signature: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A step of the event, or the outcome of an approval, for the card in Teams.

    Attributes:
        id: of the CloudEvent.
        what: a transition or an outcome.
        time: RFC 3339.
        by: who approved, as claimed; "" for a step.
        because: the reason of an outcome; "" if none was said.
    """

    id: str
    what: str
    time: str
    by: str = ""
    because: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """The card of an event in Teams.

    Attributes:
        activity: its id; "" = it is not posted yet.
        shown: the fingerprint of what it shows; "" = not what it should.
        until: when it must be looked at because time has passed, RFC 3339; "" = never.
    """

    activity: str = ""
    shown: str = ""
    until: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ballot:
    """What is known and decided of one event.

    Attributes:
        event: the IMDS object as announced last.
        time: of that announcement, RFC 3339.
        is_whole: False when not all its Resources are known.
        reply_to: the approval entity that was named last.
        session: of that entity.
        votes: approvals of the event as it is now.
        decision: None while it is open.
        step: the last transition.
        not_before: when Azure starts the event by itself, RFC 3339; None: not known.
        trail: its steps and outcomes, oldest first: the first one and the last ones.
        notice: its card in Teams; None: there is none.
        source: of the announcement.
        deleted: the clicks of votes that a refusal has deleted.
    """

    event: Mapping[str, object]
    time: str
    is_whole: bool = True
    reply_to: str | None = None
    session: str | None = None
    votes: tuple[Vote, ...] = ()
    decision: Decision | None = None
    step: str = "scheduled"
    not_before: str | None = None
    trail: tuple[Mark, ...] = ()
    notice: Notice | None = None
    source: str = ""
    deleted: tuple[str, ...] = ()

    @property
    def is_over(self) -> bool:
        """Whether the event is gone."""
        return self.step in ENDS

    @property
    def names(self) -> tuple[str, ...]:
        """The Resources."""
        found = self.event.get("Resources")
        return tuple(map(str, found)) if isinstance(found, list) else ()

    @property
    def is_started(self) -> bool:
        """Whether there is nothing left to approve."""
        return self.event.get("EventStatus") == "Started"

    @property
    def is_refused(self) -> bool:
        """Whether it was refused last; it can still be approved."""
        return self.decision is not None and self.decision.action == "refuse"

    @property
    def unsent(self) -> Decision | None:
        """The decision whose StartRequest is not known to be on the queue."""
        found = self.decision
        wanted = found is not None and found.action == "approve" and not found.is_sent
        return found if wanted else None

    def to_bytes(self) -> bytes:
        """Return it as a session state."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, state: bytes | None) -> Self | None:
        """Return what a session state holds; None: nothing is known of the event."""
        if not state:
            return None
        members = json.loads(state)
        votes = tuple(Vote(**each) for each in members["votes"])
        trail = tuple(Mark(**each) for each in members.get("trail", ()))
        notice = members.get("notice")
        read = {
            "votes": votes,
            "decision": _decision_of(members["decision"]),
            "trail": trail,
            "notice": None if notice is None else Notice(**notice),
            "deleted": tuple(members.get("deleted", ())),
        }
        return cls(**{**members, **read})


def _decision_of(members: dict[str, object] | None) -> Decision | None:
    if members is None:
        return None
    found = Decision(**members)  # type: ignore[arg-type]  # as to_bytes wrote it
    return replace(found, by=tuple(found.by), names=tuple(found.names))
