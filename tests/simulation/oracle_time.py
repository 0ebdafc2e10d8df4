"""The judge of time: when something had to be published or tried, and when not yet.

Everything is counted in seconds that pass for everybody, whatever the wall clock of the
machine shows. A time in which no forwarder lived counts for nobody.
"""

import itertools
from collections import defaultdict
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from tests.simulation.batching import wait_of
from tests.simulation.plan import POLL
from tests.simulation.timeline import true_time

if TYPE_CHECKING:
    from tests.simulation.edges import Tried
    from tests.simulation.rows import Row
    from tests.simulation.world import World

_URGENT_BEFORE = timedelta(seconds=900)
_URGENT_AFTER_START = 300.0
_SPACING = 0.25
_TRY_EVERY = 3.75  # 3 s, and a quarter of it
_LONGEST_BACKOFF = 60.0
LONGEST_HANG = 60.0
_LONGEST_PROBE = 300.0
_START = 2.0  # what each life may take before it acts
SINK = {"timeout", "server"}
_MOST_A_MINUTE = 45


def judge_time(world: "World") -> None:
    """Compare when things happened with when they had to."""
    judge_looks(world)
    judge_news(world)
    tries = defaultdict[str, list["Tried"]](list)
    for tried in sorted(world.tried, key=lambda one: one.at):
        tries[tried.sink].append(tried)
    for mine in tries.values():
        judge_retries(world, mine)
        judge_outage(world, mine)
        judge_return(world, mine)
        judge_wishes(world, mine)
        judge_parking(world, mine)
    judge_first(world, tries["steady"])
    judge_notice(world, tries["shaky"])


def alive(world: "World", since: float, until: float) -> float:
    """Return the seconds between two moments in which a forwarder began attempts."""
    spans = zip(world.lives, world.ends, strict=True)
    return sum(
        max(0.0, min(until, end) - max(since, began)) for (began, _), end in spans
    )


def running(world: "World", since: float, until: float) -> float:
    """Return the seconds between two moments in which a forwarder ran.

    They include the seconds of its stop, by which deliveries grow older too.
    """
    return sum(
        max(0.0, min(until, end) - max(since, began)) for began, end in world.lives
    )


def lives_within(world: "World", since: float, until: float) -> int:
    """Return how many lives began between two moments."""
    return sum(since < began <= until for began, _ in world.lives)


def is_refusing(world: "World") -> bool:
    """Whether a sink may be parked."""
    return world.plan.has("sink-refusals") or world.plan.outage[2] == "unauthorized"


def is_on(world: "World", life: int, until: float) -> bool:
    """Whether a life goes on until then."""
    return world.ends[life] > until


# -- IMDS ------------------------------------------------------------------------


def judge_looks(world: "World") -> None:
    """The document is read every two seconds, and nothing sooner than 250 ms."""
    for (at, life), (following, other) in itertools.pairwise(world.requests):
        if life == other and following - at < _SPACING - 1e-6:
            world.blame(f"requests to IMDS at {at:.3f} s and {following:.3f} s")
    if not world.plan.is_calm("imds-errors", "imds-odd-bodies", "little-memory"):
        return
    slow = 3 * world.plan.latency + 2 * world.plan.slow_marks
    looks = defaultdict[int, list[float]](list)
    for look in world.looks:
        looks[look.life].append(look.at)
    for life, (began, _) in enumerate(world.lives):
        marks = [began, *looks[life], world.ends[life]]
        for at, following in itertools.pairwise(marks):
            if following - at > POLL + 1.6 + slow:
                world.blame(f"no look at IMDS from {at:.1f} s to {following:.1f} s")


# -- a sink that is well ---------------------------------------------------------


def judge_news(world: "World") -> None:
    """A sink that is well gets an event at once."""
    taken = dict[int, float]()
    for one in world.taken:
        if one.sink == "steady":
            taken.setdefault(one.delivery, one.at)
    rows = [row for row in world.rows.values() if row.sink == "steady"]
    for row in rows:
        at = taken.get(row.id)
        if at is None:
            continue  # judged elsewhere
        others = sum(
            other.at < at and taken.get(other.id, at) > row.at for other in rows
        )
        most = 2.0 + world.plan.pace * (others + 1)
        most += _START * lives_within(world, row.at, at)
        back = sum(
            -jump.by
            for jump in world.jumps
            if jump.life is None and jump.by < 0 and row.at < jump.at < at
        )  # a start takes it for an ordinary backoff
        most += min(back, _LONGEST_BACKOFF)
        if (took := alive(world, row.at, at)) > most:
            world.blame(f"steady got {row.id} after {took:.1f} s")


