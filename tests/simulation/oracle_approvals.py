"""The judge of approvals: what had to be relayed, published, answered, and what not."""

import json
from collections import Counter
from typing import TYPE_CHECKING

from tests.simulation.on_the_spot import SKEW, SLACK, is_worse
from tests.simulation.plan import AUTO_DELAY, EXPIRES_SOON, FULL_CIRCLE, Event

if TYPE_CHECKING:
    from tests.simulation.approval_queue import Message
    from tests.simulation.rows import Row
    from tests.simulation.world import World

_ASKING = {"valid", "seen", "soon", "again"}
_COMPLETE = "complete"
_ENDS = {
    "relayed": _COMPLETE,
    "already-started": _COMPLETE,
    "event-ended": _COMPLETE,
    "invalid": "InvalidMessage",
    "expired": "Expired",
    "unknown-event": "UnknownEvent",
    "denied": "Denied",
    "rejected": "RejectedByImds",
    "failed": "ImdsUnavailable",
}
LONGEST_WRITE = 6.0  # one that is under way, and the next; 3 s each at most
_SETTLED_WITHIN = 40.0
_NOT_CALM = (
    "post-errors",
    "imds-errors",
    "imds-odd-bodies",
    "imds-resets",
    "settle-errors",
    "little-memory",
    "rules",
)


def judge_approvals(world: "World") -> None:
    """What had to be relayed was; what must not be was not; each published once."""
    outcomes = [
        row
        for row in world.rows.values()
        if row.sink == "steady" and ".startrequest." in row.body["type"]
    ]
    _judge_count(world, [row for row in outcomes if row.message_id is not None])
    for row in outcomes:
        if row.message_id is not None:
            judge_outcome(world, row)
            judge_doubt(world, row)
    for message in world.broker.messages:
        judge_wait(world, message)
        judge_settled(world, message, outcomes)
    if world.plan.has("rules"):
        judge_rules(world)
    judge_replies(world, outcomes)


def _judge_count(world: "World", outcomes: list["Row"]) -> None:
    sent = Counter[str | None](m.planned.message_id for m in world.broker.messages)
    # One that is delivered again after its twin was decided may be published again: the
    # id is the same, so whoever removes repeats does not see it twice.
    once = {row.body["id"]: row.message_id for row in outcomes}
    published = Counter(once.values())
    missing = sum((sent - published).values())
    if (
        published - sent or missing > world.lost / 2
    ):  # an outcome is for two sinks or three
        world.blame(f"outcomes {dict(published)} of messages {dict(sent)}")
    may_repeat = world.plan.has("settle-errors") or world.plan.has("short-retention")
    if len(outcomes) > len(once) and not may_repeat:
        world.blame("an outcome is published twice")


def sightings(world: "World", key: str, until: float) -> list[tuple[float, Event]]:
    """Return when an event was shown, and as what: if there was room to keep it."""
    is_kept = world.plan.has("little-memory")
    return [
        (look.at, event)
        for look in (world.shown if is_kept else world.looks)
        if look.at <= until
        for event in look.events.values()
        if event["EventId"].upper() == key
    ]


def is_known(world: "World", key: str, until: float) -> bool:
    """Whether an event was shown and kept: not to a life that died soon after."""
    kept = {look.at for look in world.shown}
    lost = {
        look.at
        for look in world.looks
        if not world.clean[look.life]
        and look.at + LONGEST_WRITE >= world.lives[look.life][1]
        and look.at not in kept
    }
    return any(at not in lost for at, _ in sightings(world, key, until))


def judge_outcome(world: "World", row: "Row") -> None:
    data, plan = row.body["data"], world.plan
    kind, key = data["outcome"], str(data["eventId"]).upper()
    messages = [
        m for m in world.broker.messages if m.planned.message_id == row.message_id
    ]
    planned = {m.planned.kind for m in messages}
    seen = sightings(world, key, row.at)
    statuses = {event["EventStatus"] for _, event in seen}
    posts = [p for p in world.azure.posts if p.event_id.upper() == key]
    is_answered = any(p.is_taken and p.is_answered and p.at <= row.at for p in posts)
    is_forgotten = plan.has("short-retention") and (
        bool(plan.jumps) or (bool(seen) and row.at - seen[-1][0] > plan.retention - 5)
    )
    can_fail = not plan.is_calm(
        "post-errors", "imds-errors", "imds-odd-bodies", "little-memory"
    )
    is_denied = plan.has("rules") and any(
        event["EventType"] == "Redeploy" for _, event in seen
    )
    late = [m.planned.at + EXPIRES_SOON + SKEW - SLACK for m in messages]
    is_possible = {
        "invalid": "invalid" in planned,
        "unknown-event": not is_known(world, key, row.at)
        or is_forgotten
        or "unknown" in planned,
        "expired": "expired" in planned or ("soon" in planned and row.at >= min(late)),
        "denied": is_denied
        or any(m.seen and is_worse(m.seen, e) for m in messages for _, e in seen),
        "relayed": is_answered or (data["confirmed"] is False and key in world.marked),
        "already-started": "Started" in statuses,
        "event-ended": bool(seen),
        "rejected": plan.has("post-errors"),
        "failed": can_fail,
    }[kind]
    if not is_possible:
        world.blame(f"{kind} of {key} cannot have come of {sorted(planned)}")
    for mark, only in (("invalid", {"invalid"}), ("unknown", {"unknown-event"})):
        if planned == {mark} and kind not in only:
            world.blame(f"{kind} is published of an approval that is {mark}")
    is_late = kind == "expired" or (kind == "failed" and can_fail)
    if planned == {"expired"} and not is_late:
        world.blame(f"{kind} is published of an approval that is expired")


