"""The judge at the moment itself: what may be posted, and what may be settled, now.

What is asked here cannot be asked in the end: what stood on the disk before a POST, how
old the document was that it was decided on, who still asked for it.
"""

from typing import TYPE_CHECKING

from tests.simulation.plan import (
    ALLOW_DELAY,
    AUTO_DELAY,
    EXPIRES_SOON,
    POLL,
    Event,
)

if TYPE_CHECKING:
    from tests.simulation.approval_queue import Message
    from tests.simulation.life import Life
    from tests.simulation.world import World

SKEW = 60.0
SLACK = 0.1
NOTICED_WITHIN = POLL + 0.6  # a clock that was set


def judge_post(life: "Life", event_id: str) -> None:
    """Blame a POST that was not asked for, or not on what was just read."""
    world, key, shown = life.world, event_id.upper(), life.imds.shown
    event = shown.events.get(event_id) if shown else None
    if shown is None or event is None:
        world.blame(f"POST of {event_id}, which no document showed")
        return
    if event["EventStatus"] == "Started":
        world.blame(f"POST of {event_id}, which was Started")
    if life.now() - shown.at > max(1.0, POLL) + SLACK:
        world.blame(f"POST of {event_id} on a document of {shown.at:.1f} s")
    earlier = [p for p in world.azure.posts if p.event_id.upper() == key]
    if any(p.life == life.number and p.at >= shown.at for p in earlier):
        world.blame(f"POST of {event_id} again, without a look in between")
    decisions = life.database.rows_of("approvals").items()
    if not any(of == key and row[3] for (_, of), row in decisions):
        world.blame(f"POST of {event_id}, of which nothing is on the disk")
    if world.plan.has("rules"):
        _judge_rules(world, key, event, life.now())
    elif not is_asked_for(world, key, event, life.now()):
        if world.plan.has("after"):
            return  # whether the rule with ``after`` may ask for it is judged elsewhere
        world.blame(f"POST of {event_id}, which nobody asks for by now")


def is_asked_for(world: "World", key: str, event: Event, now: float) -> bool:
    """Whether a person asks for the event as it is now."""
    return any(asks(message, key, event, now) for message in world.broker.messages)


def asks(message: "Message", key: str, event: Event, now: float) -> bool:
    """Whether a message asks for the event as it is now."""
    planned = message.planned
    if planned.event_id.upper() != key:
        return False
    if planned.kind == "soon":
        return now <= planned.at + EXPIRES_SOON + SKEW + SLACK
    if planned.kind == "seen" and message.seen is not None:
        return not is_worse(message.seen, event)
    return planned.kind in {"valid", "again", "seen"}


def is_worse(seen: Event, event: Event) -> bool:
    """Whether an event has become another than the one that was approved."""
    before, after = seen["DurationInSeconds"], event["DurationInSeconds"]
    return (
        seen["EventType"] != event["EventType"]
        or (before >= 0 and (after < 0 or after > before))
        or not set(event["Resources"]) <= set(seen["Resources"])
    )


def _judge_rules(world: "World", key: str, event: Event, now: float) -> None:
    """Blame a POST that the rules forbid: a denial, or too soon."""
    kind = event["EventType"]
    if kind == "Redeploy":
        world.blame(f"POST of {key}, which a rule denies")
    is_asked = is_asked_for(world, key, event, now)
    delay = ALLOW_DELAY
    if kind == "Freeze":
        delay = 0.0 if is_asked else AUTO_DELAY
    elif not is_asked:
        world.blame(f"POST of {key}, which nobody asks for and no rule")
    age = age_of(world, key, event, now)
    if added_unseen(world, now - age):
        return
    if age < delay - SLACK:
        world.blame(f"POST of {key} {age:.1f} s after it was seen, and not {delay}")


def age_of(world: "World", key: str, event: Event, now: float) -> float:
    """Return for how long an event may be said to be as it is."""
    since = now
    for look in reversed(world.looks):
        found = {k.upper(): v for k, v in look.events.items()}.get(key)
        if found is not None and found != event:
            break
        if found is not None:
            since = look.at
    return now - since


def added_unseen(world: "World", since: float) -> bool:
    """Whether the clock was set where nobody could notice it, after ``since``.

    That is while no forwarder ran, or so shortly before one died that it had not looked
    at the clock again.
    """
    for jump in world.jumps:
        if jump.at < since:
            continue
        if jump.life is None:
            return True
        is_over = jump.life < len(world.lives)
        if is_over and not world.clean[jump.life]:
            _, died = world.lives[jump.life]
            if died - jump.at < NOTICED_WITHIN:
                return True
    return False


def judge_settlement(world: "World", message: "Message", how: str) -> None:
    """Blame a settlement before what became of the message is on the disk."""
    if how == "abandon" or world.plan.has("little-memory"):
        return  # where there was no room, an outcome is lost, and said to be
    name, rows = message.planned.message_id, world.rows.values()
    if not any(row.message_id == name for row in rows if row.kind == "event"):
        world.blame(f"{name} is settled before its outcome is kept")
    is_answered = any(row.message_id == name for row in rows if row.kind == "reply")
    if message.planned.reply_to == "replies" and not is_answered:
        world.blame(f"{name} is settled before its reply is kept")
