"""The present situation, filters, and bridges as the hub sees them. Pure.

The JSON of an answer of the API is the encoding of its ``Row``: see ``answers``.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

from msgspec import Meta, Struct, field

from bridge.hub.access import AccessConfig
from bridge.hub.bridges import Liveness, Offer
from bridge.hub.facts import Address, Machine, Reporter

PAGE = 200
Time = Annotated[datetime, Meta(tz=True)]
Count = Annotated[int, Meta(ge=0)]


class Row(Struct, frozen=True, kw_only=True, rename="camel"):
    """A part of an answer of the API: its fields are the members of the JSON.

    None is null: the value is not known, or there is none.
    """


class Situation(Struct, frozen=True, kw_only=True):
    """The time, and other values besides the store that rows depend on.

    Attributes:
        now: the present moment.
        listening: since when each source of bridges is connected and drained, by its
            name; None = it is not.
        clock_fault: what is wrong with the clock of this machine; None = nothing.
        absent_until: the end of the last absence that was long enough to lose messages.
            Open events without a later message are shown as unknown, and it is not part
            of the silence of a bridge. None = there was no such absence.
        forget_after: a bridge that was silent for so many seconds counts as gone.
        missing_after: an event of Azure that no bridge has reported after so many
            seconds counts as unreported; None = no source of Azure.
        expect: patterns for the resource ids whose events a bridge should report; () =
            machines of known bridges.
        store_fault: why the store cannot be used; None = it can.
        not_connected: why sources are not connected, by their names.
        access: who may decide.
    """

    now: datetime
    listening: Mapping[str, datetime | None]
    clock_fault: str | None = None
    absent_until: datetime | None = None
    forget_after: float = 7 * 86400.0
    missing_after: float | None = None
    expect: tuple[str, ...] = ()
    store_fault: str | None = None
    not_connected: Mapping[str, str] = field(default_factory=dict)
    access: AccessConfig = AccessConfig()

    @property
    def drained(self) -> datetime | None:
        """Since when all sources of bridges are drained; None = not all are."""
        since = list(self.listening.values())
        known = [one for one in since if one is not None]
        return max(known) if known and len(known) == len(since) else None


class ReporterRow(Row, frozen=True, kw_only=True):
    """Who reported something: a bridge, or, if all is null, Azure."""

    vm_id: str | None = None
    vm_name: str | None = None
    resource_id: str | None = None

    @classmethod
    def of(cls, found: Reporter) -> "ReporterRow":
        """Return the row of a reporter."""
        return cls(
            vm_id=found.vm_id or None,
            vm_name=found.name or None,
            resource_id=found.resource_id or None,
        )

    @property
    def name(self) -> str:
        """Its name for people."""
        return self.vm_name or self.vm_id or "an unnamed VM"


class StoredOutcome(Row, frozen=True, kw_only=True):
    """What a bridge made of a StartRequest, as it is stored.

    Attributes:
        body_hash: of the approval that it is about; "" = not told.
        is_doubtful: whether it closes no decision: see ``pins``.
    """

    outcome: str
    message_id: str
    reason: str | None
    time: Time
    reporter: ReporterRow
    body_hash: str
    is_doubtful: bool


class Bridge(Row, frozen=True, kw_only=True):
    """A bridge, and whether it is alive.

    Attributes:
        version: of the program.
        interval_seconds: seconds between heartbeats; null: not known, or none.
        pending: deliveries that wait, by its last heartbeat.
        dead: its dead letters, by its last heartbeat.
        approvals: where it takes approvals, by which rules: data.approvals of the event
            bridge.started.
    """

    vm_id: str
    name: str = field(name="vmName")
    resource_id: str | None
    subscription: str | None
    group: str | None = field(name="resourceGroup")
    version: str | None
    location: str | None
    liveness: Liveness = field(name="state")
    heard: Time = field(name="lastHeard")
    interval_seconds: float | None
    pending: Count | None
    dead: Count | None
    approvals: Mapping[str, Any] | None


class BridgeRow(Bridge, frozen=True, kw_only=True):
    """A bridge, with what the hub does not answer with.

    Attributes:
        machine: the machine it runs on.
        reporter: its VM.
        origin: the name of the hub's source that its messages come from.
        first_heard: when its first message was enqueued.
        stopped: when its last message that it stops was enqueued; None = never.
        address: where it takes approvals, by its last offer; None = nowhere, or it has
            made no offer.
        offers: all known offers in its name, and in that of its machine.
        was_silent: whether there was an alarm that it is silent, and none since that it
            is back.
    """

    machine: Machine
    reporter: Reporter
    origin: str
    first_heard: datetime
    stopped: datetime | None
    address: Address | None
    offers: tuple[Offer, ...]
    was_silent: bool

    def since(self, place: tuple[str, str, str]) -> datetime:
        """Return when it, or its machine, was first heard to offer an address.

        Args:
            place: ``Address.place`` of an address that it offers.
        """
        return min(
            one.first_heard
            for one in self.offers
            if one.address is not None and one.address.place == place
        )
