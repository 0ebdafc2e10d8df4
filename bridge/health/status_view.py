"""Turns the status into titles, notices and tables, for the page and for the shell.

The status contains values from outside: IMDS's events, and what approvers wrote. In
these, a value of an unexpected type counts as absent; control characters are escaped
in every text. Pure.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Literal

from msgspec import Struct, structs

from bridge.events.document import bare, parse_time
from bridge.events.vocabulary import NOTHING_TO_APPROVE, OutcomeKind
from bridge.events.wording import table
from bridge.foundation.printable import printable
from bridge.health.report import (
    ImdsReport,
    ReceiverReport,
    RepliesReport,
    SinkReport,
    StatusReport,
)

Mood = Literal["", "good", "warning", "bad"]


class Cell(Struct, frozen=True):
    """One value.

    Attributes:
        text: the text at the time of the status.
        mood: whether the value is good or bad news; "" = neither.
        moment: the time until which, or since which, ``text`` gives the duration; None
            if ``text`` is not a duration.
    """

    text: str
    mood: Mood = ""
    moment: datetime | None = None


class Table(Struct, frozen=True, kw_only=True):
    """A table with heads and rows; without rows, the text ``empty`` is shown."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    empty: str


_MOST_RESOURCES = 10
_MOST_EVENTS = 100
_LONG = 120  # seconds: a notice is shown if a delivery waits longer
_NOBODY_ANSWERS = "No forwarder answers. This is the content of its state file."
_TEST = "sebridge check --connect"
_UNTOLD = "not answering"  # the state of all where no forwarder answers
_WORDS = {
    _UNTOLD: "not known",
    "untried": "nothing sent since the start",
    "early": "waits for its time",
}
_QUIET_STATES = {
    "starting": "The bridge is starting: it asks IMDS who this VM is.",
    _UNTOLD: _NOBODY_ANSWERS,
}
_READY = Cell("Ready.", "good")


class Overview(Struct, frozen=True, kw_only=True):
    """The parts of the status that the page and the shell show.

    Attributes:
        title: how many events there are, and on which VM.
        notices: whether the bridge is ready, and what needs attention.
        facts: facts about the VM, the bridge and IMDS, by name.
        tables: the tables; the first one has the events.
    """

    title: str
    notices: tuple[Cell, ...]
    facts: tuple[tuple[str, Cell], ...]
    tables: tuple[Table, ...]


def overview(status: StatusReport, now: datetime) -> Overview:
    """Make the overview of a status."""
    me = _plain(status.vm.get("vmName"))
    others: tuple[Table, ...] = (
        _deliveries(status),
        _receivers(status.receivers, now),
        _approvals(status.approvals, now),
    )
    if status.imds.state == "starting" and status.missing is None:
        others = tuple(structs.replace(one, empty="Not known yet.") for one in others)
    return Overview(
        title=_title(len(status.document.events), me, status.imds, now),
        notices=tuple(_notices(status)),
        facts=tuple(_facts(status, now)),
        tables=(
            _events(status, me, now),
            *others,
            *_commands(status.commands, now),
        ),
    )


def _title(count: int, vm: str, imds: ImdsReport, now: datetime) -> str:
    """Return how many events there are, and whether that is known at all."""
    where, last = f" on {vm}" if vm else "", parse_time(imds.last_success or "")
    if not count and last is None:
        return f"Scheduled events{where}: {_nothing(imds)}"
    what = "scheduled event" if count == 1 else "scheduled events"
    title = f"{count or 'No'} {what}{where}"
    if last is None or imds.state == "ok":
        return title
    return f"{title} when IMDS answered last, {countdown(last, now)}"


