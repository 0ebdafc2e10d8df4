"""The judge: knows the history, and says what the forwarder did wrong.

It shares no code with the forwarder but the state file's tables: the rules of DESIGN
sections 4 to 6 stand here a second time, in other words.
"""

import hashlib
import itertools
import json
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from tests.simulation.edges import Shown
from tests.simulation.oracle_approvals import judge_approvals
from tests.simulation.oracle_time import alive, judge_time
from tests.simulation.plan import Event
from tests.simulation.timeline import true_time

if TYPE_CHECKING:
    from tests.simulation.rows import Row
    from tests.simulation.world import World

GONE = frozenset({"completed", "cancelled", "ended"})
RETURN_WITHIN = 300.0
WINDOW = 10.0


@dataclass(frozen=True, slots=True)
class Step:
    """What has to be told."""

    key: str
    kinds: frozenset[str]
    event: Event
    before: Event | None
    announced: bool


@dataclass(slots=True)
class Last:
    """An event as a counted document showed it last."""

    event: Event
    announced: bool
    incarnation: int
    life: int


def judge(world: "World") -> None:
    """Compare what happened with what had to happen."""
    if world.faults:
        return  # it did not come to its end
    with sqlite3.connect(world.path) as db:
        states = {number: rest for number, *rest in db.execute(_DELIVERIES)}
    db.close()
    told = list(
        {r.item: r.body for r in world.rows.values() if r.kind == "event"}.values()
    )
    judge_commits(world)
    judge_steps(world, [e for e in told if ".scheduledevent." in e["type"]])
    judge_deliveries(world, states)
    judge_order(world)
    judge_approvals(world)
    judge_time(world)


_DELIVERIES = "SELECT id, state, reason FROM deliveries"


def judge_commits(world: "World") -> None:
    """What a document shows is kept before the next one is read."""
    if world.plan.has("little-memory"):
        return  # where there is no room, the next look tells it
    kept = {look.at for look in world.shown}
    known: dict[int, Shown] = {}
    for look, following in itertools.pairwise(world.looks):
        before = known.get(look.life)
        known[look.life] = look
        is_news = before is None or (before.events, before.incarnation) != (
            look.events,
            look.incarnation,
        )
        if is_news and following.life == look.life and look.at not in kept:
            world.blame(f"what was seen at {look.at:.1f} s was not kept")


# -- what is told ----------------------------------------------------------------


def judge_steps(world: "World", told: list[Event]) -> None:
    """Every observable transition is told once, with the id of its cause."""
    steps = list(expected(world))
    found = [(event["correlationid"].upper(), kind_of(event)) for event in told]
    wanted = [(step.key, "|".join(sorted(step.kinds))) for step in steps]
    is_same = len(found) == len(wanted) and all(
        key == step.key and kind in step.kinds
        for (key, kind), step in zip(found, steps, strict=False)
    )
    if not is_same:
        world.blame(f"told {found}, where the history has {wanted}")
        return
    causes = Counter[str]()
    for event, step in zip(told, steps, strict=True):
        kind, data = kind_of(event), event["data"]
        cause = [
            step.key,
            kind,
            canonical(step.before) if kind == "updated" and step.before else None,
            None if kind in GONE else canonical(step.event),
        ]
        count = causes[hashed(cause)]
        causes[hashed(cause)] += 1
        ids = [hashed([*cause, n] if n else cause) for n in range(count + 1)]
        is_pruned = world.plan.has("short-retention")  # then it counts anew
        if event["id"] not in (ids if is_pruned else ids[-1:]):
            world.blame(f"{kind} of {step.key} has another id than its cause gives")
        if (data["announced"] is True) != step.announced:
            world.blame(f"{kind} of {step.key} says announced = {data['announced']}")
        if data["event"] != step.event:
            world.blame(f"{kind} of {step.key} does not hold the event verbatim")


def kind_of(event: Event) -> str:
    return str(event["type"]).split(".")[-2]


def canonical(event: Event) -> Event:
    return {
        **event,
        "EventId": str(event["EventId"]).upper(),
        "Resources": sorted(event["Resources"]),
    }


