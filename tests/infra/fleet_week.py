"""A week of a fleet's events, and what the rules of infra/siem find in them.

``python -m tests.infra.fleet_week`` writes ``config/examples/events.ndjson`` and the
list of findings in ``infra/siem/README.md``. The documents are made up; the events are
made of them by the forwarder's own code (diff, transition, outcome, result of a
command), one forwarder for each VM. No clock and no chance: the same bytes each time.
"""

import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from msgspec.structs import replace as with_fields

from bridge.events.build import (
    EventContext,
    Outcome,
    from_outcome,
    from_transition,
)
from bridge.events.cloudevent import CloudEvent, rfc3339
from bridge.events.command_result import CommandResult, from_command
from bridge.events.document import ScheduledEvent, parse
from bridge.events.identity import Identity
from bridge.events.transitions import diff
from bridge.events.watch import Moment, Watch
from tests.support.builders import own_event

ROOT = Path(__file__).parents[2]
FILE = ROOT / "config" / "examples" / "events.ndjson"
PAGE = ROOT / "infra" / "siem" / "README.md"
MONDAY = datetime(2026, 3, 2, tzinfo=UTC)
_GROUP = "/subscriptions/8d10da13-8125-4ba9-a717-bf7490507b3d/resourceGroups/shop"
_SPACE = uuid.UUID("6f1c9d52-3f0e-4d0b-8a63-2f0a5b1c7e44")
NAMES = (*(f"web-{n}" for n in range(8)), *(f"db-{n}" for n in range(3)), "batch-0")
Raw = dict[str, object]


def at(day: int, clock: str) -> datetime:
    """Return a time of the week; day 0 is Monday."""
    hours, minutes = map(int, clock.split(":"))
    return MONDAY + timedelta(days=day, hours=hours, minutes=minutes)


@dataclass
class Vm:
    """A VM with its forwarder, which looks at a document each second.

    Attributes:
        is_durable: whether its state file can be written.
    """

    name: str
    watch: Watch = field(default_factory=Watch)
    number: int = 1
    is_durable: bool = True

    @property
    def event_context(self) -> EventContext:
        scale_set = self.name.partition("-")[0]
        me = Identity(
            vm_name=self.name,
            vm_id=str(uuid.uuid5(_SPACE, self.name)),
            resource_id=f"{_GROUP}/providers/Microsoft.Compute"
            f"/virtualMachines/{self.name}",
            location="westeurope",
            vm_scale_set_name=scale_set if scale_set == "web" else None,
        )
        return EventContext(
            prefix="sebridge", source=me.source or "", identity=me, version="0.1.0"
        )

    def look(self, now: datetime, *events: Raw) -> Iterator[CloudEvent]:
        """Show the document, after one that was as before a second ago."""
        if self.watch.seen is not None:
            seen = Moment(at=now - timedelta(seconds=1), monotonic=None)
            self.watch = with_fields(
                self.watch,
                seen=seen,
                known={
                    key: with_fields(known, seen=seen)
                    for key, known in self.watch.known.items()
                },
            )
        self.number += 1
        body = json.dumps({"DocumentIncarnation": self.number, "Events": events})
        moment = Moment(at=now, monotonic=None)
        document = parse(body.encode())
        self.watch, steps = diff(self.watch, document, moment, poll_interval=1.0)
        for step in steps:
            found = from_transition(
                self.event_context,
                step,
                incarnation=self.number,
                observed_at=now,
                repeats=0,
            )
            yield self.marked(found.event)

    def marked(self, event: CloudEvent) -> CloudEvent:
        """Return an event as the outbox tells it while the disk fails."""
        more = {} if self.is_durable else {"durable": False}
        return replace(event, data={**event.data, **more})

    def says(self, what: str, now: datetime, **more: object) -> CloudEvent:
        found = own_event(self.event_context, what, observed_at=now).event
        return self.marked(replace(found, data={**found.data, **more}))

    def answers(
        self, outcome: str, raw: Raw, who: str | None, now: datetime
    ) -> CloudEvent:
        event = ScheduledEvent(event_id=str(raw["EventId"]), raw=raw)
        message = str(uuid.uuid5(_SPACE, f"{who} {raw['EventId']}"))
        found = Outcome(
            outcome=outcome,
            event_id=event.event_id,
            event=event,
            imds_status=200 if outcome == "relayed" else None,
            confirmed=True if outcome == "relayed" else None,
            reason=None if outcome == "relayed" else f"{outcome}: see the log",
            request={
                "messageId": message,
                "enqueuedAt": rfc3339(now - timedelta(seconds=2)),
                "approvedBy": who,
                "reason": "drained",
                "expiresAt": None,
            },
            origin=("vm-approvals", message, 1),
        )
        return from_outcome(self.event_context, found, now).event

    def ran(self, outcome: str, cause: CloudEvent, now: datetime) -> CloudEvent:
        has_failed = outcome == "failed"
        result = CommandResult(
            sink="drain",
            outcome=outcome,
            action="prepare",
            cause=cause,
            exit_code=int(has_failed),
            signal=None,
            timed_out=False,
            seconds=4.2,
            attempts=3 if has_failed else 1,
            output="cannot evict pod" if has_failed else None,
            reason="exit code 1" if has_failed else None,
        )
        return from_command(self.event_context, result, now).event


