"""What the commands that a rule waits for have done for an event. Pure.

success, and the event has not become another ─▶ met
no success: still to come, failed, or never run ─▶ held, with the reason
the event names other machines as well ──────────▶ held, whatever was done
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

import msgspec

from bridge.events.cloudevent import CloudEvent
from bridge.events.document import ScheduledEvent
from bridge.events.identity import Identity, bare
from bridge.events.material import is_material
from bridge.events.watch import Moment
from bridge.outbox.records import CommandStanding, Success


class Lack(StrEnum):
    """Why an event is not approved yet; the values stand in reasons."""

    OTHER_RESOURCES = "OtherResources"  # an approval would free them, too
    FAILED = "CommandFailed"
    NOT_RUN = "CommandNotRun"  # nothing waits, and nothing that counts was run
    WAITS = "CommandWaits"  # for its time, or it runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What one command has done for an event as it is now.

    Attributes:
        lack: what it has not; None = it has succeeded.
        age: seconds for which the success has surely stood.
    """

    lack: Lack | None
    age: float = 0.0


Evidences = Mapping[str, Evidence]
NO_EVIDENCE: Evidences = {}
_WORST = (Lack.FAILED, Lack.NOT_RUN, Lack.WAITS)


def reason_to_hold(after: Sequence[str], found: Evidences) -> str | None:
    """Return why an event is held: the gravest lack, and the command that has it.

    Args:
        after: names of commands that must have succeeded.
        found: what they have done, by name.
    """
    lacks = {
        name: found[name].lack if name in found else Lack.NOT_RUN for name in after
    }
    for lack in _WORST:
        for name, own in lacks.items():
            if own is lack:
                return f"{lack.value} {name}"
    return None


def names_others(event: ScheduledEvent, me: Identity) -> bool:
    """Whether an approval would free another machine, too, as far as is known."""
    own = bare(me.vm_name or "")
    return any(bare(name) != own for name in event.resources)


@dataclass(slots=True)
class SuccessCheck:
    """Says which successes of commands count for an event as it is now."""

    _since: dict[str, tuple[float, Moment]] = field(default_factory=dict)

    def evidences(
        self,
        event: ScheduledEvent,
        standings: Mapping[str, CommandStanding],
        now: Moment,
    ) -> Evidences:
        """Return what each command has done for an event as it is now."""
        return {
            name: self._evidence(name, event, standing, now)
            for name, standing in standings.items()
        }

    def _evidence(
        self, name: str, event: ScheduledEvent, standing: CommandStanding, now: Moment
    ) -> Evidence:
        success = standing.success
        if standing.is_pending:  # it may be a restore, or for the event as it is now
            return Evidence(lack=Lack.WAITS)
        if success is not None and _counts(event, success):
            return Evidence(lack=None, age=self._age(name, success, now))
        has_failed = standing.last == "dead"
        return Evidence(lack=Lack.FAILED if has_failed else Lack.NOT_RUN)

    def _age(self, name: str, success: Success, now: Moment) -> float:
        """Return how old a success is, which no jump of the clock adds to."""
        place = f"{name} {success.key}"
        at, since = self._since.get(place, (None, None))
        if since is None or at != success.at:
            began = datetime.fromtimestamp(success.at, UTC)
            since = Moment(at=began, monotonic=None).anchored(now)
            self._since[place] = (success.at, since)
        return since.least_elapsed(now)


def _counts(event: ScheduledEvent, success: Success) -> bool:
    """Whether the event is still the one that the command was run for."""
    seen = _seen(success, event)
    return seen is not None and not is_material(seen, event)


def _seen(success: Success, event: ScheduledEvent) -> ScheduledEvent | None:
    """Return the event as the command was told of it; None where it is damaged."""
    try:
        raw = CloudEvent.from_json(success.content).data.get("event")
    except msgspec.ValidationError:
        return None
    if not isinstance(raw, dict):
        return None
    return ScheduledEvent(event_id=str(raw.get("EventId", event.event_id)), raw=raw)