def _nothing(imds: ImdsReport) -> str:
    """Return what an empty list of events means."""
    if parse_time(imds.last_success or "") is not None:
        is_now = imds.state == "ok"
        then = "was scheduled when IMDS answered last"
        return "Nothing is scheduled." if is_now else f"Nothing {then}."
    if imds.state == _UNTOLD:
        return f"not known, no forwarder has read a document yet: {_TEST}"
    return f"not known, IMDS has not answered yet ({_plain(imds.state)}): {_TEST}"


def _notices(status: StatusReport) -> list[Cell]:
    texts = list(status.notes or ())
    for sink in status.sinks:
        texts += [text for text in _shortfalls(sink) if not _is_said(sink, text, texts)]
    notes = [_cell(text, "warning") for text in texts]
    if status.imds.state in _QUIET_STATES:
        return [Cell(_QUIET_STATES[status.imds.state], "warning"), *notes]
    missing = [_cell(f"Not ready: {text}", "bad") for text in status.missing or ()]
    ready = Cell("Ready, but see below.", "warning") if notes else _READY
    return [*(missing or [ready]), *notes]


def _is_said(sink: SinkReport, text: str, notes: Sequence[str]) -> bool:
    """Return whether a note has the dead letters of a sink already."""
    found = [note for note in notes if note.startswith(f"sinks.{sink.name}: ")]
    return "dead letter" in text and any("dead letter" in note for note in found)


def _shortfalls(sink: SinkReport) -> Iterator[str]:
    """Yield a text if a sink has dead letters, or deliveries that wait long."""
    if sink.dead > 0:
        what = "dead letter" if sink.dead == 1 else "dead letters"
        yield f"{sink.name}: {sink.dead} {what} (sebridge outbox list --state dead)"
    if (age := sink.oldest_seconds or 0) >= _LONG:
        yield f"{sink.name}: {sink.pending} pending, the oldest for {span(age)}"


def _facts(status: StatusReport, now: datetime) -> list[tuple[str, Cell]]:
    imds, vm = status.imds, status.vm
    mood: Mood = "good" if imds.state == "ok" else "warning"
    found = [
        *((name, _cell(vm.get(key))) for name, key in _VM_FACTS),
        ("IMDS", _cell(_spoken(imds.state), mood)),
        ("Last document", _since(imds.last_success, now)),
        ("Incarnation", _cell(status.document.incarnation)),
        ("Traffic", _traffic(status.traffic or {})),
        ("Bridge", _cell(vm.get("version"))),
    ]
    return [(name, cell) for name, cell in found if cell.text]


def _spoken(state: str) -> str:
    """Return a state in words: a forwarder that does not answer tells none."""
    return _WORDS.get(state, state)


def corrected(status: StatusReport, now: datetime) -> datetime:
    """Return a time of the VM's clock as IMDS's, to which all times belong."""
    return now - timedelta(seconds=status.clock.offset_seconds if status.clock else 0)


def _traffic(standing: Mapping[str, object]) -> Cell:
    """Return whether this VM is in rotation; empty if there is no traffic probe."""
    traffic = _text(standing, "traffic")
    if traffic != "out":
        return Cell(traffic, "good")
    why = f"{_text(standing, 'reason')} {_text(standing, 'eventId')}".strip()
    return Cell(f"out: {why}" if why else "out", "warning")


_VM_FACTS = (
    ("VM", "vmName"),
    ("VM id", "vmId"),
    ("Scale set", "vmScaleSetName"),
    ("Location", "location"),
    ("Resource", "resourceId"),
    ("Source", "source"),
)