def judge_doubt(world: "World", row: "Row") -> None:
    """A POST that may have worked did, where the event is Started or gone by now."""
    key = str(row.body["data"]["eventId"]).upper()
    asking = [
        m
        for m in world.broker.messages
        if m.planned.event_id.upper() == key and m.planned.kind in _ASKING
    ]
    names = {m.planned.message_id for m in asking}
    if len(asking) != 1 or names != {row.message_id}:
        return  # nobody knows whose POST it was
    if not world.plan.is_calm("rules", "after", "short-retention"):
        return
    is_doubtful = any(
        post.event_id.upper() == key
        and asking[0].planned.at <= post.at <= row.at
        and (post.life < row.life or (not post.is_answered and post.at < row.at))
        for post in world.azure.posts
    )
    kind = row.body["data"]["outcome"]
    if is_doubtful and kind in {"already-started", "event-ended", "unknown-event"}:
        world.blame(f"{kind} of {key}, a POST of which was begun")


def judge_wait(world: "World", message: "Message") -> None:
    """An event that was approved does not stay Scheduled."""
    planned = message.planned
    others = sum(abs(m.planned.at - planned.at) < 5 for m in world.broker.messages)
    turns = (2 * others - 1) * (0.25 + 1.5 * world.plan.latency)
    since, until = planned.at, planned.at + FULL_CIRCLE + turns
    key = planned.event_id.upper()
    if planned.kind not in {"valid", "soon"} or not world.plan.is_calm(*_NOT_CALM):
        return
    if world.plan.slow_marks or not _is_within_a_life(world, since, until):
        return
    before = [look for look in world.looks if look.at < since]
    shown = before[-1].events if before else {}
    statuses = {e["EventStatus"] for e in shown.values() if _key(e) == key}
    goes = any(
        scene.event_id.upper() == key
        and scene.change in {"start", "vanish"}
        and before[-1].at < scene.at <= until
        for scene in world.plan.scenes
    )
    is_posted = any(
        post.event_id.upper() == key and post.at <= until for post in world.azure.posts
    )
    if statuses == {"Scheduled"} and not goes and not is_posted:
        world.blame(f"{key} was approved at {since:.1f} s, and nobody told IMDS")


def judge_settled(world: "World", message: "Message", outcomes: list["Row"]) -> None:
    """A message is settled in time, and as its outcome says."""
    kinds = {
        row.body["data"]["outcome"]
        for row in outcomes
        if row.message_id == message.planned.message_id
    }
    if len(kinds) == 1 and message.settled != _ENDS[next(iter(kinds))]:
        world.blame(f"{message.planned} ends as {message.settled} after {kinds}")
    until = message.planned.at + _SETTLED_WITHIN
    is_calm = world.plan.is_calm(*_NOT_CALM)
    is_alone = _is_within_a_life(world, message.planned.at, until)
    if is_calm and is_alone and message.settled_at > until:
        world.blame(f"{message.planned} is settled at {message.settled_at:.1f} s only")


def judge_rules(world: "World") -> None:
    """What is to be approved unasked is, as soon as its delay is over."""
    troubles = {*_NOT_CALM} - {"rules"} | {"jumps"}
    if not world.plan.is_calm(*troubles):
        return
    for number, (began, _) in enumerate(world.lives):
        looks = [look for look in world.looks if look.life == number]
        for key in {key for look in looks for key in look.events}:
            first = next(look for look in looks if key in look.events)
            event, until = first.events[key], first.at + AUTO_DELAY + 8
            is_first = not any(key in v.events for v in world.looks if v.at < began)
            meant = [look for look in looks if first.at <= look.at <= until]
            is_same = all(look.events.get(key) == event for look in meant)
            is_meant = (event["EventType"], event["EventStatus"]) == (
                "Freeze",
                "Scheduled",
            )
            is_alive = world.ends[number] > until
            if not (is_first and is_same and is_meant and is_alive):
                continue
            if not any(p.event_id == key and p.at < until for p in world.azure.posts):
                world.blame(f"{key} was not approved unasked by {until:.1f} s")


def judge_replies(world: "World", outcomes: list["Row"]) -> None:
    """Who asked for a reply, and may have one, gets one with what was published."""
    replies = [row for row in world.rows.values() if row.kind == "reply"]
    messages = world.broker.messages
    wanted = Counter[str | None](
        m.planned.message_id for m in messages if m.planned.reply_to == "replies"
    )
    given = Counter(row.message_id for row in replies)
    is_more = world.plan.has("settle-errors") or world.plan.has("short-retention")
    if wanted - given or (given - wanted and not is_more):
        world.blame(f"replies {dict(given)} to {dict(wanted)}")
    if given.keys() - wanted.keys():
        world.blame(f"replies {dict(given)}, of which nobody may have some")
    published = {(row.message_id, row.body["data"]["outcome"]) for row in outcomes}
    for row in replies:
        outcomes_of = json.loads(row.body["body"])["outcomes"]
        is_published = all(
            (row.message_id, o["outcome"]) in published for o in outcomes_of
        )
        if row.body["entity"] != "replies" or not (is_published or world.lost):
            world.blame(f"the reply to {row.message_id} is {row.body}")


def _is_within_a_life(world: "World", since: float, until: float) -> bool:
    spans = zip(world.lives, world.ends, strict=True)
    return any(began <= since and until <= end for (began, _), end in spans)


def _key(event: Event) -> str:
    return str(event["EventId"]).upper()
