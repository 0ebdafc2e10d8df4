"""A local Slack, a bot that posts to it, and the events it gets."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime

import orjson
from msgspec.structs import replace

from bridge.events.build import from_outcome
from bridge.events.cloudevent import CloudEvent
from bridge.foundation.pace import Pace
from bridge.simulator.faults import Fault, Garbage, Strike
from bridge.simulator.inbox import Inbox
from bridge.simulator.slack.refusals import Rate
from bridge.simulator.slack.workspace import Channel, Post
from bridge.sinks.base import ApprovalAddress, Memory, Notebook, Resources, Sink
from tests.support.builders import event_context_of, imds_event
from tests.support.example_events import outcome as outcome_of
from tests.support.example_events import published, received, seen, transition
from tests.support.fakes import FakeClock
from tests.support.sink_fixtures import sink_config

TOKEN = "xoxb-5EC12E7-token"
BUTTON_SECRET = "5ec12e7-button-secret-of-32-characters"
ADDRESS = ApprovalAddress(namespace="here", entity="vm-approvals", session="vm-1")


class SlackClock:
    """The simulator's clock, set by the bridge's."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock

    def now(self) -> float:
        return self._clock.now().timestamp()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(min(seconds, 0.5))


@dataclass
class World:
    """Slack, and one bot at a time.

    Attributes:
        memory: what outlives the bot.
        seconds: that pass before each delivery, so that no rate is in the way.
    """

    inbox: Inbox
    clock: FakeClock
    resources: Resources
    memory: Memory
    seconds: float = 2.0
    options: dict[str, object] = field(default_factory=dict)

    @asynccontextmanager
    async def bot(self, **options: object) -> AsyncIterator[Sink]:
        """Open the sink as the forwarder would at a start."""
        table = {
            "type": "slack",
            "token": TOKEN,
            "channel": "ops",
            "api_url": f"{self.inbox.url}/slack/api/",
            **self.options,
            **options,
        }
        lent = replace(
            self.resources, memory=self.memory, pace=Pace(most=1.0), clock=self.clock
        )
        async with sink_config(table).open(lent) as sink:
            yield sink

    async def tell(self, sink: Sink, *events: CloudEvent) -> None:
        for event in events:
            self.clock.pass_by(self.seconds)
            await sink.deliver(event)

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait for what goes on behind the scenes, over real sockets."""
        async with asyncio.timeout(60):
            while not is_so():
                await asyncio.sleep(0.002)

    def event(self, kind: str = "scheduled", **fields: object) -> CloudEvent:
        """A step of the event, as the bridge tells it now."""
        return step(kind, {**imds_event(), **fields}, self.clock.now())

    @property
    def channel(self) -> Channel:
        (channel,) = self.inbox.slack.workspace.channels.values()
        return channel

    @property
    def messages(self) -> list[Post]:
        """What stands in the channel itself."""
        return [post for post in self.channel.posts.values() if not post.thread_ts]

    @property
    def message(self) -> Post:
        (message,) = self.messages
        return message

    def thread(self, message: Post | None = None) -> list[str]:
        found = self.channel.thread((message or self.message).ts)
        return [post.content.text for post in found]

    def fails(self, method: str, strike: Strike, *, takes_effect: bool = False) -> None:
        """Let the next call of a method fail."""
        path = f"/slack/api/{method}"
        fault = Fault(strike=strike, path=path, takes_effect=takes_effect)
        self.inbox.faults.add(fault)

    def answers(self, method: str, word: str) -> None:
        """Let the next call of a method be answered with a fault."""
        body = orjson.dumps({"ok": False, "error": word})
        self.fails(method, Garbage(body))

    def refuses(self, word: str) -> None:
        """Refuse whatever is posted to the channel from now on."""
        self.channel.refusal = word

    def limits(self, *, posts: int, burst: int = 1) -> None:
        self.inbox.slack.methods.posts = Rate(posts, burst)


@asynccontextmanager
async def slack_world(resources: Resources) -> AsyncIterator[World]:
    clock = FakeClock()
    async with Inbox(clock=SlackClock(clock)) as inbox:
        yield World(inbox, clock, resources, Notebook())


def step(
    kind: str,
    event: Mapping[str, object],
    at: datetime,
    previous: Mapping[str, object] | None = None,
    changes: tuple[str, ...] = (),
) -> CloudEvent:
    found = transition(kind, event, previous, changes=changes, unobserved=0)
    return received(published(found, at=at).event)


def ruling(
    outcome: str,
    at: datetime,
    event: Mapping[str, object] | None = None,
    request: Mapping[str, object] | None = None,
) -> CloudEvent:
    shown = outcome_of(
        outcome,
        event=seen(event) if event else None,
        reason="EventChanged" if outcome == "denied" else None,
        request=request or {},
        origin=("queue", f"m-{outcome}-{at.timestamp()}", 1),
    )
    return received(from_outcome(event_context_of(), shown, at).event)