def _events(status: StatusReport, me: str, now: datetime) -> Table:
    events, is_now = status.document.events, status.imds.state == "ok"
    withheld = {
        one.event_id: f"withheld by {one.rule}: {one.reason}"
        for one in status.withheld or ()
    }
    more = len(events) - _MOST_EVENTS
    return Table(
        title=f"Events ({len(events)}{f', {more} not shown' if more > 0 else ''})",
        heads=(
            *("Not before", "Type", "Status", "VMs", "Lasts", "From"),
            *("EventId", "Description"),
        ),
        rows=tuple(
            (
                _not_before(event, now, is_now=is_now),
                Cell(_text(event, "EventType")),
                _event_status(event, withheld.get(str(event.get("EventId")))),
                Cell(_resources(event, me)),
                Cell(_duration(event.get("DurationInSeconds"))),
                Cell(_text(event, "EventSource")),
                Cell(_text(event, "EventId")),
                Cell(_text(event, "Description")),
            )
            for event in events[:_MOST_EVENTS]
        ),
        empty=_nothing(status.imds),
    )


def _event_status(event: Mapping[str, object], why: str | None) -> Cell:
    """Return the status of an event, with why it is not approved yet."""
    status = _text(event, "EventStatus")
    if status == "Started":
        return Cell(status, "bad")
    if why is None:
        return Cell(status)
    return _cell(f"{status}, {why}", "warning")


def _not_before(event: Mapping[str, object], now: datetime, *, is_now: bool) -> Cell:
    text = _text(event, "NotBefore")
    if (moment := parse_time(text)) is None:
        is_started = _text(event, "EventStatus") == "Started"
        started = "under way" if is_now else "was under way"
        return Cell(started if is_started else text or "not said")
    return Cell(countdown(moment, now), "warning", moment)


def _resources(event: Mapping[str, object], me: str) -> str:
    found = _texts(event, "Resources")
    shown = found[:_MOST_RESOURCES]
    named = [f"{one} (this VM)" if _is_me(me, one) else one for one in shown]
    more = len(found) - len(shown)
    return ", ".join(named) + (f" and {more} more" if more else "")


def _is_me(me: str, resource: str) -> bool:
    return bool(me) and bare(resource) == bare(me)


def _duration(value: object) -> str:
    if not isinstance(value, int):
        return ""
    return "not known" if value < 0 else span(value)


def _deliveries(status: StatusReport) -> Table:
    replies, sinks = status.replies, status.sinks
    if replies != RepliesReport():
        shown = SinkReport("replies to approvals", "", **structs.asdict(replies))
        sinks = [*sinks, shown]
    return Table(
        title="Deliveries",
        heads=("Sink", "State", "Pending", "Dead", "Oldest", "Last error"),
        rows=tuple(_delivery(sink) for sink in sinks),
        empty="No sink is configured.",
    )


_SINK_MOODS: Mapping[str, Mood] = {
    "ok": "good",
    "failed": "warning",
    "retrying": "warning",
    "parked": "bad",
}


def _delivery(sink: SinkReport) -> tuple[Cell, ...]:
    mood = _SINK_MOODS.get(sink.state, "")
    if mood in {"", "good"} and (sink.last_error or any(_shortfalls(sink))):
        mood = "warning"
    return (
        _cell(sink.name),
        _cell(_spoken(sink.state), mood),
        _cell(sink.pending),
        _cell(sink.dead, "bad" if sink.dead else ""),
        Cell(_duration(sink.oldest_seconds)),
        _cell(sink.last_error),
    )


def _receivers(receivers: Sequence[ReceiverReport] | None, now: datetime) -> Table:
    return Table(
        title="Approvals come from",
        heads=("Entity", "State", "Attached for", "Last message", "Last error"),
        rows=tuple(
            (
                _cell(one.entity),
                _attachment(one),
                Cell(_duration(one.link_seconds)),
                _since(one.last_receive, now),
                _cell(one.last_error),
            )
            for one in receivers or ()
        ),
        empty="Only a running forwarder can report this."
        if receivers is None
        else "Nothing is received.",
    )


def _attachment(receiver: ReceiverReport) -> Cell:
    if receiver.attached:
        return Cell("attached", "good")
    if receiver.stands_by:
        return Cell("standing by", "good")
    return Cell("not attached", "bad")


