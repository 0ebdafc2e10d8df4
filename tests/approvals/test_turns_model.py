"""Models of the turns at IMDS: invariants for every order of arrivals.

The first model has only the line. The second model has all parts from the message to
the POST, with documents that change at any moment.
"""

import asyncio
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.foundation.errors import MetadataUnavailableError
from bridge.imds.turns import Kind, Turns
from tests.approvals.slow_world import (
    Event,
    SlowImds,
    approval,
    freeze,
    in_virtual_time,
    now,
    slow_world,
)
from tests.approvals.test_turn_at_imds import seen
from tests.simulation.timeline import VirtualClock, Wall

TICK = st.integers(0, 40).map(lambda n: n * 0.05)


@dataclass(slots=True)
class Client:
    """A request for a turn: its arrival, its duration, and when it is cancelled."""

    kind: Kind
    arrives: float
    holds: float
    urgency: float
    leaves: float | None
    steps_aside: bool
    began: float | None = None
    ended: float = 0.0
    gone: float = field(default=float("inf"))

    def waits_at(self, moment: float) -> bool:
        """Whether the request surely waits: not if it comes or goes at that moment."""
        end = self.gone if self.began is None else self.began
        return self.arrives + 1e-6 < moment < end - 1e-6


clients = st.builds(
    Client,
    kind=st.sampled_from(Kind),
    arrives=TICK,
    holds=TICK.map(lambda seconds: seconds / 2),
    urgency=st.integers(0, 3).map(float),
    leaves=st.none() | TICK,
    steps_aside=st.booleans(),
)


async def live(turns: Turns, client: Client) -> None:
    """Wait for a turn and use it; a POST may step aside and wait again."""
    await asyncio.sleep(client.arrives)
    try:
        async with asyncio.timeout(client.leaves):
            if client.kind is Kind.READ:
                async with turns.read():
                    await use(client)
            else:
                await post(turns, client)
    except TimeoutError:
        client.gone = now()


async def post(turns: Turns, client: Client) -> None:
    with turns.line_up(lambda: client.urgency) as place:
        assert await place.come_up(asyncio.Event())
        if client.steps_aside:
            with place.aside():
                await asyncio.sleep(0.1)
            assert await place.come_up(asyncio.Event())
        place.begin()
        await use(client)


async def use(client: Client) -> None:
    client.began = client.ended = now()
    try:
        await asyncio.sleep(client.holds)
    finally:
        client.ended = now()


@given(st.lists(clients, max_size=12), st.booleans())
@settings(max_examples=300)
def test_turns_are_taken_one_at_a_time_apart_and_alternating(
    people: list[Client],
    any_steps_aside: bool,  # noqa: FBT001 - drawn
) -> None:
    for client in people:
        client.steps_aside = client.steps_aside and any_steps_aside

    async def scenario() -> None:
        turns = Turns(VirtualClock(Wall()))
        async with asyncio.timeout(200), asyncio.TaskGroup() as group:
            for client in people:
                group.create_task(live(turns, client))

    in_virtual_time(scenario())

    served = sorted((c for c in people if c.began is not None), key=began)
    assert all(client in served for client in people if client.leaves is None)
    for before, after in pairwise(served):
        assert began(after) >= before.ended - 1e-9
        assert began(after) >= began(before) + 0.25 - 1e-9
    if not any_steps_aside:
        assert_fair(people, served)


def began(client: Client) -> float:
    assert client.began is not None
    return client.began


def assert_fair(people: list[Client], served: list[Client]) -> None:
    for before, after in pairwise(served):
        waiting = [one for one in people if one.waits_at(began(after))]
        if before.kind is after.kind:
            assert not [one for one in waiting if one.kind is not after.kind]
        if after.kind is Kind.POST:
            posts = [one for one in waiting if one.kind is Kind.POST]
            assert all(one.urgency >= after.urgency for one in posts)


def test_unused_turn_of_a_post_goes_to_the_next_post() -> None:
    """It was not sent, so the next turn is for a POST, although a read waits."""
    first = Client(Kind.READ, 0.0, 0.85, 0.0, None, steps_aside=False)
    read = Client(Kind.READ, 0.0, 0.0, 0.0, None, steps_aside=False)
    waiting = Client(Kind.POST, 0.55, 0.0, 1.0, None, steps_aside=False)

    async def scenario() -> None:
        turns = Turns(VirtualClock(Wall()))

        async def gives_up() -> None:
            await asyncio.sleep(0.6)
            with turns.line_up(lambda: 0.0) as place:
                assert await place.come_up(asyncio.Event())

        async with asyncio.TaskGroup() as group:
            for client in (first, read, waiting):
                group.create_task(live(turns, client))
            group.create_task(gives_up())

    in_virtual_time(scenario())

    assert began(waiting) < began(read)


def test_dismissed_requests_get_the_error() -> None:
    """A later request waits in a new line."""

    async def scenario() -> None:
        turns = Turns(VirtualClock(Wall()))
        error = MetadataUnavailableError("no answer", outcome="timeout")
        stop = asyncio.Event()
        async with turns.read():
            with turns.line_up(lambda: 0.0) as first:
                turns.dismiss(error)
                assert not turns.has_posts
                with pytest.raises(MetadataUnavailableError, match="no answer"):
                    await first.come_up(stop)
        with turns.line_up(lambda: 0.0) as second:
            assert await second.come_up(stop)

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
