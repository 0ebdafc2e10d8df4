"""The judge of commands: what had to be run was, and nothing for what is over.

A step of an event that names this VM is routed to the command. It is run, or a later
step has overtaken it, or there is nothing to be prepared for any more; whatever was
prepared is restored; and what became of each step is published once.
"""

import itertools
import json
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, cast

from tests.simulation.oracle_steps import GONE, hashed, kind_of
from tests.simulation.plan import DRAINED_TYPES, HOOK_TIMEOUT, Event
from tests.simulation.timeline import true_time
from tests.support.builders import ME

if TYPE_CHECKING:
    from tests.simulation.hooks import HookRun
    from tests.simulation.life import Life
    from tests.simulation.rows import Row
    from tests.simulation.world import World

STEPS = frozenset({"scheduled", "updated", *GONE})
_OUTCOMES = {"delivered": "succeeded", "dead": "failed", "skipped": "skipped"}
_LIMIT = HOOK_TIMEOUT + 15
_STOPPED_WITHIN = 2.5  # a look each second, and what it takes to end
_SEEN_WITHIN = 0.5
_MOST_ATTEMPTS = 3
_RETRIED = {75}


def fits(event: Event) -> bool:
    """Whether the command is asked for by the configuration for an event."""
    return event["EventType"] in DRAINED_TYPES and str(ME.vm_name) in event["Resources"]


def is_restore(transition: str, event: Event) -> bool:
    """Whether a step is one after which everything is as it was."""
    return transition in GONE or not fits(event)


def asks_for_command(event: Event) -> bool:
    """Whether a step is one that a command which follows its event is told of.

    A start is one only where it leaves nothing to be prepared for.
    """
    if kind_of(event) != "started":
        return kind_of(event) in STEPS
    now, before = event["data"]["event"], event["data"]["previous"]
    return before is not None and fits(before) and not fits(now)


# -- at the moment itself ------------------------------------------------------------


def judge_begin(life: "Life", run: "HookRun") -> None:
    """Blame a command that must not begin now."""
    world = life.world
    others = [r for r in world.runs if r.life == life.number and r.ended is None]
    if len(others) > 1:
        world.blame(f"{run.name} is the third at a time")
    for other in others:
        is_at_once = run.began == other.began and _may_join(world, other, run)
        if not (is_at_once or _may_join(world, run, other)):
            world.blame(f"{run.name} begins while {other.name} is not over")
    meant = "restore" if is_restore(run.transition, run.event) else "prepare"
    if run.action != meant:
        world.blame(f"{run.name} is not what its step asks for")
    looks = [look for look in world.looks if look.life == life.number][-2:]
    if not looks:
        world.blame(f"{run.name} begins before the first document of its life")
    elif run.others not in {_others(look.events, run.key) for look in looks}:
        world.blame(f"{run.name} is told of {run.others} beside its event")
    if run.action == "prepare":
        _judge_prepare(life, run)


def _others(events: Mapping[str, Event], key: str) -> frozenset[str]:
    """Return the EventIds of the others that are to be prepared for."""
    return frozenset(k for k, e in events.items() if k.upper() != key and fits(e))


def _may_join(world: "World", run: "HookRun", other: "HookRun") -> bool:
    """Whether a prepare cannot wait for the end of another run."""
    if run.action != "prepare" or run.key == other.key or not run.event["NotBefore"]:
        return False
    if world.plan.jumps:
        return True
    ends = true_time(other.began + _LIMIT)
    not_before = parsedate_to_datetime(run.event["NotBefore"])
    return not_before < ends + timedelta(seconds=1)


def _judge_prepare(life: "Life", run: "HookRun") -> None:
    """Blame a prepare for what is over, has started or has changed since."""
    world = life.world
    looks = [look for look in world.looks if look.life == life.number][-2:]
    shown = [
        event["EventStatus"]
        for look in looks
        for key, event in look.events.items()
        if key.upper() == run.key
    ]
    if not shown:
        world.blame(f"{run.name} begins, and no document of this life shows its event")
    elif {*shown} == {"Started"}:
        world.blame(f"{run.name} begins for what has started")
    newer = later_steps(world, run)[-1:]
    if newer and newer[-1].at < run.began - _SEEN_WITHIN:
        world.blame(
            f"{run.name} begins although {newer[-1].body['type']} came after it"
        )


def later_steps(world: "World", run: "HookRun") -> list["Row"]:
    """Return the later steps of the event that a run was for."""
    mine = [row for row in steps_of(world) if row.key == run.key]
    place = max(row.id for row in mine if row.body["id"] == run.cause)
    return [row for row in mine if row.id > place]


def steps_of(world: "World") -> list["Row"]:
    """Return all that was routed to the command."""
    return [row for row in world.rows.values() if row.sink == "drain"]


def judge_successes(life: "Life") -> None:
    """A success is kept of what has succeeded, and was not undone since."""
    appearances = life.database.rows_of("appearances")
    successes = life.database.rows_of("command_successes")
    for (_, key), (appearance, content, *_) in successes.items():
        gone = appearances.get((key,), (0,))[0]
        runs = [run for run in life.world.runs if run.key == key]
        cause = json.loads(cast("bytes", content))["id"]
        meant = [run for run in runs if run.cause == cause and run.code == 0]
        if appearance != gone or not meant:
            life.world.blame(f"a success is kept for {key} that was none")
        elif any(r.action == "restore" and r.began >= meant[-1].began for r in runs):
            life.world.blame(f"the success for {key} is kept, and it was restored")


