"""What was observed survives in the state file to the letter."""

import json
from datetime import datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.events.document import Document, exact
from bridge.events.transitions import diff
from bridge.events.watch import Moment, Watch
from tests.support.builders import document, imds_event
from tests.support.fakes import START
from tests.support.strategies import moments, odd_documents


def look(watch: Watch, seen: Document, at: datetime, monotonic: float) -> Watch:
    now = Moment(at=at, monotonic=monotonic)
    return diff(watch, seen, now, poll_interval=1)[0]


def test_empty_watch_reads_back() -> None:
    assert Watch.from_json(Watch().to_json()) == Watch()


@given(st.lists(odd_documents(), min_size=1, max_size=3), moments())
def test_what_was_observed_reads_back_the_same(
    seen: list[Document], at: datetime
) -> None:
    watch = Watch()
    for number, one in enumerate(seen):
        watch = look(watch, one, at + timedelta(seconds=number), number)
    found = Watch.from_json(watch.to_json())

    assert (found.incarnation, found.was_complete) == (
        watch.incarnation,
        watch.was_complete,
    )
    assert list(found.known) == list(watch.known)
    for key, known in watch.known.items():
        assert exact(found.known[key].event.raw) == exact(known.event.raw)
        assert found.known[key].announced == known.announced
        assert found.known[key].incarnation == known.incarnation
        assert found.known[key].seen.at == known.seen.at


@given(odd_documents(), moments())
def test_same_document_after_a_restart_is_no_news(seen: Document, at: datetime) -> None:
    watch = look(Watch(), seen, at, 0)
    later = Watch.from_json(watch.to_json())
    now = Moment(at=at + timedelta(seconds=5), monotonic=0)

    assert diff(later, seen, now, poll_interval=1)[1] == ()


def test_monotonic_time_is_of_no_use_to_a_later_life() -> None:
    watch = look(Watch(), document(imds_event(), incarnation=7), START, 50)
    watch = look(watch, document(incarnation=2), START, 51)

    found = Watch.from_json(watch.to_json())
    assert found.seen == Moment(at=START, monotonic=None)
    assert found.fall is not None
    assert found.fall.seen == Moment(at=START, monotonic=None)
    assert all(known.seen.monotonic is None for known in found.known.values())


def test_first_sight_of_an_event_as_it_is_is_kept_without_the_jumps_of_the_clock() -> (
    None
):
    watch = look(Watch(), document(imds_event()), START, 50)
    jumped = START + timedelta(hours=1, seconds=100)
    watch = look(watch, document(imds_event()), jumped, 150)

    found = Watch.from_json(watch.to_json())

    (known,) = found.known.values()
    assert known.since == Moment(at=START + timedelta(hours=1), monotonic=None)


def test_first_sight_is_anew_where_an_older_version_did_not_keep_it() -> None:
    whole = look(Watch(), document(imds_event()), START, 50).to_json()
    plain = json.loads(whole)
    for known in plain["known"].values():
        del known["since"]
    now = START + timedelta(seconds=60)

    watch = look(
        Watch.from_json(json.dumps(plain).encode()), document(imds_event()), now, 5
    )

    (known,) = watch.known.values()
    assert known.since == Moment(at=now, monotonic=5)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b'{"known": 1}',
        b'{"seen": "x"}',
        b'{"known": {"\xff": 1}}',
        b'{"x": ' + b"[" * 100_000,
        b'{"seen": {"at": "2026-03-02T12:00:00Z", "monotonic": 1}}',
    ],
    ids=["empty", "list", "cut", "type", "time", "bytes", "deep", "monotonic"],
)
def test_what_nobody_here_wrote_is_refused(body: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        Watch.from_json(body)
