"""Bursts of approvals in virtual time: how IMDS is read and asked meanwhile.

    python -m tests.bench.bursts [SECONDS] [APPROVALS]

A row for each case: approvals at once (100 in a message where there are over 1,000),
seconds of a GET, of a POST and of a write to the state file, ``poll_interval``; then
the longest time between two reads, the first POST, how many POSTs there were, how many
of them were stale, and the most POSTs that began while a read was due. A POST is stale
if the newest document before it was read more than ``max(1 s, poll_interval)`` ago, or
shows that the event has started.
"""

import asyncio
import logging
import sys
from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise, product

from msgspec import Struct

from tests.approvals.slow_world import (
    Event,
    Request,
    SlowImds,
    approval,
    freeze,
    in_virtual_time,
    slow_world,
)

BURSTS, SECONDS, DISKS, INTERVALS = (
    (1, 100),
    (0.01, 0.3, 4.5),
    (0.0, 3.0),
    (0.25, 1, 10),
)
_LEAST_AGE = 1.0
_MOST_WAITING = 1000  # messages; a document of 10,000 events needs small ones
_STARTS_EARLY = 5  # each fifth event starts by itself, a second after another
_HEAD = (
    *("burst", "GET", "POST", "disk", "interval"),
    *("gap", "first", "POSTs", "stale", "in a row"),
)


class Case(Struct, frozen=True):
    """What IMDS and the disk are like; seconds, and the number of approvals."""

    burst: int
    get: float
    post: float
    disk: float
    interval: float

    @property
    def names(self) -> list[str]:
        """The EventIds that are approved."""
        return [f"E{n}" for n in range(self.burst)]

    def events(self, at: float) -> list[Event]:
        """Return the document's events at a second."""
        make = freeze if self.burst <= _MOST_WAITING else _short
        found = [make(name) for name in self.names]
        for n, event in enumerate(found):
            if (
                self.burst > 1
                and not n % _STARTS_EARLY
                and at > 2.0 + n / _STARTS_EARLY
            ):
                event |= {"EventStatus": "Started", "NotBefore": ""}
        return found


class Found(Struct, frozen=True):
    """What a case has shown; see the head of this file."""

    gap: float
    first: float
    posts: int
    stale: int
    in_a_row: int

    @classmethod
    def of(cls, imds: SlowImds, case: Case) -> "Found":
        """Judge the requests of a case."""
        reads, posts = imds.reads, imds.posts
        gaps = [after.began - before.began for before, after in pairwise(reads)]
        return cls(
            gap=max(gaps),
            first=posts[0].began if posts else float("nan"),
            posts=len(posts),
            stale=sum(_is_stale(imds, post, case.interval) for post in posts),
            in_a_row=max(_posts_while_due(reads, posts, case.interval), default=0),
        )


def _short(event_id: str) -> Event:
    return {"EventId": event_id, "EventStatus": "Scheduled", "EventType": "Freeze"}


def _split(names: list[str], size: int) -> Iterator[list[str]]:
    for start in range(0, len(names), size):
        yield names[start : start + size]


def _is_stale(imds: SlowImds, post: Request, interval: float) -> bool:
    read = imds.read_before(post)
    is_old = post.began - read.ended > max(_LEAST_AGE, interval) + 1e-9
    return is_old or read.shown[post.event_id]["EventStatus"] == "Started"


def _posts_while_due(
    reads: list[Request], posts: list[Request], interval: float
) -> Iterator[int]:
    """Return for each read how many POSTs began before it when it was due."""
    begins = [post.began for post in posts]
    for before, after in pairwise(reads):
        due = max(before.began + interval, before.ended) + 1e-9
        yield bisect_right(begins, after.began) - bisect_right(begins, due)


def measured(case: Case, seconds: float) -> Found:
    """Let a burst come, and return what was found after some virtual seconds."""

    async def scenario() -> Found:
        imds = SlowImds(case.events, get_seconds=case.get, post_seconds=case.post)
        size = 1 if case.burst <= _MOST_WAITING else 100
        parts = enumerate(_split(case.names, size))
        messages = [approval(number, *names) for number, names in parts]
        async with slow_world(
            imds, *messages, poll_interval=case.interval, disk_seconds=case.disk
        ):
            await asyncio.sleep(seconds)
            return Found.of(imds, case)

    return in_virtual_time(scenario())


def main() -> None:
    """Print a row for each case."""
    logging.disable(logging.CRITICAL)
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    bursts = [int(given) for given in sys.argv[2:]] or BURSTS
    _print(_HEAD)
    for numbers in product(bursts, SECONDS, SECONDS, DISKS, INTERVALS):
        found = measured(Case(*numbers), seconds)
        _print((*map(_shown, numbers), *map(_shown, _values(found))))


def _print(row: tuple[str, ...]) -> None:
    sys.stdout.write(" ".join(f"{cell:>8}" for cell in row) + "\n")
    sys.stdout.flush()


def _values(found: Found) -> tuple[float, ...]:
    return found.gap, found.first, found.posts, found.stale, found.in_a_row


def _shown(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


if __name__ == "__main__":
    main()
