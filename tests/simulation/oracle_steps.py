"""The judge of what is published: every step that the history has, once, by its id."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from tests.simulation.edges import Shown
from tests.simulation.memory import is_remembered
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
    """What has to be published."""

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


def judge_steps(world: "World", published: list["Row"]) -> None:
    """Every observable transition is published once, with the id of its cause."""
    steps = list(expected(world))
    found = [
        (row.body["correlationid"].upper(), kind_of(row.body)) for row in published
    ]
    wanted = [(step.key, "|".join(sorted(step.kinds))) for step in steps]
    is_same = len(found) == len(wanted) and all(
        key == step.key and kind in step.kinds
        for (key, kind), step in zip(found, steps, strict=False)
    )
    if not is_same:
        world.blame(f"published {found}, where the history has {wanted}")
        return
    judge_ids(world, published, steps)
    for row, step in zip(published, steps, strict=True):
        kind, data = kind_of(row.body), row.body["data"]
        if (data["announced"] is True) != step.announced:
            world.blame(f"{kind} of {step.key} says announced = {data['announced']}")
        if data["event"] != step.event:
            world.blame(f"{kind} of {step.key} does not hold the event verbatim")


def judge_ids(world: "World", published: list["Row"], steps: list[Step]) -> None:
    """An id is that of its cause, and of how often it was published before."""
    counts, since = Counter[str](), dict[str, float]()
    for row, step in zip(published, steps, strict=True):
        kind = kind_of(row.body)
        cause = [
            step.key,
            kind,
            canonical(step.before) if kind == "updated" and step.before else None,
            None if kind in GONE else canonical(step.event),
        ]
        name = hashed(cause)
        may_be = {counts[name]}
        if not is_remembered(world, step.key, since.get(name, row.at), row.at):
            may_be.add(0)  # it counts anew
        ids = {hashed([*cause, n] if n else cause): n for n in may_be}
        if (n := ids.get(row.body["id"])) is None:
            world.blame(f"{kind} of {step.key} has another id than its cause gives")
        counts[name], since[name] = (n or 0) + 1, row.at


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
    """Yield what has to be published of the documents whose commits are on disk."""
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
    """Return how the end of an event that had not started may be published."""
    looks = [
        look
        for look in world.looks
        if look.at < shown.at and key in {k.upper() for k in look.events}
    ]
    gap = shown.at - looks[-1].at
    notice = not_before(last.event) - true_time(shown.at)
    is_next = bool(looks) and shown.incarnation == looks[-1].incarnation + 1
    posts = [p.at for p in world.azure.posts if p.event_id.upper() == key]
    posted = [at for at in posts if at <= shown.at]
    is_posted = any(is_remembered(world, key, at, shown.at) for at in posted)
    may = (
        is_next
        and gap <= WINDOW + 0.1
        and not is_posted
        and (world.plan.jumps or notice > timedelta(seconds=5))
    )
    is_asked = any(a.event_id.upper() == key for a in world.plan.approvals)
    is_asked = is_asked or not world.plan.is_calm("rules", "after")
    kept = [look for look in world.shown if look.at < shown.at]
    must = (
        may
        and kept[-1].incarnation == looks[-1].incarnation  # memory may have no room
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
