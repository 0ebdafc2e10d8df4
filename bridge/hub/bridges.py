"""Derives the state of a bridge from the set of its messages. Pure.

Each part of the state comes from the latest message about that part, so order and
repetition of messages make no difference. A message is as late as its time, or as its
EnqueuedTime if that is earlier: then the clock of the bridge is ahead.

    alive     its last message is at most three heartbeat intervals old
    silent    its last message is older, and the source is connected and drained
    stopped   it has reported that it stops, at most a day ago, and nothing since
    gone      its machine was terminated or preempted, or a person said that it is gone,
              or it was silent for ``forget_after``
    unknown   it sends no heartbeats, or the source is not connected and drained, or not
              yet for three intervals since its last message
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum

import msgspec
import orjson
from msgspec import Struct, field
from msgspec.structs import replace

from bridge.events.cloudevent import hash32
from bridge.hub.bridge_messages import BridgeReport
from bridge.hub.facts import (
    Address,
    Machine,
    Reporter,
    group_of,
    kept_name,
    table,
    text,
)

_INTERVALS = 3
MOST_OFFERS = 50  # of one machine; beyond, they are an attack and none is stored
_STOPPED_SECONDS = 86_400.0
_LIFE = {"started", "stopped"}
_BEATS = {"started", "heartbeat"}

Stamp = tuple[str, str]  # time and id of a message: the larger one is later


class Liveness(StrEnum):
    """Whether a bridge is running, as far as the hub knows."""

    ALIVE = "alive"
    SILENT = "silent"
    STOPPED = "stopped"
    GONE = "gone"
    UNKNOWN = "unknown"


class Part(Struct, frozen=True, kw_only=True):
    """One part of the state, with the stamp of the message that it comes from.

    Attributes:
        stamp: when it happened, and the id of the message.
        heard: when the broker enqueued that message.
    """

    stamp: Stamp = ("", "")
    data: Mapping[str, object] = field(default_factory=dict)
    heard: str = ""

    def later(self, other: "Part") -> "Part":
        """Return the later one of two parts."""
        return max(
            self, other, key=lambda part: (part.stamp, _text(part.data), part.heard)
        )


NEVER = Part()


def _text(data: Mapping[str, object]) -> bytes:
    return orjson.dumps(data, option=orjson.OPT_SORT_KEYS)


class Offer(Struct, frozen=True, kw_only=True):
    """An offer of a bridge: where it takes approvals, and by which rules.

    Attributes:
        id: the same for the same offer of the same bridge.
        vm_id: the vmId of the bridge.
        address: where it takes approvals; None = nowhere.
        digest: the fingerprint in the offer.
        first_heard: when it was heard for the first time.
        heard: when the bridge has repeated it, or its digest, for the last time.
        dropped: when a person said that it does not count; None = nobody did.
        data: ``data.approvals`` of ``bridge.started``.
    """

    id: str
    vm_id: str
    address: Address | None
    digest: str
    first_heard: datetime
    heard: datetime
    dropped: datetime | None = None
    data: Mapping[str, object]

    @property
    def is_dropped(self) -> bool:
        """Whether a person has dropped it, and it was not heard since."""
        return self.dropped is not None and self.heard <= self.dropped

    @property
    def has_own_digest(self) -> bool:
        """Whether the digest is that of the offer, as bridges compute it."""
        rest = {name: self.data[name] for name in self.data if name != "digest"}
        return hash32(rest) == self.digest


def address_in(offer: Mapping[str, object], source: str, prefix: str) -> Address | None:
    """Return the address in an offer; None = it has none.

    Args:
        offer: ``data.approvals`` of ``bridge.started``.
        source: the name of the hub's source that the message came from.
        prefix: the prefix of the type of the message.
    """
    entity, session = text(offer.get("entity")), text(offer.get("session"))
    if not entity:
        return None
    return Address(source=source, entity=entity, session=session, prefix=prefix)


class BridgeState(Struct, frozen=True, kw_only=True):
    """The state of a bridge.

    Attributes:
        vm_id: the vmId of its VM.
        heard: when the broker enqueued its last message.
        who: name, resource id, version and location.
        life: started or stopped.
        beat: the heartbeat: interval, backlog and digest of its rules.
        offer: where it takes approvals, and by which rules.
    """

    vm_id: str
    heard: datetime
    who: Part = NEVER
    life: Part = NEVER
    beat: Part = NEVER
    offer: Part = NEVER

    @property
    def reporter(self) -> Reporter:
        """The VM of the bridge."""
        return Reporter(
            vm_id=self.vm_id,
            name=str(self.who.data.get("name", "")),
            resource_id=str(self.who.data.get("resourceId", "")),
        )

    @property
    def machine(self) -> Machine:
        """The machine it runs on."""
        subscription, group = group_of(self.reporter.resource_id)
        name = kept_name(self.reporter.name)
        return Machine(subscription=subscription, group=group, name=name)

    @property
    def is_stopped(self) -> bool:
        """Whether it has reported that it stops, and nothing later, by either clock."""
        is_last = self.life.heard >= _iso(self.heard)
        is_latest = self.life.stamp >= self.who.stamp
        return self.life.data.get("word") == "stopped" and is_last and is_latest

    @property
    def interval(self) -> float:
        """Seconds between its heartbeats; 0 = no heartbeats, or not known."""
        value = self.beat.data.get("intervalSeconds")
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return min(max(float(value), 0.0), 1e6) if is_number else 0.0  # type: ignore[arg-type]  # a number

    @property
    def approvals(self) -> Mapping[str, object] | None:
        """What it offered last: where it takes approvals, by which rules.

        None = it has offered nothing, or a later heartbeat has another digest: then its
        rules have changed since.
        """
        offer = self.offer.data.get("approvals")
        if not isinstance(offer, dict):
            return None
        is_same = not self._has_later_beat or self.digest == offer.get("digest")
        return offer if is_same else None

    @property
    def digest(self) -> str:
        """The fingerprint of the offer in its last heartbeat; "" = it had none."""
        return text(table(self.beat.data.get("approvals")).get("digest"))

    @property
    def _has_later_beat(self) -> bool:
        return self.beat.stamp > self.offer.stamp

    def current_offer(self, known: Iterable[Offer]) -> Offer | None:
        """Return the offer that it has repeated last; None = its offer is not known.

        Several may claim the same digest: the one whose digest it is comes first.
        """
        mine = [one for one in known if one.vm_id == self.vm_id]
        if self._has_later_beat and self.digest:
            mine = [one for one in mine if one.digest == self.digest]
            own = [one for one in mine if one.has_own_digest]
            return _last(own or mine)
        said = self.offer.data.get("approvals")
        return _last([one for one in mine if one.data == said])

    def address(self, known: Iterable[Offer]) -> Address | None:
        """Return where it takes approvals; None = nowhere, or it has made no offer.

        If only its rules have changed since, that is still where it offered last.
        """
        mine = [one for one in known if one.vm_id == self.vm_id]
        found = self.current_offer(mine)
        takes_none = self.offer.stamp != ("", "") and not self.digest
        if found is None and not (takes_none and self.approvals is None):
            found = _last(mine)
        return found.address if found else None

    def joined(self, other: "BridgeState") -> "BridgeState":
        """Merge two states: the later one of each part."""
        return replace(
            self,
            heard=max(self.heard, other.heard),
            who=self.who.later(other.who),
            life=self.life.later(other.life),
            beat=self.beat.later(other.beat),
            offer=self.offer.later(other.offer),
        )


bridge_in = msgspec.json.Decoder(BridgeState).decode  # as the store has it


def _last(found: Sequence[Offer]) -> Offer | None:
    return max(found, key=lambda one: (one.heard, one.id), default=None)


def of_report(report: BridgeReport) -> BridgeState:
    """Return the state of a bridge according to one message."""
    stamp = (_iso(min(report.time, report.heard)), report.id)
    who = {
        "name": report.reporter.name,
        "resourceId": report.reporter.resource_id,
        "version": report.version,
        "location": report.location,
    }
    heard = _iso(report.heard)
    part = Part(stamp=stamp, data={**report.data, "word": report.kind}, heard=heard)
    return BridgeState(
        vm_id=report.reporter.vm_id,
        heard=report.heard,
        who=Part(stamp=stamp, data=who),
        life=_part(part, report.kind in _LIFE, ("word",)),
        beat=_part(
            part,
            report.kind in _BEATS,
            ("intervalSeconds", "pending", "dead", "approvals"),
        ),
        offer=_part(part, has_terms(report), ("approvals",)),
    )


def has_terms(report: BridgeReport) -> bool:
    """Whether a report holds the whole offer: the start, and a heartbeat a day."""
    is_whole = "rules" in table(report.data.get("approvals"))
    return report.kind == "started" or (report.kind in _BEATS and is_whole)


def _part(part: Part, is_so: bool, keys: tuple[str, ...]) -> Part:  # noqa: FBT001 - of one caller
    if not is_so:
        return NEVER
    kept = {key: part.data[key] for key in keys if key in part.data}
    return Part(stamp=part.stamp, data=kept, heard=part.heard)


def _iso(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def liveness(  # noqa: PLR0913 - each is known to the caller alone
    state: BridgeState,
    now: datetime,
    *,
    listening: datetime | None,
    forget_after: float,
    absent_until: datetime | None = None,
    gone: datetime | None = None,
) -> Liveness:
    """Return whether a bridge is alive, silent, stopped, gone or unknown.

    Args:
        state: the state of the bridge.
        now: the present moment.
        listening: since when its source is connected and drained; None = it is not.
        forget_after: seconds of silence after which it counts as gone.
        absent_until: the end of the last absence of all hubs that was long enough to
            lose messages; None = there was none. Such an absence is no silence.
        gone: when its machine ended, or a person declared it gone; None = neither.
    """
    if gone is not None and state.heard <= gone:
        return Liveness.GONE
    if listening is None:
        return Liveness.UNKNOWN
    longest = _INTERVALS * state.interval
    is_silent = _seconds(now, max(state.heard, min(listening, now))) > longest
    quiet = _seconds(now, max(state.heard, absent_until or state.heard))
    if is_silent and quiet > forget_after:
        return Liveness.GONE
    if state.is_stopped and _seconds(now, state.heard) <= _STOPPED_SECONDS:
        return Liveness.STOPPED
    if not state.interval:
        return Liveness.UNKNOWN
    unheard = Liveness.SILENT if is_silent else Liveness.UNKNOWN
    return Liveness.ALIVE if _seconds(now, state.heard) <= longest else unheard


def _seconds(now: datetime, before: datetime) -> float:
    return (now - before).total_seconds()


def is_unreported(
    received: datetime,
    drained: datetime | None,
    now: datetime,
    *,
    missing_after: float,
) -> bool:
    """Whether bridges have had enough time to report an event of Azure.

    Args:
        received: when Azure's message about the event was enqueued.
        drained: since when all sources of bridges are drained; None = they are not.
        now: the present moment.
        missing_after: how long bridges may take, in seconds.
    """
    if drained is None:
        return False
    return now - max(received, drained) > timedelta(seconds=missing_after)