# -- in the end ----------------------------------------------------------------------


def judge_commands(world: "World", states: dict[int, list[Any]], left: int) -> None:
    """Compare what was run with what had to be.

    Args:
        world: what happened.
        states: of all deliveries, in the end.
        left: how many successes are still kept.
    """
    if not world.plan.has("commands"):
        return
    published = dict[int, "Row"]()
    for row in world.rows.values():
        if row.kind == "event" and ".command." in row.body["type"]:
            published.setdefault(row.item, row)
    by_id = Counter(row.body["id"] for row in published.values())
    for row in steps_of(world):
        _judge_step(world, row, str(states.get(row.id, [None])[0]), by_id)
    for result in published.values():
        if result.body["data"]["action"] == "prepare":
            _judge_skip(world, result)
    for run in world.runs:
        _judge_stop(world, run)
    for key in {run.key for run in world.runs}:
        _judge_restored(world, [run for run in world.runs if run.key == key])
    if left:
        world.blame(f"{left} successes are kept of events that are gone")


def _judge_step(
    world: "World", row: "Row", state: str, published: Counter[str]
) -> None:
    """A step has an end, and it is published once."""
    cause = row.body["id"]
    ends = _OUTCOMES.values()
    found = {end: published[_result_id(row, end)] for end in ends}
    meant = {end: int(end == _OUTCOMES.get(state)) for end in ends}
    if found != meant:
        world.blame(
            f"{row.body['type']} of {row.key} is {state}, and published as {found}"
        )
        return
    runs = [run for run in world.runs if run.cause == cause]
    failures = [r for r in runs if r.code not in {None, 0}]
    is_final = any(r.code not in _RETRIED and not _is_killed(r) for r in failures)
    is_right = {
        "delivered": any(run.code == 0 for run in runs),
        "dead": is_final
        or len(failures) >= _MOST_ATTEMPTS
        or (bool(failures) and _has_started(world, row)),
        "skipped": True,
    }[state]
    if not is_right:
        names = [run.name for run in runs]
        world.blame(f"{row.body['type']} of {row.key} is {state} after {names}")
    transition, event = row.body["data"]["transition"], row.body["data"]["event"]
    if state == "skipped" and is_restore(transition, event) and fits(event):
        world.blame(f"the restore of {row.key} was skipped")


def _result_id(row: "Row", end: str) -> str:
    """Return the id of what is published of the end of a step."""
    return hashed([ME.vm_id, row.sink, row.body["id"], end])


def _has_started(world: "World", row: "Row") -> bool:
    """Whether it was seen that the event of a prepare has started."""
    data = row.body["data"]
    return not is_restore(data["transition"], data["event"]) and any(
        event["EventStatus"] == "Started"
        for look in world.looks
        for key, event in look.events.items()
        if look.at >= row.at and key.upper() == row.key
    )


def _is_killed(run: "HookRun") -> bool:
    return run.code is not None and run.code < 0


def _judge_skip(world: "World", result: "Row") -> None:
    """A prepare is skipped where something has come between, and only there."""
    data = result.body["data"]
    if ".skipped." not in result.body["type"]:
        return
    key = data["event"]["EventId"].upper()
    steps = [row for row in steps_of(world) if row.key == key and row.at <= result.at]
    last = steps[-1]  # it may show what an earlier one has shown
    is_overtaken = result.body["id"] != _result_id(last, "skipped")
    shown = [look for look in world.looks if look.at <= result.at][-2:]
    statuses = {
        e["EventStatus"]
        for look in shown
        for k, e in look.events.items()
        if k.upper() == key
    }
    absent = any(key not in {k.upper() for k in look.events} for look in shown)
    is_done = any(
        r.key == key and r.code == 0 and r.began < result.at for r in world.runs
    )
    if not (is_overtaken or absent or "Started" in statuses or is_done):
        world.blame(f"the prepare of {key} is skipped for nothing: {data['reason']}")


def _judge_stop(world: "World", run: "HookRun") -> None:
    """A prepare does not go on when its event is over."""
    if run.action != "prepare" or run.ended is None:
        return
    for row in later_steps(world, run):
        data = row.body["data"]
        if row.life != run.life or not is_restore(data["transition"], data["event"]):
            continue
        if run.ended > max(row.at, run.began) + _STOPPED_WITHIN:
            world.blame(
                f"{run.name} goes on, although its event is over at {row.at:.1f} s"
            )


def _judge_restored(world: "World", runs: list["HookRun"]) -> None:
    """Whatever was prepared is restored, when nothing is left of it."""
    prepares = [run for run in runs if run.action == "prepare"]
    if not prepares:
        return
    after = [r for r in runs if r.action == "restore" and r.began > prepares[-1].began]
    if not any(run.code is not None for run in after):
        world.blame(f"{prepares[-1].name} is not followed by a restore")
    for restore, prepare in itertools.product(after, prepares):
        if restore.began < (prepare.ended or restore.began):
            world.blame(f"{restore.name} begins before {prepare.name} has ended")
