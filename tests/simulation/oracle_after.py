"""The judge of rules with ``after``, in the end: what a success must have brought.

An event that is published as done, and stays as it is, is posted in time; as it is, it
is posted once; and why one is withheld is published once, and is so.
"""

from collections import Counter
from typing import TYPE_CHECKING

from tests.simulation.on_the_spot import is_worse
from tests.simulation.on_the_spot_after import event_of, names_me, names_others
from tests.simulation.oracle_commands import steps_of
from tests.simulation.plan import AFTER_TYPES, Event

if TYPE_CHECKING:
    from tests.simulation.rows import Row
    from tests.simulation.world import World

_POSTED_WITHIN = 8.0  # a look, the second of the rule, a fresh document, its turn
_NOT_CALM = (
    *("post-errors", "imds-errors", "imds-odd-bodies", "jumps"),
    *("crashes", "imds-resets"),
)


def judge_after(world: "World") -> None:
    """Compare what was approved, and what was withheld, with what had to be."""
    if not world.plan.has("after"):
        return
    _judge_withheld(world)
    if not world.plan.is_calm(*_NOT_CALM):
        return
    for row in _published(world, ".command.succeeded."):
        data = row.body["data"]
        if data["action"] == "prepare":
            _judge_success(world, row, data["event"])
    _judge_repeats(world)


def _published(world: "World", kind: str) -> list["Row"]:
    """Return what one sink gets of a kind."""
    rows = (row for row in world.rows.values() if row.sink == "steady")
    return [row for row in rows if row.kind == "event" and kind in row.body["type"]]


def _judge_success(world: "World", row: "Row", done: Event) -> None:
    """An event that is published as done, and stays as it is, is approved in time."""
    for number, (began, _) in enumerate(world.lives):
        looks = [look for look in world.looks if look.life == number]
        since = next((v.at for v in looks if v.at >= max(row.at, began)), None)
        if since is None:
            continue
        ready = max(row.at + world.plan.after_delay, since)
        until = ready + _POSTED_WITHIN
        if world.ends[number] < until or not _is_steady(world, row, done, until):
            continue
        key = done["EventId"].upper()
        posts = (p for p in world.azure.posts if p.event_id.upper() == key)
        if not any(post.at <= until for post in posts):
            world.blame(f"{key} is done, and was not approved by {until:.1f} s")
        return


def _is_steady(world: "World", row: "Row", done: Event, until: float) -> bool:
    """Whether an event may be approved all the time, and nothing else is to be done."""
    key = done["EventId"].upper()
    events = [event_of(v, key) for v in world.looks if row.at - 30 <= v.at <= until]
    steps = [one for one in steps_of(world) if one.key == key and one.at <= until]
    is_last = steps[-1].body["data"]["event"] == done
    shown = [event for event in events if event is not None]
    first = next(n for n, event in enumerate(events) if event is not None)
    return (
        is_last
        and len(shown) == len(events) - first
        and all(_may_be_approved(world, event) for event in shown)
        and not any(is_worse(done, event) for event in shown)
    )


def _may_be_approved(world: "World", event: Event) -> bool:
    """Whether the rule speaks of an event that waits, and others do not matter."""
    return (
        event["EventStatus"] == "Scheduled"
        and event["EventType"] in AFTER_TYPES
        and names_me(event)
        and (world.plan.others == "ignore" or not names_others(event))
    )


def _judge_repeats(world: "World") -> None:
    """In one life, a rule posts an event as it is once."""
    asked = {message.planned.event_id for message in world.broker.messages}
    as_it_is = Counter(
        (post.life, post.event_id, str(post.shown))
        for post in world.azure.posts
        if post.event_id not in asked
    )
    for (_, event_id, _), number in as_it_is.items():
        if number > 1:
            world.blame(f"{event_id} is posted {number} times as it is")


def _judge_withheld(world: "World") -> None:
    """Why an event is withheld is so, and is published once."""
    published = _published(world, ".startrequest.withheld.")
    for body_id, number in Counter(row.body["id"] for row in published).items():
        if number > 1:
            world.blame(f"withheld is published {number} times as {body_id}")
    for row in published:
        data = row.body["data"]
        event, reason = data["event"], data["reason"]
        runs = [run for run in world.runs if run.key == row.key]
        is_so = {
            "OtherResources": names_others(event) and world.plan.others == "withhold",
            "CommandFailed drain": any(run.code not in {None, 0} for run in runs),
            "CommandWaits drain": True,
            "CommandNotRun drain": True,
        }[reason]
        if not is_so:
            world.blame(f"{row.key} is withheld for {reason}, which is not so")
