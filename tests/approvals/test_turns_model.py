"""Models of the turns at IMDS: invariants for every order of arrivals.

The first model has only the line. The second model has all parts from the message to
the POST, with documents that change at any moment.
"""

import asyncio
import math
from dataclasses import dataclass, field
from email.utils import format_datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.approvals.rules import Rule
from bridge.events.document import ScheduledEvent
from bridge.events.look import Look, Need
from bridge.imds.poller import Poller
from tests.approvals.slow_world import (
    Event,
    Request,
    SlowImds,
    approval,
    freeze,
    in_virtual_time,
    now,
    slow_world,
)
from tests.approvals.test_turn_at_imds import seen
from tests.simulation.timeline import true_time

TICK = st.integers(0, 40).map(lambda n: n * 0.05)


@dataclass(slots=True)
class Client:
    """A request for a POST, or for a fresh look: its arrival, and how it ends.

    Attributes:
        posts: whether it is for a POST.
        holds: for how long its mark is written after the first decision.
        gives_up: whether it is decided that nothing is posted.
        after: only a look with a higher number serves.
        ready: when its mark is there, in seconds.
        seen: when its request had ended, in seconds.
    """

    posts: bool = True
    arrives: float = 0.0
    holds: float = 0.0
    nearness: float = 0.0
    gives_up: bool = False
    after: int = 0
    ready: float | None = None
    seen: float | None = None
    done: asyncio.Event = field(default_factory=asyncio.Event)

    def end(self) -> None:
        self.seen = now()
        self.done.set()

    def waits_at(self, moment: float) -> bool:
        """Whether it surely waits: not if it comes or goes at that moment."""
        return self.arrives + 1e-6 < moment < (self.seen or moment) - 1e-6


@dataclass(slots=True)
class Crowd:
    """Requests without approvals: what the poller asks, for any arrivals."""

    poller: Poller
    clients: list[Client] = field(default_factory=list)
    next: Client | None = None

    def __bool__(self) -> bool:
        return bool(self.clients)

    async def live(self, client: Client) -> None:
        await asyncio.sleep(client.arrives)
        client.after = self.poller.reads
        self.clients.append(client)
        self.poller.wake.set()
        await client.done.wait()

    def turn(self, look: Look | None) -> Need:
        need, ready = Need(), list[Client]()
        for client in [*self.clients]:
            if look is None or look.number <= client.after:
                need.look = True
            elif client.gives_up or not client.posts:
                self.clients.remove(client)
                client.end()
            elif client.ready is None:
                client.ready = now() + client.holds
                need.at = min(need.at, client.ready)
            elif client.ready > now():
                need.at = min(need.at, client.ready)
            else:
                ready.append(client)
        self.next = min(ready, key=lambda client: client.nearness, default=None)
        if self.next is not None:
            need.event = ScheduledEvent(event_id=f"E{self.next.nearness}", raw={})
        return need

    def begin(self) -> None:
        assert self.next is not None
        self.clients.remove(self.next)

    def answered(self, answer: object) -> None:
        assert self.next is not None
        self.next.end()

    def failed(self, error: object, began: float) -> None:
        raise AssertionError(error)

    def end_late(self, began: float = 0.0) -> float:
        return math.inf

    def close(self) -> None:
        assert not self.clients


clients = st.builds(
    Client,
    posts=st.booleans(),
    arrives=TICK,
    holds=st.sampled_from([0.0, 0.0, 0.1, 1.5]),
    nearness=st.integers(0, 3).map(float),
    gives_up=st.sampled_from([False, False, False, True]),
)


@pytest.mark.slow
@given(
    st.lists(clients, max_size=12),
    st.sampled_from([0.01, 0.4, 1.2]),
    st.sampled_from([0.01, 0.4, 1.2]),
    st.sampled_from([0.25, 1.0, 3.0]),
)
@settings(max_examples=200)
def test_turns_are_taken_one_at_a_time_apart_and_alternating(
    people: list[Client], get: float, post: float, interval: float
) -> None:
    imds = SlowImds(lambda _: [], get_seconds=get, post_seconds=post)

    async def scenario() -> None:
        async with (
            slow_world(imds, poll_interval=interval) as world,
            asyncio.timeout(200),
            asyncio.TaskGroup() as group,
        ):
            crowd = world.poller.requests = Crowd(world.poller)
            for client in people:
                group.create_task(crowd.live(client))

    in_virtual_time(scenario())

    posts = [client for client in people if client.posts and not client.gives_up]
    assert len(imds.posts) == len(posts)
    assert all(client.seen is not None for client in people)
    if len(imds.requests) > 1:
        assert imds.least_distance() >= 0.25 - 1e-9
    for last, before, after in zip(
        imds.requests, imds.requests[1:], imds.requests[2:], strict=False
    ):
        assert_fair(people, (last, before, after), interval)


def assert_fair(
    people: list[Client], three: tuple[Request, Request, Request], interval: float
) -> None:
    """No two POSTs while a read is due, no two reads while a POST may be sent."""
    read, before, after = three
    kinds = [request.method for request in three]
    if kinds == ["GET", "POST", "POST"]:
        assert after.began < read.began + interval
    if kinds == ["POST", "GET", "GET"] and not any(c.holds for c in people):
        both = (before.began, after.began)  # so the first of the reads is new enough
        assert not [c for c in people if c.posts and all(map(c.waits_at, both))]


