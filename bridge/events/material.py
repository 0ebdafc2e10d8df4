"""Whether an event has become another, or a worse one, than somebody has seen. Pure."""

from bridge.events.document import ScheduledEvent
from bridge.events.identity import bare


def is_material(seen: ScheduledEvent, event: ScheduledEvent) -> bool:
    """Whether what was seen no longer stands for the event as it is now.

    Another type, a longer or newly unknown duration, or one more resource; a lesser
    change is none.
    """
    before, after = _known_duration(seen), _known_duration(event)
    return (
        seen.key != event.key
        or (seen.event_type or "").casefold() != (event.event_type or "").casefold()
        or (before is not None and (after is None or after > before))
        or not {*map(bare, event.resources)} <= {*map(bare, seen.resources)}
    )


def _known_duration(event: ScheduledEvent) -> int | None:
    """Return the expected interruption; None where Azure does not know it."""
    duration = event.duration
    return None if duration is None or duration < 0 else duration
