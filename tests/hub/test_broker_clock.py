"""The hub goes by the broker's clock, as messages show it."""

from datetime import datetime, timedelta

import pytest

from bridge.hub.sources import BrokerClock
from tests.support.fakes import START, FakeClock


class Hub:
    """A hub whose clock differs from the broker's."""

    def __init__(self, ahead: float) -> None:
        self.own = FakeClock()
        self.ahead = ahead
        self.clock = BrokerClock(self.own)

    def broker(self) -> datetime:
        return self.own.now() - timedelta(seconds=self.ahead)

    def receive(self, waited: float = 0.0, *, is_fresh: bool = True) -> None:
        """Receive a message that has waited in its source."""
        self.clock.note(self.broker() - timedelta(seconds=waited), is_fresh=is_fresh)


@pytest.mark.parametrize("ahead", [15.0, -7200.0, 7200.0])
def test_clock_goes_by_the_broker(ahead: float) -> None:
    hub = Hub(ahead)
    hub.receive()

    assert hub.clock.now() == hub.broker()
    assert hub.clock.offset == ahead
    assert (hub.clock.fault is None) == (abs(ahead) <= 60)


def test_before_the_first_message_the_own_clock_counts() -> None:
    hub = Hub(7200.0)

    assert hub.clock.now() == START
    assert hub.clock.fault is None


def test_messages_that_have_waited_show_no_wrong_clock() -> None:
    hub = Hub(0.0)
    hub.receive(7200, is_fresh=False)
    assert hub.clock.offset == 0
    hub.receive(3600, is_fresh=True)
    assert hub.clock.offset == 3600
    hub.receive(1, is_fresh=False)

    assert hub.clock.offset == 1


async def test_busy_source_whose_lag_stays_the_same_is_drained() -> None:
    hub = Hub(7200.0)
    for _ in range(40):
        hub.receive(is_fresh=False)
        await hub.own.advance(1)

    assert hub.clock.offset == 7200


async def test_source_that_is_being_drained_shows_no_wrong_clock() -> None:
    hub = Hub(0.0)
    for left in range(7200, 3000, -100):
        hub.receive(left, is_fresh=False)
        await hub.own.advance(1)

    assert hub.clock.offset == 0


async def test_broker_that_was_ahead_for_a_moment_is_forgotten() -> None:
    hub = Hub(0.0)
    hub.receive(-30)
    for _ in range(3):
        await hub.own.advance(601)
        hub.receive()

    assert hub.clock.offset == 0
    assert hub.clock.monotonic() == hub.own.monotonic()
