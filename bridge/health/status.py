"""The status and the readiness of the bridge, for people and machines."""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Protocol

import orjson
from msgspec import Struct, field

from bridge.events.build import EventContext, rfc3339
from bridge.events.identity import Identity
from bridge.events.watch import Watch
from bridge.foundation.clock import Clock
from bridge.imds.poller import Poller
from bridge.outbox.records import REPLIES, Tally
from bridge.outbox.store import Outbox
from bridge.pipeline.relay import Relay
from bridge.telemetry.metrics import Metrics

_RECENT = 10
_NOT_SHOWN = {"output", "reporter", "truncated"}


class Missing(StrEnum):
    """The kinds of the texts in ``/readyz``: causes of unreadiness, and notes.

    Each text begins with its kind, followed by a colon or a dot.
    """

    STARTING = "starting"
    IMDS = "imds"
    APPROVALS = "approvals"
    STATE = "state"
    SINKS = "sinks"
    TRAFFIC = "traffic"
    OTHER = "other"


class Receiver(Protocol):
    """The receiving end of an approval entity."""

    @property
    def attached(self) -> bool:
        """Whether the receiver is open."""
        ...

    @property
    def stands_by(self) -> bool:
        """Whether another bridge serves the session, and this bridge can take over."""
        ...

    @property
    def last_error(self) -> str | None:
        """Why the receiver is not attached."""
        ...

    @property
    def link_seconds(self) -> float | None:
        """How long the receiver has been attached; None while it is not."""
        ...

    @property
    def last_receive(self) -> datetime | None:
        """When a message came last; None = none yet."""
        ...


class Listening(Protocol):
    """A listener for an approval entity."""

    @property
    def source(self) -> str:
        """The name of the entity or session."""
        ...

    @property
    def is_full(self) -> bool:
        """Whether no more messages are received, because too many approvals wait."""
        ...


class Hold(Protocol):
    """An event to which an auto-approve rule applies, but which is held."""

    @property
    def event_id(self) -> str:
        """The EventId, spelled as in the document."""
        ...

    @property
    def rule(self) -> str:
        """The label of the rule."""
        ...

    @property
    def reason(self) -> str:
        """Why the event is not approved yet."""
        ...


class Approving(Protocol):
    """A worker that approves by rules."""

    @property
    def withheld(self) -> Mapping[str, Hold]:
        """The events that are held now, by key."""
        ...


class Standing(Protocol):
    """Knows whether this VM is in rotation."""

    def shown(self) -> dict[str, object]:
        """Return ``traffic`` ("in" or "out"), and why this VM is out."""
        ...


class StatusSource(Struct):
    """The parts of a running bridge that the status is read from.

    The fields are set when the parts are built.
    """

    clock: Clock
    metrics: Metrics
    outbox: Outbox | None = None
    poller: Poller | None = None
    event_context: EventContext | None = None
    relays: Sequence[Relay] = ()
    receivers: Mapping[str, Receiver] = field(default_factory=dict)
    listeners: Sequence[Listening] = ()
    auto_approvers: Sequence[Approving] = ()
    rotation: Standing | None = None

    def is_alive(self) -> bool:
        """Return whether the state file's thread answers, or memory replaces it."""
        return self.outbox is None or self.outbox.database.is_answering

    def missing(self) -> list[str]:
        """Return why the bridge is not ready: a text for each cause; empty = ready."""
        if (
            self.outbox is None
            or self.poller is None
            or self.poller.observer.is_waiting
        ):
            return ["starting: asking IMDS who this VM is"]
        found = []
        if self.poller.is_overdue():
            found.append(f"imds: no good document ({self.poller.imds_state})")
        found += [
            f"approvals: {name} is not attached ({receiver.last_error or 'not yet'})"
            for name, receiver in self.receivers.items()
            if not (receiver.attached or receiver.stands_by)
        ]
        found += [
            f"approvals: no messages are received from {one.source} (too many wait)"
            for one in self.listeners
            if one.is_full
        ]
        found += [
            f"sinks.{relay.sink}: {relay.obstacle}"
            for relay in self.relays
            if relay.obstacle is not None
        ]
        if self.outbox.database.fault:
            found.append(f"state: cannot be written ({self.outbox.database.fault})")
        return found

    def notes(self) -> list[str]:
        """Return notes that do not affect readiness, such as parked sinks."""
        standing = {} if self.rotation is None else self.rotation.shown()
        out = [standing.get(key) for key in ("reason", "eventId")]
        why = " ".join(str(part) for part in out if part)
        found = [f"traffic: out of rotation ({why})"] if why else []
        return found + [
            f"sinks.{relay.sink}: parked ({relay.last_error})"
            for relay in self.relays
            if relay.state == "parked"
        ]

    async def status(self) -> dict[str, object]:
        """Return the JSON of ``/status`` and ``sebridge status --json``."""
        if self.outbox is None or self.poller is None or self.event_context is None:
            return nothing_known(state="starting") | self._traffic()
        now = self.clock.now().timestamp()
        tallies = await self.outbox.deliveries.tallies()
        watch = self.poller.watch
        return {
            "vm": self.event_context.reporter | {"source": self.event_context.source},
            "document": document_of(watch),
            "imds": {
                "lastSuccess": rfc3339(watch.seen.at) if watch.seen else None,
                "state": self.poller.imds_state,
            },
            "sinks": [
                sink_of(relay.sink, relay.state, tallies.get(relay.sink), now)
                | ({"lastError": relay.last_error} if relay.last_error else {})
                for relay in self.relays
            ],
            "approvals": [
                orjson.loads(body)
                for body in await self.outbox.approvals.recent_outcomes(_RECENT)
            ],
            "commands": await recent_commands(self.outbox),
            "replies": replies_of(tallies.get(REPLIES)),
            "receivers": [receiver_of(*item) for item in self.receivers.items()],
            "missing": self.missing(),
            "notes": self.notes(),
            "withheld": [
                {"eventId": one.event_id, "rule": one.rule, "reason": one.reason}
                for auto_approver in self.auto_approvers
                for one in auto_approver.withheld.values()
            ],
            **self._traffic(),
        }

    def _traffic(self) -> dict[str, object]:
        return {} if self.rotation is None else {"traffic": self.rotation.shown()}

    async def measure(self) -> None:
        """Update the gauges whose values are in the state file."""
        if self.outbox is None:
            return
        now = self.clock.now().timestamp()
        tallies = await self.outbox.deliveries.tallies()
        names = [relay.sink for relay in self.relays]
        for name in [*names, REPLIES] if REPLIES in tallies else names:
            tally = tallies.get(name, Tally())
            self.metrics.pending.labels(name).set(tally.pending)
            self.metrics.dead.labels(name).set(tally.dead)
            self.metrics.oldest.labels(name).set(_age(tally, now) or 0)
        self.metrics.state_degraded.set(bool(self.outbox.database.fault))


