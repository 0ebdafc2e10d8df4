"""Approvals whose turn at IMDS comes late: the decision then, and the order."""

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta
from email.utils import format_datetime
from itertools import pairwise
from typing import Any

import pytest

from bridge.approvals.rules import Rule
from bridge.foundation.values import Duration
from tests.approvals.approval_world import message
from tests.approvals.slow_world import (
    Event,
    SlowImds,
    SlowResponse,
    approval,
    freeze,
    in_virtual_time,
    now,
    slow_world,
)
from tests.simulation.timeline import true_time

IDS = tuple(f"E{number}" for number in range(100))
NO_DATABASES = Rule(name="no-databases", action="deny", resources=("db-*",))


def outcomes_of(events: list[object]) -> list[str]:
    return [str(event.data["outcome"]) for event in events]  # type: ignore[attr-defined]  # CloudEvents


def assert_spaced(imds: SlowImds) -> None:
    assert imds.least_distance() >= 0.25 - 1e-9


# -- no POST contradicts a document that was read before it ----------------------------


def test_event_that_changes_while_its_approval_is_in_line_is_not_posted() -> None:
    """Three EventIds, 4.5 s per POST: the first is posted before the others change."""

    def history(at: float) -> list[Event]:
        host = "web-1" if at < 2.0 else "db-1"
        return [{**freeze(one), "Resources": [host]} for one in IDS[:3]]

    async def scenario() -> None:
        imds = SlowImds(history, post_seconds=4.5)
        asked = approval(1, *IDS[:3])
        async with slow_world(imds, asked, rules=(NO_DATABASES,)) as world:
            await world.settles(1)
            kinds = outcomes_of(list(await world.outcomes()))

        assert sorted(kinds) == ["denied", "denied", "relayed"]
        assert [post.event_id for post in imds.posts] == [IDS[0]]

    in_virtual_time(scenario())


def grown(event_id: str, since: float, at: float) -> Event:
    event = freeze(event_id)
    return event if at < since else {**event, "DurationInSeconds": 600}


@pytest.mark.parametrize("seconds", [0.01, 0.4, 4.5])
def test_approved_event_that_grows_in_line_is_not_posted(
    seconds: float,
) -> None:
    """Fifty approvals at once, each with ``approvedEvent``; then the event grows."""
    since = 3.0 + seconds

    async def scenario() -> None:
        imds = SlowImds(
            lambda at: [grown(one, since, at) for one in IDS[:50]],
            get_seconds=seconds / 4,
            post_seconds=seconds,
        )
        messages = [
            approval(n, body=seen(freeze(one))) for n, one in enumerate(IDS[:50])
        ]
        async with slow_world(imds, *messages) as world:
            await world.settles(50)
            kinds = outcomes_of(list(await world.outcomes()))

        for post in imds.posts:
            read = imds.read_before(post)
            assert read.shown[post.event_id]["DurationInSeconds"] == 5
            assert post.began - read.ended <= 1.0
        assert 0 < len(imds.posts) < 50
        assert kinds.count("relayed") == len(imds.posts)
        assert kinds.count("denied") == 50 - len(imds.posts)
        assert_spaced(imds)

    in_virtual_time(scenario())


def seen(event: Event) -> bytes:
    body = message(
        body={
            "specversion": "1.0",
            "id": "1",
            "source": "test",
            "type": "sebridge.startrequest.v1",
            "data": {
                "StartRequests": [{"EventId": event["EventId"]}],
                "approvedEvent": event,
            },
        }
    )
    return body.body