def test_most_urgent_goes_first() -> None:
    minutes = {"E0": 30, "E1": 40, "E2": 20, "E3": 10}
    events = [
        {
            **freeze(name),
            "NotBefore": format_datetime(true_time(60.0 * n), usegmt=True),
        }
        for name, n in minutes.items()
    ]

    async def scenario() -> None:
        imds = SlowImds(lambda _: events, post_seconds=1.0)
        async with slow_world(imds, approval(1, *minutes)) as world:
            await world.settles(1)
        order = [request.event_id for request in imds.posts]
        assert order == ["E3", "E2", "E0", "E1"]

    in_virtual_time(scenario())


def test_request_that_may_not_be_posted_lets_the_next_one_pass() -> None:
    """No read comes between: its decision needs no turn."""

    async def scenario() -> None:
        events = [freeze("E0"), freeze("E1", EventType="Reboot")]
        imds = SlowImds(lambda _: events)
        no_freeze = Rule(action="deny", event_types=("Freeze",))
        rules = (no_freeze, Rule(action="allow"))
        async with slow_world(imds, approval(1, "E0", "E1"), rules=rules) as world:
            await world.settles(1)
        assert [post.event_id for post in imds.posts] == ["E1"]
        methods = [request.method for request in imds.requests]
        assert methods[:3] == ["GET", "GET", "POST"]  # the first came too early

    in_virtual_time(scenario())


def test_requests_wait_until_a_document_can_be_read() -> None:
    async def scenario() -> None:
        events = [freeze("E0"), freeze("E1")]
        imds = SlowImds(lambda _: events, getting=lambda at: 503 if at < 3.0 else 200)
        async with slow_world(imds, approval(0, "E0")) as world:
            await asyncio.sleep(2.0)
            world.queue.put(approval(1, "E1"))
            await world.settles(2)
        assert sorted(post.event_id for post in imds.posts) == ["E0", "E1"]
        assert all(post.began >= 3.0 for post in imds.posts)

    in_virtual_time(scenario())


# -- from the message to the POST ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Life:
    """One event: its change, the time of the change, and the time of its approval."""

    becomes: str
    changes: float
    approved: float

    def at(self, name: str, moment: float) -> Event | None:
        event = freeze(name)
        if moment < self.changes or self.becomes == "same":
            return event
        if self.becomes == "gone":
            return None
        fields: dict[str, dict[str, object]] = {
            "worse": {"DurationInSeconds": 600},
            "other": {"EventType": "Redeploy"},
            "started": {"EventStatus": "Started", "NotBefore": ""},
            "near": {"NotBefore": "Mon, 02 Mar 2026 12:02:00 GMT"},
        }
        return {**event, **fields[self.becomes]}


lives = st.builds(
    Life,
    becomes=st.sampled_from(["same", "gone", "worse", "other", "started", "near"]),
    changes=st.integers(0, 60).map(lambda n: n * 0.2),
    approved=st.integers(0, 40).map(lambda n: n * 0.2),
)
seconds = st.sampled_from([0.01, 0.2, 0.9, 2.5])


@pytest.mark.slow
@given(
    st.lists(lives, min_size=1, max_size=8),
    seconds,
    seconds,
    st.sampled_from([0.25, 1.0, 3.0]),
    st.sampled_from([0.0, 0.0, 0.3, 1.2]),
    st.sets(st.integers(0, 8)),
    st.lists(st.sampled_from([200, 200, 200, 400, 404, 503]), max_size=8),
)
@settings(max_examples=60)
def test_no_post_contradicts_a_document_that_was_read_before_it(  # noqa: PLR0913, PLR0917 - drawn
    events: list[Life],
    get: float,
    post: float,
    interval: float,
    disk: float,
    dark: set[int],
    answers: list[int],
) -> None:
    named = {f"E{number}": life for number, life in enumerate(events)}

    def history(moment: float) -> list[Event]:
        shown = (life.at(name, moment) for name, life in named.items())
        return [event for event in shown if event is not None]

    def posting(number: int) -> int:
        return answers[number] if number < len(answers) else 200

    async def scenario() -> None:
        imds = SlowImds(history, get, post, posting)
        imds.getting = lambda moment: 503 if int(moment / 2) in dark else 200
        async with slow_world(imds, poll_interval=interval, disk_seconds=disk) as world:
            for number, (name, life) in enumerate(by_time(named)):
                await asyncio.sleep(max(0.0, life.approved - now()))
                body = seen(freeze(name))
                world.queue.put(approval(number, name, body=body))
            await world.settles(len(named), within=7200.0)
            outcomes = await world.outcomes()
        judge(imds, named, interval)
        assert len(outcomes) == len(named)
        posted = {request.event_id for request in imds.posts}
        for outcome in outcomes:
            is_relayed = outcome.data["outcome"] == "relayed"
            assert not is_relayed or outcome.data["eventId"] in posted

    in_virtual_time(scenario())


def by_time(named: dict[str, Life]) -> list[tuple[str, Life]]:
    return sorted(named.items(), key=lambda item: item[1].approved)


def judge(imds: SlowImds, named: dict[str, Life], interval: float) -> None:
    for post in imds.posts:
        read = imds.read_before(post)
        event = read.shown[post.event_id]
        assert event["EventStatus"] == "Scheduled"
        assert (event["DurationInSeconds"], event["EventType"]) == (5, "Freeze")
        assert read.began >= named[post.event_id].approved
        assert post.began - read.ended <= max(1.0, interval)
    if len(imds.requests) > 1:
        assert imds.least_distance() >= 0.25 - 1e-9