def _approvals(outcomes: Sequence[Mapping[str, object]], now: datetime) -> Table:
    return Table(
        title="Last approvals",
        heads=("When", "Outcome", "Event", "Who", "Asked because", "Decided because"),
        rows=tuple(
            (
                _since(one.get("observedAt"), now),
                _outcome(_text(one, "outcome")),
                Cell(_approved(one)),
                Cell(_text(table(one.get("request")), "approvedBy")),
                Cell(_text(table(one.get("request")), "reason")),
                Cell(_text(one, "reason")),
            )
            for one in outcomes
        ),
        empty="There were none.",
    )


def _outcome(outcome: str) -> Cell:
    if outcome == OutcomeKind.WITHHELD:
        return Cell(outcome, "warning")  # it may still be approved
    return Cell(outcome, "good" if outcome in NOTHING_TO_APPROVE else "bad")


def _approved(outcome: Mapping[str, object]) -> str:
    kind = _text(table(outcome.get("event")), "EventType")
    return f"{kind} {_text(outcome, 'eventId')}".strip()


_COMMAND_MOODS: Mapping[str, Mood] = {"succeeded": "good", "failed": "bad"}


def _commands(
    results: Sequence[Mapping[str, object]], now: datetime
) -> Iterator[Table]:
    """Yield the table of the last commands, if there were any."""
    if results:
        yield Table(
            title="Last commands",
            heads=("When", "Sink", "Action", "Outcome", "Event", "Took", "Because"),
            rows=tuple(_command(one, now) for one in results),
            empty="",
        )


def _command(one: Mapping[str, object], now: datetime) -> tuple[Cell, ...]:
    event, outcome = table(one.get("event")), _text(one, "outcome")
    seconds = one.get("seconds")
    took = span(round(seconds)) if isinstance(seconds, float | int) else ""
    return (
        _since(one.get("observedAt"), now),
        Cell(_text(one, "sink")),
        Cell(_text(one, "action")),
        Cell(outcome, _COMMAND_MOODS.get(outcome, "warning")),
        Cell(f"{_text(event, 'EventType')} {_text(event, 'EventId')}".strip()),
        Cell(took if one.get("attempts") else ""),
        Cell(_text(one, "reason")),
    )


def _since(value: object, now: datetime) -> Cell:
    text = _cut(value) if isinstance(value, str) else ""
    moment = parse_time(text)
    return Cell(text) if moment is None else Cell(countdown(moment, now), "", moment)


# -- Reads values that may be of any type, makes them printable; never raises ----------


_LONGEST = 500  # characters of one value


def _cell(value: object, mood: Mood = "") -> Cell:
    return Cell(_plain(value), mood)


def _plain(value: object) -> str:
    """Return any value as printable text; "" for None."""
    return "" if value is None else _cut(str(value))


def _text(found: Mapping[str, object], key: str) -> str:
    """Return a string, made printable; "" if the value is not a string."""
    value = found.get(key)
    return _cut(value) if isinstance(value, str) else ""


def _cut(text: str) -> str:
    shown = printable(text[:_LONGEST])
    return shown if len(text) <= _LONGEST else f"{shown}…"


def _texts(found: Mapping[str, object], key: str) -> list[str]:
    """Return the strings of a list, made printable; empty if there is no list."""
    value = found.get(key)
    texts = value if isinstance(value, list) else []
    return [_cut(text) for text in texts if isinstance(text, str)]


# -- Durations as people read them: how long until a time, or since a time -------------


def countdown(moment: datetime, now: datetime) -> str:
    """Return how long it is until or since a time; the page's script does the same."""
    left = (moment - now).total_seconds()
    return f"in {span(int(left))}" if left > 0 else f"{span(int(-left))} ago"


def span(seconds: int) -> str:
    """Return a duration in its two largest units."""
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days} d {hour} h"
    if hours:
        return f"{hours} h {minute:02} min"
    return f"{minutes} min {second:02} s" if minutes else f"{second} s"
