"""What the message of one EventId shows, and how a step changes it. Pure.

    nothing ──first step──▶ card ──step──▶ card … ──completed, cancelled, ended──▶ over
                             ▲                                                      │
                             └──────────── the EventId returns: a new card ─────────┘

Steps older than what is shown change nothing: a dead letter that is sent again tells
its news in the thread alone.
"""

from datetime import UTC, datetime

import msgspec

from bridge.events.cloudevent import CloudEvent
from bridge.events.samples import TEST_ATTRIBUTE

_GONE = frozenset({"completed", "cancelled", "ended"})
_DECIDING = frozenset({"relayed", "already-started", "event-ended"})
_CUTS = ("Resources", "event")  # of data.truncated
_MOST_RULINGS = 3


class Ruling(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an approval, or of a command.

    Attributes:
        id: of the CloudEvent that told it.
        command: the name of its sink, and what it was run for; "" = an approval.
        by: who approved, as claimed; "" = not said.
        reason: theirs.
        because: why it had this outcome.
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
    """A message that tells of one EventId, and all that it is drawn from.

    Attributes:
        event: the IMDS object, as told last.
        step: the last transition; "" where only an approval told of the event.
        time: of that step, RFC 3339.
        not_before: RFC 3339; None = not known, or it has started.
        event_context: name of the VM that told it.
        is_whole: False where not all Resources are known.
        is_test: whether the event was made up, to try the way.
        rulings: what became of the last approvals.
        channel: where the message is.
        ts: which one it is; "" = it is yet to be posted.
        replied: id of the CloudEvent that its thread was told of last.
        buttons_until: when its buttons go, seconds since the epoch; None = there
            are none that go by themselves.
    """

    event: dict[str, object]
    step: str
    time: str
    not_before: str | None
    event_context: str
    is_whole: bool = True
    is_test: bool = False
    rulings: tuple[Ruling, ...] = ()
    channel: str = ""
    ts: str = ""
    replied: str = ""
    buttons_until: float | None = None

    @property
    def status(self) -> str:
        """The step, or, of an update, what the event is now."""
        if self.step not in {"updated", ""}:
            return self.step
        found = {"Scheduled": "scheduled", "Started": "started"}
        return found.get(str(self.event.get("EventStatus")), self.step or "updated")

    @property
    def is_over(self) -> bool:
        """Whether the event is gone."""
        return self.step in _GONE

    def can_be_decided(self, now: datetime) -> bool:
        """Whether an approval still makes a difference."""
        until = moment(self.not_before)
        return (
            self.status == "scheduled"
            and not self.is_test
            and not any(ruling.outcome in _DECIDING for ruling in self.rulings)
            and (until is None or now < until)
        )

    def to_bytes(self) -> bytes:
        """Return what ``from_bytes`` reads."""
        return msgspec.json.encode(self)

    @classmethod
    def from_bytes(cls, value: bytes | None) -> "Card | None":
        """Read a card; None where there is none, or none that can be read."""
        try:
            return None if value is None else msgspec.json.decode(value, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None  # of another version, or damaged: a new message is posted


def after(card: Card | None, event: CloudEvent) -> Card | None:
    """Return the card once it shows an event; the same one if that changes nothing.

    None where the event is about no EventId whose Resources are known.
    """
    family, what = family_of(event.type)
    raw = event.data.get("event")
    if family == "scheduledevent" and isinstance(raw, dict):
        return _after_step(card, event, what)
    if family in {"startrequest", "command"} and (
        card is not None or isinstance(raw, dict)
    ):
        return _after_ruling(card or _fresh(event, ""), event, what)
    return None


def command_of(event: CloudEvent) -> str:
    """Return which command an event tells of, and what it was run for; "" = of none."""
    if family_of(event.type)[0] != "command":
        return ""
    names = (_text(event.data.get("sink")), _text(event.data.get("action")))
    return " ".join(filter(None, names)) or "command"


def key_of(event: CloudEvent) -> str | None:
    """Return what the card of an event is kept under."""
    event_id = event.text("correlationid")
    return None if event_id is None else event_id.upper()


def family_of(kind: str) -> tuple[str, str]:
    """Return ``scheduledevent`` and ``started`` of ``x.scheduledevent.started.v1``."""
    parts = kind.split(".")
    return (parts[-3], parts[-2]) if len(parts) >= 3 else ("", kind)


def moment(text: object) -> datetime | None:
    """Read RFC 3339; None where it is none."""
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
    request = event.data.get("request")
    asked = request if isinstance(request, dict) else {}
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
    """Return the last rulings, and never without one that decided."""
    if len(rulings) <= _MOST_RULINGS:
        return rulings
    decided = [each for each in rulings if each.outcome in _DECIDING][-1:]
    others = [each for each in rulings if each.outcome not in _DECIDING]
    chosen = [*decided, *others[len(decided) - _MOST_RULINGS :]]
    return tuple(each for each in rulings if each in chosen)


def _fresh(event: CloudEvent, step: str) -> Card:
    raw, reporter = event.data.get("event"), event.data.get("reporter")
    truncated = event.data.get("truncated")
    return Card(
        event=raw if isinstance(raw, dict) else {},
        step=step,
        time=event.time,
        not_before=_text(event.data.get("notBefore")) or None,
        event_context=_text(
            reporter.get("vmName") if isinstance(reporter, dict) else None
        ),
        is_whole=not (
            isinstance(truncated, list) and any(cut in truncated for cut in _CUTS)
        ),
        is_test=event.text(TEST_ATTRIBUTE) is not None,
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