def judge_first(world: "World", tries: list["Tried"]) -> None:
    """Nothing ordinary goes while something urgent waits that never was tried."""
    if world.plan.jumps:
        return
    rows = [row for row in world.rows.values() if row.sink == "steady"]
    began = dict[int, float]()
    for tried in tries:
        began.setdefault(tried.delivery, tried.at)
    answered = {tried.delivery: tried.ended for tried in tries if tried.error is None}
    lately = 0.2 + wait_of(world.plan, "steady")  # for company, after it was chosen
    for tried in tries:
        if may_be_urgent(world, tried.delivery, tried.at):
            continue
        for row in rows:
            waits = row.at < tried.at - lately and began.get(row.id, 1e9) > tried.at
            if not (waits and row.life == tried.life and is_urgent(row, tried.at)):
                continue
            is_head = all(
                answered.get(other.id, 1e9) < tried.at - lately
                for other in rows
                if other.key == row.key and other.id < row.id
            )
            if is_head:
                world.blame(f"{tried.delivery} goes while {row.id} waits, urgent")


def is_urgent(row: "Row", at: float) -> bool:
    """Whether a delivery by itself goes before everything else."""
    kind = str(row.body["type"]).split(".")[-2] if row.kind == "event" else ""
    if kind == "started" and ".scheduledevent." in row.body["type"]:
        return row.at <= at < row.at + _URGENT_AFTER_START - 1
    notice = notice_of(row, at)
    in_time = notice is not None and timedelta(0) < notice <= _URGENT_BEFORE
    return kind in {"scheduled", "updated"} and in_time


def notice_of(row: "Row", at: float) -> timedelta | None:
    """Return the notice that is left of what is published; None = it has none."""
    if ".scheduledevent." not in str(row.body.get("type")):
        return None
    not_before = row.body["data"]["event"]["NotBefore"]
    if not not_before:
        return None
    moment: datetime = parsedate_to_datetime(not_before)
    return moment - true_time(at)


def may_be_urgent(world: "World", delivery: int, at: float) -> bool:
    """Whether a delivery, or another of its event that lends it, may be urgent."""
    mine = world.rows[delivery]
    return any(
        is_urgent(row, at) or row.at > at - 1
        for row in world.rows.values()
        if row.key == mine.key and row.key is not None and row.at <= at + 1
    )


# -- a sink that fails -----------------------------------------------------------


def by_delivery(tries: list["Tried"]) -> list[list["Tried"]]:
    """Return the attempts at each delivery."""
    found = defaultdict[int, list["Tried"]](list)
    for tried in tries:
        found[tried.delivery].append(tried)
    return list(found.values())


def judge_retries(world: "World", tries: list["Tried"]) -> None:
    """What failed is tried again in time, and not without end."""
    is_refused = is_refusing(world)
    hang = 3 * LONGEST_HANG if world.plan.has("sink-hangs") else 0.0
    for mine in by_delivery(tries):
        for one, following in itertools.pairwise(mine):
            wishes = sum(
                t.wish for t in tries if one.ended - 31 <= t.ended <= following.at
            )
            most = _LONGEST_BACKOFF + hang + wishes + 5 + 8 * world.plan.pace
            if is_refused:  # probes may fail to the end; then one gets through
                most += max(0.0, world.plan.end - one.ended) + 2 * _LONGEST_PROBE + 100
            most += 5 * lives_within(world, one.at, following.at)
            took = alive(world, one.ended, following.at)
            if one.error != "cut" and took > most:
                world.blame(f"{one} is tried again {took:.0f} s later")
        for one, later in zip(mine, mine[_MOST_A_MINUTE:], strict=False):
            is_fast = later.at - one.at < 60
            if is_fast and not may_be_urgent(world, one.delivery, one.at):
                world.blame(f"{one} is tried {_MOST_A_MINUTE} times in a minute")


def judge_outage(world: "World", tries: list["Tried"]) -> None:
    """A sink that cannot be reached is tried at least every 3 s."""
    if is_refusing(world):
        return
    last = {tried.delivery: tried for tried in tries}
    for one in tries:
        until = one.ended + _TRY_EVERY + 0.3
        if one.error not in SINK or last[one.delivery] is one:
            continue
        near = [t for t in tries if one.ended - 31 <= t.ended <= until]
        is_back = any(t.error is None and t.ended >= one.ended for t in near)
        is_held = any(t.wish for t in near)
        if is_back or is_held or not is_on(world, one.life, until):
            continue
        if not any(one.ended <= t.at <= until for t in tries):
            world.blame(f"{one.sink} failed at {one.ended:.1f} s and is let alone")


