"""The judge: knows the history, and says what the forwarder did wrong.

It shares no code with the forwarder but the state file's tables: the rules of DESIGN
sections 4 to 6 stand here a second time, in other words.
"""

import hashlib
import json
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from tests.simulation.edges import Shown
from tests.simulation.plan import Event
from tests.simulation.timeline import true_time

if TYPE_CHECKING:
    from tests.simulation.world import World

GONE = frozenset({"completed", "cancelled", "ended"})
RETURN_WITHIN = 300.0
WINDOW = 10.0
LONG = 200.0


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
        told = [json.loads(body) for (body,) in db.execute(_ITEMS)]
        rows = db.execute(_DELIVERIES).fetchall()
    db.close()
    judge_steps(world, [e for e in told if ".scheduledevent." in e["type"]])
    judge_deliveries(world, rows)
    judge_order(world)
    judge_approvals(world, [e for e in told if ".startrequest." in e["type"]])


_ITEMS = "SELECT body FROM items WHERE kind = 'event' ORDER BY id"
_DELIVERIES = """SELECT d.id, d.sink, d.state, d.reason, i.id, i.body
    FROM deliveries d JOIN items i ON i.id = d.item ORDER BY d.id"""


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
        if event["id"] != hashed([*cause, count] if count else cause):
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
    is_posted = any(
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


def judge_deliveries(world: "World", rows: list[tuple[Any, ...]]) -> None:
    """Everything goes to every sink that wants it; nothing else goes anywhere."""
    went = defaultdict[int, set[str]](set)
    bodies = dict[int, Event]()
    taken = {(one.sink, one.delivery): one.cloud_event_id for one in world.taken}
    for number, sink, state, reason, item, body in rows:
        bodies[item] = event = json.loads(body)
        went[item].add(sink)
        judge_end(world, (sink, number), state, reason)
        if taken.pop((sink, number), event["id"]) != event["id"]:
            world.blame(f"{sink} took another event as delivery {number}")
    if taken:
        world.blame(f"nobody knows of {sorted(taken)}, which were taken")
    for item, event in bodies.items():
        if went[item] != wanted_by(event):
            world.blame(f"{event['type']} went to {sorted(went[item])}")


def judge_end(
    world: "World", name: tuple[str, int], state: str, reason: str | None
) -> None:
    """A delivery is taken, or was refused for good."""
    if state == "delivered":
        if not any((one.sink, one.delivery) == name for one in world.taken):
            world.blame(f"delivery {name} was never taken, and said to be delivered")
    elif state != "dead":
        world.blame(f"delivery {name} is {state} in the end")
    elif name not in world.refused and (
        reason != "unforeseen" or world.attempts.get(name, 0) < 10
    ):
        world.blame(f"delivery {name} died of {reason}")


def wanted_by(event: Event) -> set[str]:
    about = event["data"]["event"]
    is_for_all = about is None or about["EventType"] == "Reboot"
    return {"steady", "shaky"} | ({"reboots"} if is_for_all else set())


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


# -- approvals -------------------------------------------------------------------


def judge_approvals(world: "World", outcomes: list[Event]) -> None:
    """What had to be relayed was; what must not be was not; each told once."""
    asked = {
        (m.planned.event_id.upper(), m.planned.at)
        for m in world.broker.messages
        if m.planned.kind in {"valid", "seen", "again"}
    }
    for post in world.azure.posts:
        if not any(k == post.event_id.upper() and at <= post.at for k, at in asked):
            world.blame(f"POST of {post.event_id}, which nobody asked for")
    sent = Counter(m.planned.message_id for m in world.broker.messages)
    # One that is delivered again after its twin was decided may be told again: the
    # id is the same, so whoever removes repeats is not told twice.
    once = {o["id"]: o["data"]["request"]["messageId"] for o in outcomes}
    told = Counter(once.values())
    if sent != told:
        world.blame(f"outcomes {dict(told)} of messages {dict(sent)}")
    if len(outcomes) > len(once) and not world.plan.has("settle-errors"):
        world.blame("an outcome is told twice")
    for outcome in outcomes:
        judge_outcome(world, outcome["data"])
    for message in world.broker.messages:
        if message.planned.kind == "valid":
            judge_wait(world, message.planned.event_id.upper(), message.planned.at)


def judge_outcome(world: "World", data: Event) -> None:
    kind, key = data["outcome"], str(data["eventId"]).upper()
    name = data["request"]["messageId"]
    messages = [m for m in world.broker.messages if m.planned.message_id == name]
    planned = {m.planned.kind for m in messages}
    decided = datetime.fromisoformat(data["observedAt"])
    is_told_when = not world.plan.jumps and kind == "unknown-event"
    statuses = {
        event["EventStatus"]
        for look in (world.shown if kind == "unknown-event" else world.looks)
        if true_time(look.at) <= decided or not is_told_when
        for event in look.events.values()
        if event["EventId"].upper() == key
    }
    has_restarted = len(world.lives) > 1
    posts = [post for post in world.azure.posts if post.event_id.upper() == key]
    is_taken = any(post.is_taken for post in posts)
    is_in_doubt = has_restarted or any(not post.is_answered for post in posts)
    troubles = {"post-errors", "imds-errors", "imds-odd-bodies"}
    can_fail = bool(troubles & world.plan.troubles)
    is_possible = {
        "invalid": "invalid" in planned,
        "unknown-event": not statuses or "unknown" in planned or world.plan.jumps,
        "expired": "expired" in planned,
        "denied": "seen" in planned,
        "relayed": is_taken or (data["confirmed"] is False and is_in_doubt),
        "already-started": "Started" in statuses,
        "event-ended": bool(statuses),
        "rejected": world.plan.has("post-errors"),
        "failed": can_fail,
    }[kind]
    if not is_possible:
        world.blame(f"{kind} of {key} cannot have come of {sorted(planned)}")
    for mark, only in (("invalid", {"invalid"}), ("unknown", {"unknown-event"})):
        if planned == {mark} and kind not in only:
            world.blame(f"{kind} is told of an approval that is {mark}")
    is_late = kind == "expired" or (kind == "failed" and can_fail)
    if planned == {"expired"} and not is_late and not has_restarted:
        world.blame(f"{kind} is told of an approval that is expired")


def judge_wait(world: "World", key: str, since: float) -> None:
    """An event that was approved does not stay Scheduled for minutes."""
    plan, until = world.plan, since + LONG
    if plan.has("post-errors") or plan.has("imds-errors"):
        return
    if not any(began <= since and until <= ended for began, ended in world.lives):
        return
    looks = [look for look in world.looks if since + 1 < look.at < until]
    statuses = {
        next(
            (
                event["EventStatus"]
                for event in look.events.values()
                if event["EventId"].upper() == key
            ),
            None,
        )
        for look in looks
    }
    is_posted = any(
        post.event_id.upper() == key and post.at <= until for post in world.azure.posts
    )
    if looks and statuses == {"Scheduled"} and not is_posted:
        world.blame(f"{key} was approved at {since:.1f} s, and nobody told IMDS")