@pytest.mark.parametrize("limit", ["expiresAt", "max_age"])
def test_request_that_expires_in_line_is_not_posted(limit: str) -> None:
    """The request expires at second 10, including the 60 s for skewed clocks."""

    async def scenario() -> None:
        imds = SlowImds(lambda _: [freeze(one) for one in IDS], post_seconds=4.5)
        asked = approval(1, *IDS)
        settings: dict[str, object] = {}
        if limit == "max_age":
            settings["max_age"] = Duration(30)
            early = true_time(0.0) - timedelta(seconds=80)
            asked = approval(1, *IDS, enqueued_at=early)
        else:
            expiry = (true_time(0.0) - timedelta(seconds=50)).isoformat()
            properties = {"expiresAt": expiry}
            asked = approval(1, *IDS, application_properties=properties)
        async with slow_world(imds, asked, settings=settings) as world:
            await world.settles(1)
            kinds = outcomes_of(list(await world.outcomes()))

        assert 1 <= len(imds.posts) <= 3
        assert all(post.began <= 11.0 for post in imds.posts)  # Date has whole seconds
        assert kinds.count("expired") == 100 - len(imds.posts)

    in_virtual_time(scenario())


def test_event_that_starts_while_its_approval_is_in_line_is_not_posted() -> None:
    def history(at: float) -> list[Event]:
        status = "Scheduled" if at < 20.0 else "Started"
        return [{**freeze(one), "EventStatus": status} for one in IDS]

    async def scenario() -> None:
        imds = SlowImds(history, post_seconds=4.5)
        async with slow_world(imds, approval(1, *IDS)) as world:
            await world.settles(1)
            kinds = outcomes_of(list(await world.outcomes()))

        assert all(post.began < 20.5 for post in imds.posts)
        assert kinds.count("already-started") == 100 - len(imds.posts)

    in_virtual_time(scenario())


def test_retry_whose_not_before_passes_in_line_is_not_posted() -> None:
    """IMDS answers 404 to every POST, so each is tried again until NotBefore."""
    soon = format_datetime(true_time(20.0), usegmt=True)

    async def scenario() -> None:
        imds = SlowImds(
            lambda _: [{**freeze(one), "NotBefore": soon} for one in IDS[:10]],
            post_seconds=1.9,
            posting=lambda _: 404,
        )
        async with slow_world(imds, approval(1, *IDS[:10])) as world:
            await world.settles(1)
            kinds = outcomes_of(list(await world.outcomes()))

        tried: set[str] = set()
        for post in imds.posts:
            assert post.event_id not in tried or post.began <= 21.0
            tried.add(post.event_id)
        assert kinds == ["failed"] * 10

    in_virtual_time(scenario())


def test_rule_also_decides_on_the_document_of_its_turn() -> None:
    """Requests of rules wait in the same line as those of messages."""
    rule = Rule(name="web", action="auto-approve", resources=("web-*",))

    def history(at: float) -> list[Event]:
        host = "web-1" if at < 6.0 else "db-1"
        return [{**freeze(one), "Resources": [host]} for one in IDS[:20]]

    async def scenario() -> None:
        imds = SlowImds(history, post_seconds=1.0)
        async with slow_world(imds, rules=(rule,)) as world:
            await asyncio.sleep(60.0)
            kinds = outcomes_of(list(await world.outcomes()))

        assert 0 < len(imds.posts) < 20
        for post in imds.posts:
            shown = imds.read_before(post).shown
            assert shown[post.event_id]["Resources"] == ["web-1"]
        assert kinds == ["relayed"] * len(imds.posts)
        assert_spaced(imds)

    in_virtual_time(scenario())


# -- reads and POSTs take turns --------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("interval", [0.25, 1.0, 5.0])
@pytest.mark.parametrize(("get", "post"), [(0.01, 0.01), (0.3, 4.5), (4.5, 0.3)])
def test_document_is_read_among_a_hundred_event_ids(
    interval: float, get: float, post: float
) -> None:
    async def scenario() -> None:
        imds = SlowImds(
            lambda _: [freeze(one) for one in IDS], get_seconds=get, post_seconds=post
        )
        asked = approval(1, *IDS)
        async with slow_world(imds, asked, poll_interval=interval) as world:
            await world.settles(1)

        assert imds.longest_without_a_read() <= 2 * interval + 0.25 + post + 0.01
        assert len(imds.posts) == 100
        assert_spaced(imds)
        alternating = 100 * (2 * max(0.25, get, post))
        assert imds.requests[-1].ended <= alternating + 100 * 0.25 + 60

    in_virtual_time(scenario())


