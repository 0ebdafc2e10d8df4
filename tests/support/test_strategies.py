"""What Hypothesis makes of documents is what it says it is."""

from hypothesis import given
from hypothesis import strategies as st

from tests.support.strategies import EVENT_IDS, odd_events


@given(odd_events(st.just("EventId")))
def test_event_keeps_its_event_id_whatever_else_it_holds(
    event: dict[str, object],
) -> None:
    assert event["EventId"] in EVENT_IDS
