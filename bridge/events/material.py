"""Whether an event has become worse than the one that was seen before. Pure."""

from bridge.events.document import ScheduledEvent
from bridge.events.identity import bare


def is_material(seen: ScheduledEvent, event: ScheduledEvent) -> bool:
    """Return whether the event has changed so much that ``seen`` is out of date.

    These changes count: another EventId or type, a longer duration, a duration that is
    unknown now, and an additional resource.
    """
    before, after = _known_duration(seen), _known_duration(event)
    return (
        seen.key != event.key
        or (seen.event_type or "").casefold() != (event.event_type or "").casefold()
        or (before is not None and (after is None or after > before))
        or not {*map(bare, event.resources)} <= {*map(bare, seen.resources)}
    )


def _known_duration(event: ScheduledEvent) -> int | None:
    """Return the expected interruption in seconds; None if Azure does not know it."""
    duration = event.duration
    return None if duration is None or duration < 0 else duration
