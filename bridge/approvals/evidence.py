"""Checks whether the commands that a rule requires have succeeded for an event. Pure.

success, and the event has not become worse since ─▶ the requirement is met
no success: waits, failed, or never run ───────────▶ held, with the reason
the event also names other VMs ────────────────────▶ held, unless others = "ignore"

Worse: another EventType, a longer or newly unknown duration, or a further resource
(``events.material``). A lesser change keeps a success.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum

import msgspec
from msgspec import Struct, field

from bridge.events.cloudevent import CloudEvent
from bridge.events.document import ScheduledEvent, bare
from bridge.events.identity import Identity
from bridge.events.material import is_material
from bridge.events.watch import Moment
from bridge.outbox.records import CommandStanding, Success


class Lack(StrEnum):
    """Why an event is not approved yet; reasons contain these values."""

    OTHER_RESOURCES = "OtherResources"  # an approval would also start it on other VMs
    FAILED = "CommandFailed"  # the last run failed
    NOT_RUN = "CommandNotRun"  # no run is pending, and no earlier run counts
    WAITS = "CommandWaits"  # a run is pending, or in progress


class Evidence(Struct, frozen=True, kw_only=True):
    """The result of one command for an event with its present content.

    Attributes:
        lack: why the command does not count as successful; None = it has succeeded.
        age: how many seconds ago, at least, the command succeeded.
    """

    lack: Lack | None
    age: float = 0.0


Evidences = Mapping[str, Evidence]
NO_EVIDENCE: Evidences = {}
_WORST = (Lack.FAILED, Lack.NOT_RUN, Lack.WAITS)


def reason_to_hold(after: Sequence[str], found: Evidences) -> str | None:
    """Return why an event is held: the worst lack, and the name of its command.

    None if all commands that are named in ``after`` have succeeded.
    """
    missing = Evidence(lack=Lack.NOT_RUN)
    held = [(lack, name) for name in after if (lack := found.get(name, missing).lack)]
    if not held:
        return None
    lack, name = min(held, key=lambda one: _WORST.index(one[0]))
    return f"{lack.value} {name}"


def names_others(event: ScheduledEvent, me: Identity) -> bool:
    """Return whether an event names another VM: an approval would apply to it, too."""
    own = bare(me.vm_name or "")
    return any(bare(name) != own for name in event.resources)


class SuccessCheck(Struct):
    """Decides which successes of commands count for an event now."""

    _since: dict[str, tuple[float, Moment]] = field(default_factory=dict)

    def evidences(
        self,
        event: ScheduledEvent,
        standings: Mapping[str, CommandStanding],
        now: Moment,
    ) -> Evidences:
        """Return the result of each command for the event with its present content."""
        return {
            name: self._evidence(name, event, standing, now)
            for name, standing in standings.items()
        }

    def _evidence(
        self, name: str, event: ScheduledEvent, standing: CommandStanding, now: Moment
    ) -> Evidence:
        success = standing.success
        if standing.is_pending:  # a restore, or a run for the present content
            return Evidence(lack=Lack.WAITS)
        if success is not None and _counts(event, success):
            return Evidence(lack=None, age=self._age(name, success, now))
        has_failed = standing.last == "dead"
        return Evidence(lack=Lack.FAILED if has_failed else Lack.NOT_RUN)

    def _age(self, name: str, success: Success, now: Moment) -> float:
        """Return the age of a success in seconds; a jump of the clock adds nothing."""
        place = f"{name} {success.key}"
        at, since = self._since.get(place, (None, None))
        if since is None or at != success.at:
            began = datetime.fromtimestamp(success.at, UTC)
            since = Moment(at=began, monotonic=None)
        if since.monotonic is None:
            since = since.anchored(now)
            self._since[place] = (success.at, since)
        return since.least_elapsed(now)


def _counts(event: ScheduledEvent, success: Success) -> bool:
    """Return whether a success counts: the event has not become worse since."""
    seen = _seen(success, event)
    return seen is not None and not is_material(seen, event)


def _seen(success: Success, event: ScheduledEvent) -> ScheduledEvent | None:
    """Return the event that was given to the command; None if the record is damaged."""
    try:
        raw = CloudEvent.from_json(success.content).data.get("event")
    except msgspec.ValidationError:
        return None
    if not isinstance(raw, dict):
        return None
    return ScheduledEvent(event_id=str(raw.get("EventId", event.event_id)), raw=raw)
