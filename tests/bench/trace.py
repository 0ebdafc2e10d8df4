"""Where the time goes from the answer of IMDS to the webhook: a row for each step.

    python -m tests.bench.trace [ROUNDS]

A trace function notes when the functions that begin the steps are called, in the loop
and in the thread of the state file. It is called for every function, so all of it takes
longer than without; the last row says how much.
"""

import asyncio
import statistics
import sys
import threading
import time
from asyncio.selector_events import (  # type: ignore[attr-defined]  # not in its stubs
    _SelectorSocketTransport,
)
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from bridge.events import document
from bridge.net import http_client
from bridge.outbox.image import Image
from bridge.outbox.storage.database import Database
from bridge.outbox.storage.file import File
from bridge.outbox.store import Outbox
from bridge.pipeline import held, observer
from bridge.pipeline.attempt import Attempts
from bridge.pipeline.relay import Relay
from tests.bench.latency import World, bare_commits, hooked
from tests.bench.measuring import quantile, running

# Each step ends when this function is called.
STEPS: tuple[tuple[str, Callable[..., Any]], ...] = (
    ("the answer is sent, and read", document.parse_time),
    ("the document is parsed", observer.Observer._compare),
    ("it is compared with the last one", held.Held.plus),
    ("the commit is asked for", Outbox.commit),
    ("the events are made", Image.add),
    ("the rows gather", Database.put),
    ("the job is in the thread of the state file", File.write),
    ("the rows are on the disk (fsync), and the loop knows", Database._done),
    ("the deliveries may be sent", Image.sendable),
    ("the relay is awake", Relay.step),
    ("the due delivery is found", Attempts.begin),
    ("the attempt has begun", Relay._sent),
    ("the request is made of the event", http_client.exchange),
    ("the request is written to the socket", _SelectorSocketTransport.write),
    ("the receiver has it", asyncio.Queue.put_nowait),
)


class Trace:
    """Notes when each step ends, in order: one row of times for each round.

    Attributes:
        rounds: the times of each whole round, the first is that of the answer.
    """

    def __init__(self) -> None:
        codes = [step.__code__ for _, step in STEPS]
        self.rounds: list[list[float]] = []
        self._codes: list[CodeType] = [World.document.__code__, *codes]
        self._found: list[float] = []
        self._wanted = self._codes[0]

    def note(self, frame: FrameType, event: str, arg: object) -> None:
        """Note a call, if it is the next one that is waited for."""
        code = frame.f_code
        if code is self._codes[0]:
            self._found = []
        elif code is not self._wanted:
            return
        self._found.append(time.perf_counter())
        if len(self._found) < len(self._codes):
            self._wanted = self._codes[len(self._found)]
            return
        self.rounds.append(self._found)
        self._found, self._wanted = [], self._codes[0]


async def traced(rounds: int) -> tuple[Trace, list[float], list[float], list[float]]:
    """Return the trace; the milliseconds with it and without; those of the bare one."""
    world, trace = World(), Trace()
    async with hooked(world) as (config, folder, url):
        bare = await bare_commits(folder, f"{url}/hook", rounds, world.arrived)
        async with running(config):
            without = await world.announce(rounds)
        sys.settrace(trace.note)
        threading.settrace(trace.note)
        try:
            async with running(config):
                return trace, await world.announce(rounds), without, bare
        finally:
            sys.settrace(None)
            threading.settrace(None)


def main() -> None:
    """Print the table."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    trace, with_it, without, bare = asyncio.run(traced(rounds))
    say = sys.stdout.write
    say(f"{len(trace.rounds)} events; microseconds: median, and 9 of 10 are below\n")
    whole = [(row[-1] - row[0]) * 1e6 for row in trace.rounds]
    for number, (name, _) in enumerate(STEPS):
        took = [(row[number + 1] - row[number]) * 1e6 for row in trace.rounds]
        say(f"{name:50} {statistics.median(took):7.0f} {quantile(took, 0.9):7.0f}\n")
    say(f"{'all':50} {statistics.median(whole):7.0f} {quantile(whole, 0.9):7.0f}\n")
    for name, values in (
        ("all, as the bench sees it", with_it),
        ("the same without the trace", without),
        ("bare: one commit (fsync) and one POST", bare),
    ):
        median, high = statistics.median(values), quantile(values, 0.9)
        say(f"{name:50} {median * 1000:7.0f} {high * 1000:7.0f}\n")


if __name__ == "__main__":
    main()
