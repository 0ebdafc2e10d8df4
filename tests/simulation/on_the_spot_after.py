"""The judge of rules with ``after``, at the moment itself: what such a rule may post.

It goes by what the stand-in hook really did. At each POST that no person asks for, the
hook has succeeded for the event as it is, nothing has voided that since, and no other
machine is freed unless the rule ignores them.
"""

from typing import TYPE_CHECKING

from tests.simulation.on_the_spot import SLACK, added_unseen, is_asked_for, is_worse
from tests.simulation.plan import AFTER_TYPES, Event
from tests.support.builders import ME

if TYPE_CHECKING:
    from tests.simulation.edges import Shown
    from tests.simulation.hooks import HookRun
    from tests.simulation.life import Life
    from tests.simulation.world import World

_KEPT = "SELECT count(*) FROM command_successes WHERE key = ?"


def judge_release(life: "Life", event_id: str) -> None:
    """Blame a POST that the rule has no right to."""
    world, key, shown = life.world, event_id.upper(), life.imds.shown
    event = shown.events.get(event_id) if shown else None
    if not world.plan.has("after") or event is None:
        return
    if is_asked_for(world, key, event, life.now()):
        return  # who asks is not kept waiting
    if event["EventType"] not in AFTER_TYPES or not names_me(event):
        world.blame(f"POST of {key}, of which no rule speaks: {event}")
    if names_others(event) and world.plan.others == "withhold":
        world.blame(f"POST of {key} frees {event['Resources']}")
    if not life.database.has_on_disk(_KEPT, key):
        world.blame(f"POST of {key}, a success of which is not on the disk")
    _judge_evidence(world, key, event)


def _judge_evidence(world: "World", key: str, event: Event) -> None:
    """Blame a POST without a success that still counts, and one that comes too soon."""
    runs = [run for run in world.runs if run.key == key]
    running = [r for r in runs if r.ended is None]
    if running:
        world.blame(f"POST of {key}, and {running[-1].name} is not over")
    good = [run for run in runs if _is_good(world, run, event)]
    if not good:
        names = [run.name for run in runs]
        world.blame(f"POST of {key}, which nothing has succeeded for: {names}")
        return
    ended = good[-1].ended or 0.0
    age, delay = world.now - ended, world.plan.after_delay
    if age < delay - SLACK and not added_unseen(world, ended):
        world.blame(f"POST of {key} {age:.1f} s after its success, and not {delay}")


def _is_good(world: "World", run: "HookRun", event: Event) -> bool:
    """Whether a run has succeeded for an event as it is, and nothing has voided it."""
    if run.action != "prepare" or run.code != 0 or is_worse(run.event, event):
        return False
    is_last = not any(r.key == run.key and r.began > run.began for r in world.runs)
    return is_last and not _has_gone(world, run)


def _has_gone(world: "World", run: "HookRun") -> bool:
    """Whether it was seen, and kept, that an event had gone since a run began."""
    return any(
        look.at > run.began and look.is_whole and event_of(look, run.key) is None
        for look in world.shown
    )


def event_of(look: "Shown", key: str) -> Event | None:
    """Return what a look shows of an EventId."""
    return {name.upper(): event for name, event in look.events.items()}.get(key)


def names_me(event: Event) -> bool:
    """Whether an event is about this VM."""
    return ME.vm_name in event["Resources"]


def names_others(event: Event) -> bool:
    """Whether an event is about any other machine."""
    return {*event["Resources"]} != {ME.vm_name}