def judge_return(world: "World", tries: list["Tried"]) -> None:
    """What failed for the sink's sake goes as soon as one attempt gets through."""
    if is_refusing(world) or world.plan.has("sink-hangs"):
        return
    for success in tries:
        if success.error is not None:
            continue
        before = [
            t for t in tries if t.ended < success.ended and t.life == success.life
        ]
        if not before or max(before, key=lambda t: t.ended).error not in SINK:
            continue
        last = {t.delivery: t for t in before}
        waiting = [t for t in last.values() if t.error in SINK]
        until = success.ended + 2.5 + world.plan.pace * (len(waiting) + 6)
        after = [t for t in tries if success.ended < t.ended <= until]
        if any(t.error for t in after) or not is_on(world, success.life, until):
            continue
        # One request may have brought both the success and the wish to be let alone.
        near = [t for t in tries if success.ended - 31 < t.ended <= success.ended]
        if any(t.wish and t.life == success.life for t in near):
            continue
        later = {t.delivery for t in tries if t.ended > success.ended}
        for one in waiting:
            is_open = one.delivery in later and one.delivery != success.delivery
            tried = [t.at for t in tries if t.delivery == one.delivery]
            if is_open and not any(one.ended <= at <= until for at in tried):
                world.blame(f"{one} waits though {one.sink} is back at {until:.1f} s")


def judge_wishes(world: "World", tries: list["Tried"]) -> None:
    """A sink that wishes to be let alone is, but for what is urgent.

    The next life knows the wish only if this one lived to write it down, and what was
    urgent then had another time written down.
    """
    if world.plan.jumps:
        return
    for one in (t for t in tries if t.wish):
        is_kept = one.ended + 0.1 < world.lives[one.life][1]
        is_kept = is_kept and not may_be_urgent(world, one.delivery, one.ended)
        for tried in tries:
            is_within = one.ended + 0.01 < tried.at < one.ended + one.wish - 0.01
            is_later = is_kept and tried.delivery == one.delivery
            is_same = tried.life == one.life or is_later
            if not (is_within and is_same):
                continue
            if not may_be_urgent(world, tried.delivery, tried.at):
                world.blame(f"{tried} does not wait as asked for at {one.ended:.1f} s")


def judge_parking(world: "World", tries: list["Tried"]) -> None:
    """A sink that refuses everything is let alone, but for what is urgent."""
    if world.plan.jumps:
        return
    for life in range(len(world.lives)):
        row = 0
        last: Tried | None = None
        for tried in sorted(
            (t for t in tries if t.life == life), key=lambda t: t.ended
        ):
            is_refused = tried.error == "unauthorized"
            is_later = last is None or tried.at >= last.ended
            row = row + is_later if is_refused else 0
            if not is_refused:
                last = None
                continue
            last = tried
            if row < 4:
                continue
            until = tried.ended + _LONGEST_BACKOFF - 1
            between = [
                t
                for t in tries
                if tried.ended + 0.01 < t.at < until
                and t.life == life
                and not may_be_urgent(world, t.delivery, t.at)
            ]
            in_time = [t for t in tries if t.life == life and t.ended < until]
            if any(t.error != "unauthorized" and t.ended > tried.at for t in in_time):
                continue
            if between:
                world.blame(f"{between[0]} though {tried.sink} refuses everything")


def judge_notice(world: "World", tries: list["Tried"]) -> None:
    """What is urgent is tried twice before its NotBefore, and soon again."""
    if world.plan.jumps or not world.plan.is_calm("sink-hangs", "bursts"):
        return
    for mine in by_delivery(tries):
        row = world.rows[mine[0].delivery]
        notice = notice_of(row, row.at)
        if notice is None or not is_urgent(row, row.at):
            continue
        ends = row.at + notice.total_seconds()
        if mine[0].at > row.at + 1 or not is_on(world, row.life, ends):
            continue
        in_time = [t for t in mine if t.at < ends]
        is_long = notice.total_seconds() > 20
        if is_long and mine[1:] and len(in_time) < 2 and in_time[0].error:
            world.blame(f"{in_time[0]} is urgent, and was tried once in time")
        if not is_refusing(world):
            _judge_backoff(world, mine, row, ends)


def _judge_backoff(
    world: "World", mine: list["Tried"], row: "Row", ends: float
) -> None:
    """What is urgent waits for a quarter of its notice at most."""
    for one, following in itertools.pairwise(mine):
        left = ends - one.ended
        if one.wish or one.error is None or left < 5 or one.life != following.life:
            continue
        if any(
            other.key == row.key and row.at < other.at <= following.at
            for other in world.rows.values()
        ):
            break  # what came later has lent it another end
        if following.at > one.ended + left / 4 + 1:
            world.blame(f"{one} is urgent, and waits until {following.at:.1f} s")
