"""The judge: knows the history, and says what the forwarder did wrong.

It shares no code with the forwarder but the state file's tables: what is promised of
events, approvals and deliveries stands here a second time, in other words.
"""

import itertools
import sqlite3
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from tests.simulation.oracle_after import judge_after
from tests.simulation.oracle_age import judge_ages
from tests.simulation.oracle_approvals import LONGEST_WRITE, judge_approvals
from tests.simulation.oracle_commands import asks_for_command, fits, judge_commands
from tests.simulation.oracle_steps import GONE, judge_steps, kind_of
from tests.simulation.oracle_time import judge_time, running
from tests.simulation.plan import Event
from tests.simulation.rows import Row

if TYPE_CHECKING:
    from tests.simulation.edges import Shown
    from tests.simulation.world import World

_DISK_PATIENCE = 3.0


def judge(world: "World") -> None:
    """Compare what happened with what had to happen."""
    if world.faults:
        return  # it did not come to its end
    with sqlite3.connect(world.path) as db:
        states = {number: rest for number, *rest in db.execute(_DELIVERIES)}
        (left,) = db.execute("SELECT count(*) FROM command_successes").fetchone()
    db.close()
    published = dict[int, Row]()
    for row in world.rows.values():
        if row.kind == "event" and ".scheduledevent." in row.body["type"]:
            published.setdefault(row.item, row)
    judge_commits(world)
    judge_steps(world, [*published.values()])
    judge_commands(world, states, left)
    judge_deliveries(world, states)
    judge_order(world)
    judge_approvals(world)
    judge_after(world)
    judge_time(world)
    judge_ages(world)


_DELIVERIES = "SELECT id, state, reason FROM deliveries"


def judge_commits(world: "World") -> None:
    """What a document shows is kept before the next one is read, or meanwhile.

    The first one of a life is kept before. A later one is written while the forwarder
    reads on: a kill soon after the look may come before that.
    """
    if world.plan.has("little-memory"):
        return  # where there is no room, the next look publishes it
    kept = {look.at for look in world.shown}
    known: dict[int, Shown] = {}
    for look, following in itertools.pairwise(world.looks):
        before = known.get(look.life)
        known[look.life] = look
        is_news = before is None or (before.events, before.incarnation) != (
            look.events,
            look.incarnation,
        )
        died = None if world.clean[look.life] else world.lives[look.life][1]
        is_sure = before is None or died is None or look.at + LONGEST_WRITE < died
        is_last = following.life != look.life
        if is_news and is_sure and not is_last and look.at not in kept:
            world.blame(f"what was seen at {look.at:.1f} s was not kept")


# -- where it goes ---------------------------------------------------------------


def judge_deliveries(world: "World", states: dict[int, list[Any]]) -> None:
    """Everything goes to every sink that wants it; nothing else goes anywhere."""
    went = defaultdict[int, set[str]](set)
    bodies = dict[int, Event]()
    taken = {(one.sink, one.delivery): one.cloud_event_id for one in world.taken}
    for row in world.rows.values():
        name = (row.sink, row.id)
        end = states.pop(row.id, None)
        if row.sink != "drain":  # what becomes of a command is judged elsewhere
            judge_end(world, row, end)
        cloud_event_id = taken.pop(name, row.body.get("id"))
        if row.kind == "reply":
            continue
        bodies[row.item] = row.body
        went[row.item].add(row.sink)
        if cloud_event_id != row.body["id"]:
            world.blame(f"{row.sink} took another event as delivery {row.id}")
    if taken or states:
        world.blame(f"nobody knows of {sorted(taken)} and {sorted(states)}")
    followers = defaultdict[str, set[str]](set)
    for item in sorted(bodies):
        wanted = wanted_by(world, bodies[item], followers)
        if went[item] != wanted:
            world.blame(f"{bodies[item]['type']} went to {sorted(went[item])}")


def judge_end(world: "World", row: Row, end: list[Any] | None) -> None:
    """A delivery is taken, or was refused for good, or given up with good reason."""
    name = (row.sink, row.id)
    state, reason = end or ("delivered", None)
    if end is None and not world.plan.has("short-retention"):
        world.blame(f"delivery {name} is no longer there")
    if state == "delivered":
        if not any((one.sink, one.delivery) == name for one in world.taken):
            world.blame(f"delivery {name} was never taken, and said to be delivered")
        return
    tries = [t for t in world.tried if (t.sink, t.delivery) == name]
    age = running(world, row.at, tries[-1].ended) if tries else 0.0
    # What memory alone has was committed up to 3 s before: it waited for the disk.
    waited = 0.0 if row.is_durable else _DISK_PATIENCE
    is_right = {
        "unforeseen": world.attempts.get(name, 0) >= 10,
        "expired": len(tries) >= 3 and age + waited >= world.plan.max_age - 0.1,
    }.get(str(reason), name in world.refused)
    if state != "dead":
        world.blame(f"delivery {name} is {state} in the end")
    elif not is_right:
        world.blame(f"delivery {name} died of {reason} at the age of {age:.0f} s")


def wanted_by(world: "World", event: Event, followers: dict[str, set[str]]) -> set[str]:
    """Return who gets an event: who got an EventId also gets its end."""
    key = str(event.get("correlationid", "")).upper()
    looks = [e for e in (event["data"]["event"], event["data"].get("previous")) if e]
    is_step = ".scheduledevent." in event["type"]
    is_wanted = not looks or any(e["EventType"] == "Reboot" for e in looks)
    sinks = {"steady", "shaky"} | ({"reboots"} if is_wanted else set())
    if world.plan.has("commands") and any(fits(e) for e in looks):
        sinks |= {"drain"}
    sinks |= followers[key]
    if not (is_step and asks_for_command(event)):
        sinks -= {"drain"}
    if is_step:
        followers[key] |= sinks
        if kind_of(event) in GONE:
            followers.pop(key)
    return sinks


def judge_order(world: "World") -> None:
    """Per sink and EventId, nothing is taken after something later was."""
    latest: dict[tuple[str, str], int] = {}
    for one in world.taken:
        if one.key is None:
            continue
        before = latest.get((one.sink, one.key), 0)
        if one.delivery < before:
            world.blame(
                f"{one.sink} took delivery {one.delivery} of {one.key} after {before}"
            )
        latest[one.sink, one.key] = max(before, one.delivery)
