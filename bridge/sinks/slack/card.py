"""The content of the message of one EventId, and how each step changes it. Pure.

    nothing ──first step──▶ card ──step──▶ card … ──completed, cancelled, ended──▶ over
                             ▲                                                      │
                             └──────────── the EventId returns: a new card ─────────┘

Steps older than the shown one change nothing: a dead letter that is sent again appears
in the thread only.
"""

from datetime import UTC, datetime

import msgspec

from bridge.events.cloudevent import CloudEvent, link_of
from bridge.events.samples import TEST_ATTRIBUTE
from bridge.events.vocabulary import GONE, NOTHING_TO_APPROVE
from bridge.events.wording import family_of, table

_CUTS = ("Resources", "event")  # of data.truncated
_MOST_RULINGS = 3


class Ruling(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an approval or of a command.

    Attributes:
        id: the id of its CloudEvent.
        command: the command's sink and its action; "" = this is an approval.
        by: who approved, as claimed; "" = not given.
        reason: the approver's reason.
        because: the reason for the outcome.
        time: RFC 3339.
    """

    id: str
    outcome: str
    by: str
    reason: str
    because: str
    time: str
    command: str = ""


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """The message of one EventId: everything that is needed to draw it.

    Attributes:
        event: the IMDS object, as last published.
        step: the last transition; "" if only an approval named the event so far.
        time: the time of that step, RFC 3339.
        not_before: RFC 3339; None = not known, or the event has started.
        reported_by: the name of the VM that published the event; "" = not known.
        is_whole: False if not all Resources are known.
        is_test: whether this is a test event.
        rulings: the results of the last approvals and commands.
        channel: the channel of the message.
        ts: Slack's id of the message; "" = not posted yet.
        replied: id of the last CloudEvent that was posted in the thread.
        buttons_until: when the buttons must be removed, seconds since the epoch; None =
            there are none that end by time.
        link: the URL of a page about the event; "" = none.
    """

    event: dict[str, object]
    step: str
    time: str
    not_before: str | None
    reported_by: str = msgspec.field(name="event_context")  # in kept cards
    is_whole: bool = True
    is_test: bool = False
    rulings: tuple[Ruling, ...] = ()
    channel: str = ""
    ts: str = ""
    replied: str = ""
    buttons_until: float | None = None
    link: str = ""

    @property
    def status(self) -> str:
        """The step; after an update, the status of the event."""
        if self.step not in {"updated", ""}:
            return self.step
        found = {"Scheduled": "scheduled", "Started": "started"}
        return found.get(str(self.event.get("EventStatus")), self.step or "updated")

    @property
    def is_over(self) -> bool:
        """Whether the event is gone."""
        return self.step in GONE

    def can_be_decided(self, now: datetime) -> bool:
        """Whether an approval would still have an effect."""
        until = moment(self.not_before)
        return (
            self.status == "scheduled"
            and not self.is_test
            and not any(ruling.outcome in NOTHING_TO_APPROVE for ruling in self.rulings)
            and (until is None or now < until)
        )

    def to_bytes(self) -> bytes:
        """Return the bytes that ``from_bytes`` reads."""
        return msgspec.json.encode(self)

    @classmethod
    def from_bytes(cls, value: bytes | None) -> "Card | None":
        """Read a card; None if there is none, or if it cannot be read."""
        try:
            return None if value is None else msgspec.json.decode(value, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None  # of another version, or damaged: a new message will be posted


def after(card: Card | None, event: CloudEvent) -> Card | None:
    """Return the card after an event; the same card if the event changes nothing.

    None if the event has no EventId, or no known Resources.
    """
    family, what = family_of(event)
    raw = event.data.get("event")
    if family == "scheduledevent" and isinstance(raw, dict):
        return _after_step(card, event, what)
    if family in {"startrequest", "command"} and (
        card is not None or isinstance(raw, dict)
    ):
        return _after_ruling(card or _fresh(event, ""), event, what)
    return None


def command_of(event: CloudEvent) -> str:
    """Return the command and action of an event; "" = it is not about a command."""
    if family_of(event)[0] != "command":
        return ""
    names = (_text(event.data.get("sink")), _text(event.data.get("action")))
    return " ".join(filter(None, names)) or "command"


def key_of(event: CloudEvent) -> str | None:
    """Return the key of an event's card in the memory."""
    event_id = event.text("correlationid")
    return None if event_id is None else event_id.upper()


def moment(text: object) -> datetime | None:
    """Parse an RFC 3339 time; None if it is not one."""
    if not isinstance(text, str):
        return None
    try:
        found = datetime.fromisoformat(text).astimezone(UTC)
        found.timestamp()
    except (ValueError, OverflowError, OSError):
        return None
    return found


def _after_step(card: Card | None, event: CloudEvent, step: str) -> Card:
    if card is None:
        return _fresh(event, step)
    seen, shown = moment(event.time), moment(card.time)
    if seen is not None and shown is not None and seen < shown:
        return card
    fresh = _fresh(event, step)
    if card.is_over and not fresh.is_over:
        return fresh
    return msgspec.structs.replace(
        fresh,
        rulings=card.rulings,
        channel=card.channel,
        ts=card.ts,
        replied=card.replied,
        buttons_until=card.buttons_until,
    )


def _after_ruling(card: Card, event: CloudEvent, outcome: str) -> Card:
    asked = table(event.data.get("request"))
    ruling = Ruling(
        id=event.id,
        outcome=outcome,
        by=_text(asked.get("approvedBy")),
        reason=_text(asked.get("reason")),
        because=_text(event.data.get("reason")),
        time=event.time,
        command=command_of(event),
    )
    if any(each.id == event.id for each in card.rulings):
        return card
    return msgspec.structs.replace(card, rulings=_few((*card.rulings, ruling)))


def _few(rulings: tuple[Ruling, ...]) -> tuple[Ruling, ...]:
    """Return the last rulings; one that decided is always among them."""
    if len(rulings) <= _MOST_RULINGS:
        return rulings
    decided = [each for each in rulings if each.outcome in NOTHING_TO_APPROVE][-1:]
    others = [each for each in rulings if each.outcome not in NOTHING_TO_APPROVE]
    chosen = [*decided, *others[len(decided) - _MOST_RULINGS :]]
    return tuple(each for each in rulings if each in chosen)


def _fresh(event: CloudEvent, step: str) -> Card:
    truncated = event.data.get("truncated")
    return Card(
        event=dict(table(event.data.get("event"))),
        step=step,
        time=event.time,
        not_before=_text(event.data.get("notBefore")) or None,
        reported_by=_text(table(event.data.get("reporter")).get("vmName")),
        is_whole=not (
            isinstance(truncated, list) and any(cut in truncated for cut in _CUTS)
        ),
        is_test=event.text(TEST_ATTRIBUTE) is not None,
        link=link_of(event),
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