def hashed(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def expected(world: "World") -> Iterator[Step]:
    """Yield what has to be told of the documents whose commits are on disk."""
    known: dict[str, Last] = {}
    number: int | None = None
    held: tuple[float, int] | None = None
    for shown in world.shown:
        if number is not None and shown.incarnation < number:
            held = (shown.at, shown.incarnation)
        elif held and (
            shown.incarnation > held[1] or shown.at - held[0] >= RETURN_WITHIN
        ):
            held = None
        number = shown.incarnation
        steps = dict(appearing(shown, known))
        if shown.is_whole and held is None:
            steps |= dict(going(world, shown, known))
        yield from (steps[key] for key in sorted(steps))


def appearing(shown: Shown, known: dict[str, Last]) -> Iterator[tuple[str, Step]]:
    for event in shown.events.values():
        key, is_started = event["EventId"].upper(), event["EventStatus"] == "Started"
        last = known.get(key)
        announced = not is_started or (last is not None and last.announced)
        if last is None:
            kind = "started" if is_started else "scheduled"
            yield key, Step(key, frozenset({kind}), event, None, announced)
        elif canonical(last.event) != canonical(event):
            begins = is_started and last.event["EventStatus"] != "Started"
            kind = "started" if begins else "updated"
            yield key, Step(key, frozenset({kind}), event, last.event, announced)
        known[key] = Last(event, announced, shown.incarnation, shown.life)


def going(
    world: "World", shown: Shown, known: dict[str, Last]
) -> Iterator[tuple[str, Step]]:
    here = {event["EventId"].upper() for event in shown.events.values()}
    for key in sorted(known.keys() - here):
        last = known.pop(key)
        kinds = frozenset({"completed"})
        if last.event["EventStatus"] != "Started":
            kinds = endings(world, shown, key, last)
        yield key, Step(key, kinds, last.event, last.event, last.announced)


def endings(world: "World", shown: Shown, key: str, last: Last) -> frozenset[str]:
    """Return how the end of an event that had not started may be told."""
    looks = [
        look
        for look in world.looks
        if look.at < shown.at and key in {k.upper() for k in look.events}
    ]
    gap = shown.at - looks[-1].at
    notice = not_before(last.event) - true_time(shown.at)
    is_next = bool(looks) and shown.incarnation == looks[-1].incarnation + 1
    is_posted = not world.plan.has("short-retention") and any(
        post.event_id.upper() == key and post.at <= shown.at
        for post in world.azure.posts
    )
    may = (
        is_next
        and gap <= WINDOW + 0.1
        and not is_posted
        and (world.plan.jumps or notice > timedelta(seconds=5))
    )
    is_asked = any(a.event_id.upper() == key for a in world.plan.approvals)
    is_asked = is_asked or world.plan.has("rules")
    must = (
        may
        and not world.plan.jumps
        and gap <= WINDOW - 1
        and looks[-1].life == shown.life
        and not world.plan.has("imds-resets")
        and not is_asked
        and notice > timedelta(seconds=6)
    )
    if must:
        return frozenset({"cancelled"})
    return frozenset({"cancelled", "ended"} if may else {"ended"})


def not_before(event: Event) -> datetime:
    return parsedate_to_datetime(event["NotBefore"])


# -- where it goes ---------------------------------------------------------------


def judge_deliveries(world: "World", states: dict[int, list[Any]]) -> None:
    """Everything goes to every sink that wants it; nothing else goes anywhere."""
    went = defaultdict[int, set[str]](set)
    bodies = dict[int, Event]()
    taken = {(one.sink, one.delivery): one.cloud_event_id for one in world.taken}
    for row in world.rows.values():
        name = (row.sink, row.id)
        judge_end(world, row, states.pop(row.id, None))
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
        wanted = wanted_by(bodies[item], followers)
        if went[item] != wanted:
            world.blame(f"{bodies[item]['type']} went to {sorted(went[item])}")


def judge_end(world: "World", row: "Row", end: list[Any] | None) -> None:
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
    age = alive(world, row.at, tries[-1].ended) if tries else 0.0
    is_right = {
        "unforeseen": world.attempts.get(name, 0) >= 10,
        "expired": len(tries) >= 3 and age >= world.plan.max_age - 0.1,
    }.get(str(reason), name in world.refused)
    if state != "dead":
        world.blame(f"delivery {name} is {state} in the end")
    elif not is_right:
        world.blame(f"delivery {name} died of {reason} at the age of {age:.0f} s")


def wanted_by(event: Event, followers: dict[str, set[str]]) -> set[str]:
    """Return who is told: who was told of an EventId is told to its end."""
    key = str(event.get("correlationid", "")).upper()
    looks = [e for e in (event["data"]["event"], event["data"].get("previous")) if e]
    is_step = ".scheduledevent." in event["type"]
    is_wanted = not looks or any(e["EventType"] == "Reboot" for e in looks)
    sinks = {"steady", "shaky"} | ({"reboots"} if is_wanted else set())
    sinks |= followers[key]
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