def kinds_of(found: Iterable[str]) -> list[str]:
    """Return the kind of each text, without repeats and without any names."""
    known = {kind.value for kind in Missing}
    words = (re.split(r"[:.]", text, maxsplit=1)[0] for text in found)
    kinds = (word if word in known else Missing.OTHER.value for word in words)
    return list(dict.fromkeys(kinds))


def nothing_known(*, state: str) -> dict[str, object]:
    """Return a status with all members, but without values."""
    return {
        "vm": vm_of(Identity()),
        "document": document_of(Watch()),
        "imds": {"lastSuccess": None, "state": state},
        "sinks": [],
        "approvals": [],
        "commands": [],
        "replies": replies_of(None),
    }


def vm_of(identity: Identity) -> dict[str, object]:
    """Return the member ``vm`` of the status."""
    return {
        "vmName": identity.vm_name,
        "vmId": identity.vm_id,
        "resourceId": identity.resource_id,
        "location": identity.location,
        "vmScaleSetName": identity.vm_scale_set_name,
    }


def document_of(watch: Watch) -> dict[str, object]:
    """Return the member ``document`` of the status: the known scheduled events."""
    return {
        "incarnation": watch.incarnation,
        "events": [known.event.raw for known in watch.known.values()],
    }


def sink_of(
    name: str, state: str, tally: Tally | None, now: float
) -> dict[str, object]:
    """Return the state of a sink for the status."""
    tally = tally or Tally()
    is_idle = state == "retrying" and not tally.pending  # nothing is left to retry
    return {
        "name": name,
        "state": "ok" if is_idle else state,
        "pending": tally.pending,
        "dead": tally.dead,
        "oldestSeconds": _age(tally, now),
        "lastError": tally.last_error,
    }


async def recent_commands(outbox: Outbox) -> list[dict[str, object]]:
    """Return the results of the last commands for the status."""
    found = await outbox.commands.recent_results(_RECENT)
    return [command_of(event) for event in found]


def command_of(event: Mapping[str, object]) -> dict[str, object]:
    """Return the result of a command for the status, without the command's output."""
    data, kind = event.get("data"), str(event.get("type"))
    shown = data if isinstance(data, dict) else {}
    kept = {key: value for key, value in shown.items() if key not in _NOT_SHOWN}
    return {"outcome": kind.removesuffix(".v1").rpartition(".")[2], **kept}


def receiver_of(name: str, receiver: Receiver) -> dict[str, object]:
    """Return the state of a receiver of approvals for the status."""
    age, last = receiver.link_seconds, receiver.last_receive
    return {
        "entity": name,
        "attached": receiver.attached,
        "standsBy": receiver.stands_by,
        "linkSeconds": None if age is None else int(age),
        "lastReceive": None if last is None else rfc3339(last),
        "lastError": receiver.last_error,
    }


def replies_of(tally: Tally | None) -> dict[str, object]:
    """Return the state of the replies to approvals for the status."""
    tally = tally or Tally()
    return {
        "pending": tally.pending,
        "dead": tally.dead,
        "lastError": tally.last_error,
    }


def _age(tally: Tally, now: float) -> int | None:
    return None if tally.oldest is None else max(0, int(now - tally.oldest))
