"""What the judge of kills takes for kept, and what may have been lost."""

from tests.chaos.expectation import Reads, pasts
from tests.chaos.history import Event, Request

KEY = "E"


def read(at: float, life: int, number: int, status: str = "") -> Request:
    """Return a read of a document; with the event if it has a status."""
    event: Event = {
        "EventId": KEY,
        "EventStatus": status,
        "NotBefore": "Mon, 02 Mar 2026 12:01:00 GMT",
    }
    return Request(at, life, number, {KEY: event} if status else {})


def published(*requests: Request) -> set[tuple[str, ...]]:
    """Return in which ways the steps of the event may be published."""
    found = pasts(Reads.of(requests, [], frozenset()), KEY)
    return {tuple("|".join(sorted(step.kinds)) for step in steps) for steps in found}


def test_first_look_of_a_life_is_kept_once_the_next_request_comes() -> None:
    ways = published(
        read(0, 1, 1, "Scheduled"),
        read(1, 1, 1, "Scheduled"),
        read(20, 2, 3),
        read(21, 2, 3),
    )

    assert ways == {("scheduled", "ended")}


def test_look_that_a_kill_follows_soon_may_be_lost_with_all_after_it() -> None:
    """Not only itself: what is later is written later."""
    ways = published(
        read(0, 1, 1),
        read(10, 1, 2, "Scheduled"),
        read(11, 1, 3, "Started"),
        read(12, 1, 3, "Started"),
        read(20, 2, 4),
        read(21, 2, 4),
    )

    assert ways == {
        (),
        ("scheduled", "ended"),
        ("scheduled", "started", "completed"),
    }


def test_look_after_which_the_life_goes_on_is_kept() -> None:
    ways = published(
        read(0, 1, 1),
        read(10, 1, 2, "Scheduled"),
        read(20, 1, 2, "Scheduled"),
        read(30, 2, 4),
        read(31, 2, 4),
    )

    assert ways == {("scheduled", "ended")}
