"""Whether an event has become worse than the one that was seen before. Pure."""

from bridge.events.document import ScheduledEvent, bare


def is_material(seen: ScheduledEvent, event: ScheduledEvent) -> bool:
    """Return whether the event has changed so much that ``seen`` is out of date.

    See ``material_changes``.
    """
    return bool(material_changes(seen, event))


def material_changes(seen: ScheduledEvent, event: ScheduledEvent) -> tuple[str, ...]:
    """Return the members in which the event has become worse than ``seen``.

    These changes count: another EventId or type, a longer duration, a duration that is
    unknown now, and an additional resource. A duration in ``seen`` that cannot be read
    counts as a change, unless the event has the same.
    """
    worse = {
        "EventId": seen.key != event.key,
        "EventType": _folded_type(seen) != _folded_type(event),
        "DurationInSeconds": _is_longer(seen, event),
        "Resources": not {*map(bare, event.resources)} <= {*map(bare, seen.resources)},
    }
    return tuple(name for name, is_worse in worse.items() if is_worse)


def _folded_type(event: ScheduledEvent) -> str:
    return (event.event_type or "").casefold()


def _is_longer(seen: ScheduledEvent, event: ScheduledEvent) -> bool:
    given = seen.raw.get("DurationInSeconds")
    if given is None or given == event.raw.get("DurationInSeconds"):
        return False
    if seen.duration is None:
        return True
    before, after = _known_duration(seen), _known_duration(event)
    return before is not None and (after is None or after > before)


def _known_duration(event: ScheduledEvent) -> int | None:
    """Return the expected interruption in seconds; None if Azure does not know it."""
    duration = event.duration
    return None if duration is None or duration < 0 else duration