@pytest.mark.parametrize(("post", "disk"), [(4.5, 0.0), (0.3, 0.0), (0.01, 0.4)])
def test_post_that_would_not_end_before_the_next_read_goes_after_it(
    post: float, disk: float
) -> None:
    """Neither a slow POST nor a slow disk delays a read that is due."""

    async def scenario() -> None:
        imds = SlowImds(lambda _: [freeze(one) for one in IDS], post_seconds=post)
        async with slow_world(
            imds, approval(1, *IDS), poll_interval=3.0, disk_seconds=disk
        ):
            await asyncio.sleep(60.0)

        begins = [read.began for read in imds.reads]
        longest = max(after - before for before, after in pairwise(begins))
        # A commit may wait for one that is being written.
        assert longest <= max(3.0, 0.25 + post) + 2 * disk + 0.01
        for before, after in pairwise(begins):
            posts = [one.began for one in imds.posts if before < one.began < after]
            assert not [at for at in posts[1:] if at >= before + 3.0]
        assert len(imds.posts) > 60.0 / (post + 2 * disk + 0.6)
        assert_spaced(imds)

    in_virtual_time(scenario())


def short(number: int) -> Event:
    """Return an event so small that thousands fit into a document."""
    return {"EventId": f"E{number}", "EventStatus": "Scheduled", "EventType": "Freeze"}


MANY = 2_000  # twice as many as are handled at a time; sixty are posted


@pytest.mark.slow
@pytest.mark.parametrize(
    ("interval", "per_message", "get", "post"),
    [(0.25, 1, 0.01, 0.01), (1.0, 100, 0.3, 4.5)],  # the others: see above
)
def test_document_is_read_among_thousands_of_event_ids(
    interval: float, per_message: int, get: float, post: float
) -> None:
    """For 15 seconds, reads keep their interval, and approvals make progress."""
    document = [short(number) for number in range(MANY)]
    count = MANY // per_message
    messages = [
        approval(n, *(f"E{n * per_message + k}" for k in range(per_message)))
        for n in range(count)
    ]

    async def scenario() -> None:
        imds = SlowImds(lambda _: document, get_seconds=get, post_seconds=post)
        async with slow_world(imds, *messages, poll_interval=interval):
            await asyncio.sleep(15.0)

            assert imds.longest_without_a_read() <= 2 * interval + 0.25 + post + 0.01
            pair = max(0.25, get) + max(0.25, post)
            assert len(imds.posts) >= 0.8 * 15.0 / pair
            assert_spaced(imds)

    in_virtual_time(scenario())


def test_event_that_appears_among_many_approvals_is_seen_at_once() -> None:
    """A Preempt gives only 30 s of notice."""
    preempt = freeze("preempt", EventType="Preempt")

    def history(at: float) -> list[Event]:
        events = [freeze(one) for one in IDS]
        return [*events, preempt] if at >= 10.0 else events

    async def scenario() -> float:
        imds = SlowImds(history, post_seconds=4.5)
        async with slow_world(imds, approval(1, *IDS)) as world:
            while "PREEMPT" not in world.poller.watch.known:
                await asyncio.sleep(0.01)
            return now()

    assert in_virtual_time(scenario()) <= 10.0 + 2 * 1.0 + 0.25 + 4.5


# -- order -----------------------------------------------------------------------------


def due(event_id: str, seconds: float) -> Event:
    return freeze(event_id) | {
        "NotBefore": format_datetime(true_time(seconds), usegmt=True)
    }


