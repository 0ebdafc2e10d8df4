"""The state of a sink in the JSON of the status."""

import pytest

from bridge.health.report import sink_of
from bridge.outbox.records import Tally


@pytest.mark.parametrize(
    ("state", "pending", "shown"),
    [
        ("retrying", 0, "failed"),  # it was given up, or was a heartbeat
        ("retrying", 1, "retrying"),
        ("parked", 0, "parked"),
        ("ok", 0, "ok"),
        ("untried", 0, "untried"),
        ("not answering", 0, "not answering"),
    ],
)
def test_sink_without_pending_deliveries_is_not_retrying(
    state: str, pending: int, shown: str
) -> None:
    found = sink_of("siem", state, Tally(pending=pending), now=0)

    assert (found.state, found.pending) == (shown, pending)


def test_what_waits_for_its_time_has_no_age() -> None:
    tally = Tally(pending=1, oldest=0)

    assert sink_of("drain", "early", tally, now=900).oldest_seconds is None
    assert sink_of("drain", "ok", tally, now=900).oldest_seconds == 900


def test_sink_with_a_dead_letter_alone_retries_nothing() -> None:
    assert sink_of("siem", "retrying", Tally(dead=1), now=0).state == "failed"


def test_sink_without_a_tally_is_not_retrying() -> None:
    assert sink_of("siem", "retrying", None, now=0).state == "failed"
