"""Decides by the known events whether this VM is in rotation. Pure.

              an event holds this VM out
    in ──────────────────────────────────────────▶ out
     ▲                                              │ no event holds it out any more
     ├── resume_after has passed ◀──────── over ◀───┘
     └── IMDS has not answered for an hour after NotBefore ◀── out

Shapes:    Standing x Watch -> Standing
Invariant: an event that holds this VM out does so until it is gone from a document
           whose absences count; it does not matter how often the gate is asked
Purpose:   a machine leaves rotation before maintenance, and comes back after it
"""

from collections.abc import Container, Iterable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from msgspec.structs import replace as with_fields

from bridge.events.document import ScheduledEvent
from bridge.events.identity import Identity
from bridge.events.vocabulary import EventStatus
from bridge.events.watch import Known, Moment, Watch
from bridge.traffic.config import TrafficConfig

_LONGEST_BLIND = 3600.0  # seconds past NotBefore without IMDS


class Why(StrEnum):
    """Why this VM is out of rotation; answers and events contain these values."""

    SCHEDULED = "scheduled"  # NotBefore is nearer than the lead
    STARTED = "started"  # the impact has begun
    APPROVED = "approved"  # a StartRequest was sent, or will be sent soon
    OVER = "over"  # the event is gone, and resume_after has not passed yet
    UNKNOWN = "unknown"  # IMDS does not answer, and on_unknown = "out"


class Standing(Struct, frozen=True, kw_only=True):
    """Whether this VM is in rotation.

    Attributes:
        since: when this VM went in or out.
        why: why this VM is out; None = it is in.
        event_id: the EventId of the event that holds this VM out, or did last.
        lacking: since when no event has held this VM out; None while one does.
        approved: keys of the events that hold this VM out because of an approval.
    """

    since: Moment
    why: Why | None = None
    event_id: str | None = None
    lacking: Moment | None = None
    approved: tuple[str, ...] = ()

    @property
    def is_out(self) -> bool:
        """Whether this VM is out of rotation."""
        return self.why is not None


class Record(Struct, frozen=True, kw_only=True):
    """The state that is stored, to be used after a restart.

    Attributes:
        is_told_out: whether the last published state is "out".
    """

    standing: Standing
    is_told_out: bool


class Sight(Struct, frozen=True, kw_only=True):
    """All inputs of a decision at one moment.

    Attributes:
        me: the identity of this VM, as far as known.
        blind_after: after so many seconds without a valid document, IMDS counts as not
            answering.
    """

    watch: Watch
    me: Identity
    now: Moment
    blind_after: float

    @property
    def is_blind(self) -> bool:
        """Whether IMDS does not answer, or this VM's name is not known."""
        seen = self.watch.seen
        gap = None if seen is None else seen.elapsed(self.now)
        return self.me.vm_name is None or gap is None or gap > self.blind_after


def concerns(event: ScheduledEvent, me: Identity, config: TrafficConfig) -> bool:
    """Return whether an event may take this VM out: by its type and resources."""
    types = {name.casefold() for name in config.event_types}
    is_listed = (event.event_type or "").casefold() in types
    return is_listed and me.is_named_in(event.resources) is True


def stand(before: Standing, sight: Sight, config: TrafficConfig) -> Standing:
    """Return the present standing of this VM.

    Args:
        before: the standing at the last look.
        sight: what is known now.
        config: ``[traffic]``.
    """
    own = _own(sight, config)
    approved = tuple(key for key in before.approved if key in own)
    before = replace(before, approved=approved)
    counting = [key for key, known in own.items() if not _is_stale(known, sight)]
    holding = _holding((own[key] for key in counting), approved, sight, config)
    if holding is not None:
        return _out(before, sight.now, *holding)
    is_given_up = len(counting) < len(own)
    over = None if is_given_up else _over(before, sight.now, config.resume_after)
    if over is not None:
        return over
    if sight.is_blind and config.on_unknown == "out":
        return _out(before, sight.now, Why.UNKNOWN, None)
    since = sight.now if before.is_out else before.since
    return Standing(since=since, approved=approved)


def next_look(standing: Standing, sight: Sight, config: TrafficConfig) -> float:
    """Return after how many seconds the standing may change without any news."""
    moments = [_leaves_at(one.event, config) for one in _own(sight, config).values()]
    left = [(at - sight.now.at).total_seconds() for at in moments if at is not None]
    if standing.lacking is not None:
        gone = standing.lacking.surely_elapsed(sight.now)
        left.append(config.resume_after - gone)
    return min((seconds for seconds in left if seconds > 0), default=float("inf"))


def encode(standing: Standing, *, is_told_out: bool) -> bytes:
    """Encode the standing and the last published state for the state file."""
    lacking = standing.lacking
    plain = replace(
        standing,
        since=with_fields(standing.since, monotonic=None),
        lacking=lacking and with_fields(lacking, monotonic=None),
    )
    return msgspec.json.encode(Record(standing=plain, is_told_out=is_told_out))


def decode(body: bytes) -> Record | None:
    """Parse what ``encode`` wrote; None if the bytes are something else."""
    try:
        return msgspec.json.decode(body, type=Record)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _own(sight: Sight, config: TrafficConfig) -> Mapping[str, Known]:
    return {
        key: known
        for key, known in sight.watch.known.items()
        if concerns(known.event, sight.me, config)
    }


def _is_stale(known: Known, sight: Sight) -> bool:
    """Return whether an event is surely over by now, although IMDS does not answer."""
    if not sight.is_blind:
        return False
    limit, not_before = timedelta(seconds=_LONGEST_BLIND), known.event.not_before
    is_past = not_before is None or not_before + limit <= sight.now.at
    return is_past and known.seen.surely_elapsed(sight.now) >= _LONGEST_BLIND


def _holding(
    own: Iterable[Known], approved: Container[str], sight: Sight, config: TrafficConfig
) -> tuple[Why, str] | None:
    """Return why this VM is out, and because of which event; None = it is not out.

    A Started event comes first, then the one with the nearest NotBefore.
    """
    found = []
    for known in own:
        event, leaves_at = known.event, _leaves_at(known.event, config)
        if event.status == EventStatus.STARTED:
            found.append((0.0, event.event_id, Why.STARTED))
            continue
        nearness = event.not_before.timestamp() if event.not_before else 1.0
        if leaves_at is None or leaves_at <= sight.now.at:
            found.append((nearness, event.event_id, Why.SCHEDULED))
        elif event.key in approved:
            found.append((nearness, event.event_id, Why.APPROVED))
    if not found:
        return None
    _, event_id, why = min(found)
    return why, event_id


def _leaves_at(event: ScheduledEvent, config: TrafficConfig) -> datetime | None:
    """Return when an event begins to hold this VM out; None = at once."""
    if event.status == EventStatus.STARTED or event.not_before is None:
        return None
    try:
        return event.not_before - timedelta(seconds=config.lead)
    except OverflowError:  # a very large lead
        return None


def _out(before: Standing, now: Moment, why: Why, event_id: str | None) -> Standing:
    since = before.since if before.is_out else now
    return Standing(since=since, why=why, event_id=event_id, approved=before.approved)


def _over(before: Standing, now: Moment, resume_after: float) -> Standing | None:
    """Return the standing until ``resume_after`` has passed; None after that."""
    if before.why in {None, Why.UNKNOWN}:
        return None
    lacking = before.lacking
    if lacking is None or lacking.surely_elapsed(now) < 0:  # the clock was set back
        lacking = now
    if lacking.surely_elapsed(now) >= resume_after:
        return None
    return replace(before, why=Why.OVER, lacking=lacking)