def test_event_with_the_nearest_not_before_goes_first() -> None:
    """Its approval came last of two hundred."""
    events = [*(freeze(one) for one in IDS), due("soon", 60.0), due("sooner", 50.0)]

    async def scenario() -> None:
        imds = SlowImds(lambda _: events, post_seconds=2.0)
        async with slow_world(imds, approval(1, *IDS)) as world:
            await asyncio.sleep(10.0)
            before = len(imds.posts)
            world.queue.put(approval(2, "soon"), approval(3, "sooner"))
            await asyncio.sleep(20.0)
            order = [post.event_id for post in imds.posts[before:]]

        assert order.index("sooner") <= 1  # one POST was in flight before
        assert order.index("soon") == order.index("sooner") + 1

    in_virtual_time(scenario())


def test_event_that_is_rescheduled_in_line_changes_its_place() -> None:
    def history(at: float) -> list[Event]:
        events = [freeze(one) for one in IDS]
        return [*events[:-1], due(IDS[-1], 60.0)] if at > 5.0 else events

    async def scenario() -> None:
        imds = SlowImds(history, post_seconds=2.0)
        async with slow_world(imds, approval(1, *IDS)):
            await asyncio.sleep(15.0)

        assert IDS[-1] in {post.event_id for post in imds.posts}

    in_virtual_time(scenario())


def test_approvals_of_one_event_share_a_post() -> None:
    """Ten thousand approvals need only a few turns."""

    async def scenario() -> None:
        imds = SlowImds(lambda _: [freeze("E")], post_seconds=1.0)
        messages = [approval(number, "E") for number in range(1000)]
        async with slow_world(imds, *messages) as world:
            await world.settles(1000)
            kinds = outcomes_of(list(await world.outcomes()))

        assert kinds == ["relayed"] * 1000
        assert len(imds.posts) <= 20

    in_virtual_time(scenario())


def test_stop_ends_the_line_at_once() -> None:
    """No new POST begins; other messages are abandoned, and their intents deleted."""

    async def scenario() -> None:
        imds = SlowImds(lambda _: [freeze(one) for one in IDS], post_seconds=4.5)
        async with slow_world(imds, approval(1, *IDS)) as world:
            await asyncio.sleep(6.0)
            posts, ended = len(imds.posts), imds.in_flight
            world.stop.set()
            await world.settles(1, within=5.0)
            kept = await world.outbox.approvals.posted()

        assert len(imds.posts) == posts + ended
        assert world.queue.settled["m1"][0] == "abandon"
        assert kept == {post.event_id for post in imds.posts}

    in_virtual_time(scenario())


# -- a StartRequest that names the document -----------------------------------------


@dataclass(slots=True)
class CountingImds(SlowImds):
    """An IMDS whose document changes with each StartRequest, and which compares.

    Attributes:
        started: the events that were started.
        refused: StartRequests for an older document.
    """

    started: set[str] = field(default_factory=set)
    refused: int = 0

    async def _answer(self, method: str, asked: dict[str, Any]) -> SlowResponse:
        if method == "POST" and asked["DocumentIncarnation"] != str(self.incarnation):
            self.refused += 1
            return SlowResponse(400, {}, b"")
        found = await SlowImds._answer(self, method, asked)
        if method == "POST":
            self.started.add(asked["StartRequests"][0]["EventId"])
            self.incarnation += 1
        return found


@pytest.mark.parametrize("count", [1, 4, 12])
def test_each_post_of_the_first_version_has_a_look_of_its_own(count: int) -> None:
    names = [f"E{n}" for n in range(count)]

    def history(_: float) -> list[Event]:
        gone = {"EventStatus": "Started", "NotBefore": ""}
        return [freeze(n) | (gone if n in imds.started else {}) for n in names]

    async def scenario() -> None:
        world = slow_world(imds, approval(1, *names), version="2017-03-01")
        async with world as parts:
            await parts.settles(1)
            kinds = [event.data["outcome"] for event in await parts.outcomes()]
        assert kinds == ["relayed"] * count

    imds = CountingImds(history)
    in_virtual_time(scenario())

    assert not imds.refused
    assert len(imds.posts) == count
