"""For how long the forwarder remembers what it published and did: the judge's view."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.world import World

_MARGIN = 10.0
_PRUNED_EVERY = 3600.0


def is_remembered(world: "World", key: str, since: float, until: float) -> bool:
    """Whether what was kept of an event at ``since`` is surely known at ``until``.

    Old things go at the start of a life and once an hour. What is known of an event
    that is in the document stays, however old it is. A clock that was set may make
    anything older than it is.
    """
    plan = world.plan
    if not plan.has("short-retention"):
        return True
    if plan.jumps:
        return False
    spans = [*world.lives, (world.lives[-1][1] if world.lives else 0.0, until)]
    if any(ended - began > _PRUNED_EVERY - _MARGIN for began, ended in spans):
        return False
    starts = [began for began, _ in world.lives[1:] if since < began <= until]
    return all(_is_fresh(world, key, since, start) for start in starts)


def _is_fresh(world: "World", key: str, since: float, start: float) -> bool:
    """Whether it is not old at the start of a life, or the event is known there."""
    if since > start - world.plan.retention + _MARGIN:
        return True
    before = [look for look in world.shown if look.at < start]
    return bool(before) and key in {k.upper() for k in before[-1].events}