def raw_event(
    name: str, kind: str, machines: tuple[str, ...], start: datetime, **more: object
) -> Raw:
    """Return an object of IMDS."""
    return {
        "EventId": str(uuid.uuid5(_SPACE, name)).upper(),
        "EventStatus": "Scheduled",
        "EventType": kind,
        "ResourceType": "VirtualMachine",
        "Resources": list(machines),
        "NotBefore": format_datetime(start, usegmt=True),
        "Description": f"{kind} of {', '.join(machines)}",
        "EventSource": "Platform",
        "DurationInSeconds": 9 if kind == "Freeze" else -1,
        **more,
    }


def begun(raw: Raw) -> Raw:
    """Return an event as it is once it has started."""
    return {**raw, "EventStatus": "Started", "NotBefore": ""}


MINUTE = timedelta(minutes=1)


def week() -> list[CloudEvent]:
    """Return the events of the week, in the order of their times."""
    fleet = {name: Vm(name) for name in NAMES}
    parts = (_start, _usual, _user, _host_failure, _refused, _many, _short, _failed)
    later = (_disk, _imds, _newcomer, _dead, _beats)
    found = [event for part in (*parts, *later) for event in part(fleet)]
    return sorted(found, key=lambda event: (event.time, event.id))


Fleet = Mapping[str, Vm]


def _life(vm: Vm, raw: Raw, now: datetime, notice: timedelta) -> Iterator[CloudEvent]:
    yield from vm.look(now, raw)
    yield from vm.look(now + notice, begun(raw))
    yield from vm.look(now + notice + MINUTE)


def _start(fleet: Fleet) -> Iterator[CloudEvent]:
    for number, vm in enumerate(fleet.values()):
        now = at(0, "00:00") + timedelta(seconds=number)
        yield vm.says("started", now)
        yield from vm.look(now)


def _usual(fleet: Fleet) -> Iterator[CloudEvent]:
    """A freeze of two machines that both see it, and tell it with one id."""
    now = at(0, "02:00")
    raw = raw_event("usual", "Freeze", ("db-0", "db-1"), now + 15 * MINUTE)
    for name in ("db-0", "db-1"):
        yield from _life(fleet[name], raw, now, 15 * MINUTE)


def _user(fleet: Fleet) -> Iterator[CloudEvent]:
    now, vm = at(0, "10:00"), fleet["web-1"]
    start = now + 15 * MINUTE
    raw = raw_event("user", "Reboot", ("web-1",), start, EventSource="User")
    yield from vm.look(now, raw)
    yield vm.answers("relayed", raw, "ada@contoso.com", now + 3 * MINUTE)
    yield from vm.look(now + 4 * MINUTE, begun(raw))
    yield from vm.look(now + 5 * MINUTE)


def _host_failure(fleet: Fleet) -> Iterator[CloudEvent]:
    now, vm = at(1, "03:00"), fleet["db-1"]
    raw = begun(raw_event("failure", "Reboot", ("db-1",), now))
    yield from vm.look(now, raw)
    yield from vm.look(now + 6 * MINUTE)


