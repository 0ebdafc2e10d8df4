"""The status and the readiness of the bridge, for people and machines."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Protocol

from msgspec import Struct, field

from bridge.events.build import EventContext
from bridge.foundation.clock import Clock, ReferenceClock
from bridge.foundation.errors import OutboxError
from bridge.imds.poller import CLOCK_LIMIT, Poller
from bridge.net.listening import Port
from bridge.outbox.records import REPLIES, Tally
from bridge.outbox.store import Outbox
from bridge.pipeline.relay import Relay
from bridge.signing.own_key import EventSigner
from bridge.telemetry.metrics import Metrics

_BLANK = (
    ", nor read: what earlier runs did is not known, so no rule approves, and no "
    "command restores"
)
_NAMELESS = (
    "imds: this VM's name is not known, so every scope lets each event through: "
    "instance metadata is asked again every 10 min, or set [identity]"
)
_PATIENCE = 1.0  # seconds; a probe waits for the answer


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

    @property
    def fault(self) -> str | None:
        """Why approvals wait, for their keys cannot be read; None = they can."""
        ...


class Standing(Protocol):
    """Knows whether this VM is in rotation."""

    def shown(self) -> dict[str, object]:
        """Return ``traffic`` ("in" or "out"), and why this VM is out."""
        ...


class StatusSource(Struct):
    """The parts of a running bridge that the status is read from.

    The fields are set when the parts are built.

    Attributes:
        state_path: the state file.
        unasked: why commands cannot ask on the socket; None = they can.
    """

    clock: Clock
    metrics: Metrics
    state_path: Path = Path()
    outbox: Outbox | None = None
    poller: Poller | None = None
    event_context: EventContext | None = None
    relays: Sequence[Relay] = ()
    receivers: Mapping[str, Receiver] = field(default_factory=dict)
    listeners: Sequence[Listening] = ()
    rotation: Standing | None = None
    ports: list[Port] = field(default_factory=list)
    signer: EventSigner | None = None
    unasked: str | None = None

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
            return ["starting: asking IMDS who this VM is", *self._closed_ports()]
        found = []
        if self.poller.is_overdue():
            found.append(f"imds: no good document ({self.imds_state})")
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
        faults = [one.fault for one in self.listeners]
        found += dict.fromkeys(f"{one}: approvals wait" for one in faults if one)
        found += [
            f"sinks.{relay.sink}: {relay.obstacle}"
            for relay in self.relays
            if relay.obstacle is not None
        ]
        database = self.outbox.database
        if database.fault:
            text = f"state: cannot be written ({database.fault})"
            found.append(text + database.is_blank * _BLANK)
        return found + self._closed_ports()

    @property
    def imds_state(self) -> str:
        """``Poller.imds_state``, or ``overdue`` if its last success is long ago."""
        if self.poller is None:
            return "starting"
        state = self.poller.imds_state
        return "overdue" if state == "ok" and self.poller.is_overdue() else state

    def _closed_ports(self) -> list[str]:
        return [port.fault for port in self.ports if port.fault is not None]

    async def notes(self) -> list[str]:
        """Return what needs attention, but does not affect readiness.

        These are a VM out of rotation, or of unknown name, failing sinks, and so on. A
        state file that does not answer at once leaves the dead letters out.
        """
        if self.outbox is None:
            return self.notes_of({})
        tallies: Mapping[str, Tally] = {}
        with suppress(OutboxError, TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                tallies = await self.outbox.deliveries.tallies()
        return self.notes_of(tallies)

    def notes_of(self, tallies: Mapping[str, Tally]) -> list[str]:
        """Return the notes, with the deliveries in the state file by sink."""
        standing = {} if self.rotation is None else self.rotation.shown()
        out = [standing.get(key) for key in ("reason", "eventId")]
        why = " ".join(str(part) for part in out if part)
        found = [f"traffic: out of rotation ({why})"] if why else []
        context = self.event_context
        is_waiting = self.poller is None or self.poller.observer.is_waiting
        if context and context.identity.vm_name is None and not is_waiting:
            found.append(_NAMELESS)
        if (difference := self._clock_difference()) is not None:
            found.append(difference)
        if (signing := self._signing_fault()) is not None:
            found.append(signing)
        if self.outbox is not None and (lost := self.outbox.database.lost) is not None:
            found.append(f"state: the start did not take over the whole file: {lost}")
        if self.unasked is not None:
            found.append(f"state: commands cannot ask this forwarder: {self.unasked}")
        for relay in self.relays:
            tally = tallies.get(relay.sink)
            # With nothing left to send, the last error is that of a dead letter.
            if relay.trouble is not None and (tally is None or tally.pending):
                found.append(f"sinks.{relay.sink}: {relay.trouble}")
            if tally is not None and tally.dead:
                found.append(f"sinks.{relay.sink}: {_dead(tally)}")
        known = {REPLIES, *(relay.sink for relay in self.relays)}
        found += [
            f"sinks.{sink}: {_left(tally, sink)}"
            for sink, tally in sorted(tallies.items())
            if sink not in known and (tally.pending or tally.dead)
        ]
        if (replies := tallies.get(REPLIES, Tally())).dead:
            found.append(f"approvals: replies: {_dead(replies)}")
        return found

    def _signing_fault(self) -> str | None:
        """Return why events are not signed although they should be; None = they are."""
        signer = self.signer
        if signer is None or signer.fault is None:
            return None
        if not signer.keys:
            return f"events are not signed: {signer.fault}"
        return f"{signer.unsigned} events could not be signed: {signer.fault}"

    @property
    def ahead(self) -> float | None:
        """How many seconds this VM's clock is ahead of IMDS's; None = not known."""
        return self.clock.ahead if isinstance(self.clock, ReferenceClock) else None

    def _clock_difference(self) -> str | None:
        """Return what is wrong with this VM's clock; None if it is right."""
        ahead = self.ahead or 0.0
        if abs(ahead) <= CLOCK_LIMIT:
            return None
        where = "ahead of" if ahead > 0 else "behind"
        return (
            f"clock: this VM's clock is {abs(ahead):.0f} s {where} IMDS's, "
            "whose time is used"
        )

    async def measure(self) -> None:
        """Update the gauges that nothing else sets."""
        self.metrics.ready.set(not self.missing())
        if self.outbox is None:
            return
        now = self.clock.now().timestamp()
        tallies = await self.outbox.deliveries.tallies()
        names = [relay.sink for relay in self.relays]
        early = {relay.sink for relay in self.relays if relay.state == "early"}
        for name in [*names, REPLIES] if REPLIES in tallies else names:
            tally = tallies.get(name, Tally())
            self.metrics.pending.labels(name).set(tally.pending)
            self.metrics.dead.labels(name).set(tally.dead)
            age = 0 if name in early else tally.age(now) or 0
            self.metrics.oldest.labels(name).set(age)
        self.metrics.state_degraded.set(bool(self.outbox.database.fault))


def _left(tally: Tally, sink: str) -> str:
    """Return how many deliveries to a sink of an earlier configuration are kept."""
    count = tally.pending + tally.dead
    kept = f"{count} {'delivery is' if count == 1 else 'deliveries are'} kept for it"
    command = f"sebridge outbox list --sink {sink}"
    return f"not configured any more, but {kept}: {command}"


def _dead(tally: Tally) -> str:
    """Return how many dead letters there are, why if that is known, and the command."""
    what = "dead letter" if tally.dead == 1 else "dead letters"
    why = None if tally.pending else tally.last_error  # or it is that of a pending one
    command = "sebridge outbox list --state dead"
    return f"{tally.dead} {what}{f' ({why})' if why else ''}: {command}"