def _refused(fleet: Fleet) -> Iterator[CloudEvent]:
    now, vm = at(1, "09:00"), fleet["web-2"]
    raw = raw_event("refused", "Redeploy", ("web-2",), now + 15 * MINUTE)
    yield from vm.look(now, raw)
    yield vm.answers("denied", raw, "mallory@example.org", now + MINUTE)
    yield vm.answers("failed", raw, "ada@contoso.com", now + 2 * MINUTE)
    yield from vm.look(now + 5 * MINUTE)


def _many(fleet: Fleet) -> Iterator[CloudEvent]:
    for number, name in enumerate(NAMES):
        now = at(2, "04:01") + timedelta(seconds=45 * number)
        raw = raw_event(f"many {name}", "Freeze", (name,), now + 15 * MINUTE)
        yield from _life(fleet[name], raw, now, 15 * MINUTE)


def _short(fleet: Fleet) -> Iterator[CloudEvent]:
    now, vm = at(3, "12:00"), fleet["batch-0"]
    raw = raw_event("short", "Preempt", ("batch-0",), now + MINUTE / 2)
    yield from vm.look(now, raw)
    yield from vm.look(now + MINUTE)


def _failed(fleet: Fleet) -> Iterator[CloudEvent]:
    now, vm = at(3, "15:00"), fleet["web-3"]
    raw = raw_event("failed", "Redeploy", ("web-3",), now + 15 * MINUTE)
    (cause,) = vm.look(now, raw)
    yield cause
    yield vm.ran("failed", cause, now + MINUTE)
    yield from vm.look(now + 2 * MINUTE)


def _disk(fleet: Fleet) -> Iterator[CloudEvent]:
    now, vm = at(4, "01:00"), fleet["web-4"]
    vm.is_durable = False
    raw = raw_event("disk", "Freeze", ("web-4",), now + 15 * MINUTE)
    yield from _life(vm, raw, now, 15 * MINUTE)
    vm.is_durable = True


def _imds(fleet: Fleet) -> Iterator[CloudEvent]:
    vm = fleet["web-5"]
    yield vm.says("imds-unreachable", at(4, "06:00"), reason="no answer")
    yield vm.says("imds-recovered", at(4, "06:40"))


def _newcomer(fleet: Fleet) -> Iterator[CloudEvent]:
    now, vm = at(5, "11:00"), fleet["web-6"]
    raw = raw_event("newcomer", "Redeploy", ("web-6",), now + 15 * MINUTE)
    yield from vm.look(now, raw)
    yield vm.answers("relayed", raw, "eve@contoso.com", now + MINUTE)
    yield from vm.look(now + 2 * MINUTE, begun(raw))
    yield from vm.look(now + 4 * MINUTE)


def _dead(fleet: Fleet) -> Iterator[CloudEvent]:
    """A heartbeat, and one that counts two dead letters."""
    for clock, dead in (("17:00", 0), ("18:10", 2)):
        numbers = {"pending": 0, "dead": dead, "freeDiskBytes": 9 * 10**9}
        yield fleet["web-7"].says("heartbeat", at(5, clock), **numbers)
    yield fleet["web-7"].says("stopped", at(5, "18:15"))


def _beats(fleet: Fleet) -> Iterator[CloudEvent]:
    """Heartbeats of the last evening: db-2 falls silent, batch-0 stops in order."""
    numbers = {"pending": 0, "dead": 0, "freeDiskBytes": 9 * 10**9}
    for number in range(18):
        now = at(6, "21:00") + number * 10 * MINUTE
        for name in ("web-0", "web-1", "db-2", "batch-0"):
            if name in {"web-0", "web-1"} or number < 4:
                yield fleet[name].says("heartbeat", now, **numbers)
    yield fleet["batch-0"].says("stopped", at(6, "21:40"))


# -- what the rules find -----------------------------------------------------------

Event = dict[str, Any]


def _step(event: Event, *steps: str) -> bool:
    is_event = ".scheduledevent." in event["type"]
    return is_event and event["data"]["transition"] in steps


def _outcome(event: Event, *outcomes: str) -> bool:
    return ".startrequest." in event["type"] and event["data"]["outcome"] in outcomes


def _by_user(event: Event) -> bool:
    found = (event.get("eventsource"), event["severitytext"])
    return _step(event, "scheduled") and found == ("User", "ERROR")


def _is_short(event: Event) -> bool:
    return _step(event, "scheduled") and event["data"]["noticeSeconds"] < 120


def _is(kind: str) -> Callable[[Event], bool]:
    return lambda event: event["type"] == f"sebridge.{kind}.v1"


EACH: Mapping[str, Callable[[Event], bool]] = {
    "UnannouncedStart": lambda e: (
        _step(e, "started") and e["data"]["announced"] is False
    ),
    "DisruptionByUser": _by_user,
    "ApprovalRefused": lambda e: _outcome(e, "invalid", "denied"),
    "ApprovalLost": lambda e: _outcome(e, "failed", "rejected"),
    "CommandFailed": _is("command.failed"),
    "ShortNotice": _is_short,
    "ImdsUnreachable": _is("bridge.imds-unreachable"),
}


def findings(events: list[Event]) -> dict[str, list[str]]:
    """Return what each rule is to find, as ``time: what`` in the order of times."""
    once = list({event["id"]: event for event in reversed(events)}.values())[::-1]
    found = {
        name: [f"{e['time']}: {_what(e)}" for e in once if is_one(e)]
        for name, is_one in EACH.items()
    }
    return found | {
        "ApprovalByNewcomer": _newcomers(once),
        "ManyMachines": _crowds(once),
        "NotDurable": _first(once, lambda e: e["data"].get("durable") is False),
        "DeadLetters": _first(once, lambda e: e["data"].get("dead", 0) > 0),
        "BridgeSilent": _silent(events),
    }


def _what(event: Event) -> str:
    vm = event["data"]["reporter"]["vmName"]
    return f"{event.get('eventtype') or event['type'].split('.')[-2]}, reported by {vm}"


def _newcomers(events: list[Event]) -> list[str]:
    names: dict[str, str] = {}
    for event in events:
        if _outcome(event, "relayed", "already-started"):
            who = event["data"]["request"]["approvedBy"]
            names.setdefault(who, f"{event['time']}: {who}")
    return list(names.values())


def _crowds(events: list[Event]) -> list[str]:
    """Count the machines of each quarter of an hour."""
    quarters: dict[datetime, set[str]] = {}
    for event in events:
        if _step(event, "scheduled", "started"):
            moment = datetime.fromisoformat(event["time"])
            quarter = moment.replace(
                minute=moment.minute // 15 * 15, second=0, microsecond=0
            )
            names = quarters.setdefault(quarter, set())
            names.update(event["data"]["event"]["Resources"])
    return [
        f"{rfc3339(quarter)}: {len(names)} machines"
        for quarter, names in quarters.items()
        if len(names) >= 10
    ]


def _first(events: list[Event], is_one: Callable[[Event], bool]) -> list[str]:
    """Return the first event of each VM."""
    found: dict[str, str] = {}
    for event in filter(is_one, events):
        vm = event["data"]["reporter"]["vmName"]
        found.setdefault(vm, f"{event['time']}: {vm}")
    return list(found.values())


def _silent(events: list[Event]) -> list[str]:
    """Return who has said nothing for half an hour at the end of the week."""
    last: dict[str, Event] = {}
    for event in events:
        if event["type"].split(".")[-2] in {"heartbeat", "stopped"}:
            last[event["data"]["reporter"]["vmName"]] = event
    end = MONDAY + timedelta(days=7) - timedelta(minutes=30)
    return [
        f"from {event['time']} on: {vm}"
        for vm, event in last.items()
        if "heartbeat" in event["type"] and datetime.fromisoformat(event["time"]) < end
    ]


def lines() -> str:
    """Return the file."""
    return "".join(f"{event.to_json().decode()}\n" for event in week())


def listed() -> str:
    """Return the rows of the table of findings."""
    found = findings([json.loads(line) for line in lines().splitlines()])
    rows = (f"| {name} | {'<br>'.join(what)} |" for name, what in found.items())
    return "\n".join(rows) + "\n"


HEAD = "| rule | findings |\n|---|---|\n"


def with_findings(page: str) -> str:
    """Return the page with the rows as they are to be."""
    before, _, after = page.partition(HEAD)
    rest = after.split("\n")
    while rest and rest[0].startswith("|"):
        rest.pop(0)
    return before + HEAD + listed() + "\n".join(rest)


if __name__ == "__main__":
    FILE.write_text(lines(), encoding="utf-8")
    PAGE.write_text(with_findings(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
