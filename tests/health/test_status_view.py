"""The overview of the status for people; foreign text cannot disturb it."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.health.report import SinkReport, StatusReport, nothing_known
from bridge.health.status_view import Cell, Table, countdown, overview, span
from tests.support.builders import EVENT_ID, imds_event, started
from tests.support.fakes import START
from tests.support.strategies import JSON_VALUES, odd_events


def status_of(*events: object, **parts: object) -> StatusReport:
    """Return the status of a healthy bridge that has seen ``events``."""
    whole = {
        "vm": {"vmName": "WestNO_0", "version": "1.2.3"},
        "document": {"incarnation": 2, "events": list(events)},
        "imds": {"lastSuccess": "2026-03-02T11:59:58Z", "state": "ok"},
        "sinks": [],
        "approvals": [],
        "commands": [],
        "replies": {"pending": 0, "dead": 0, "lastError": None},
        "receivers": [],
        "missing": [],
        "notes": [],
        **parts,
    }
    return msgspec.convert(whole, StatusReport)


def table(status: StatusReport, title: str) -> Table:
    (found,) = [
        one for one in overview(status, START).tables if one.title.startswith(title)
    ]
    return found


def rows(status: StatusReport, title: str) -> list[dict[str, Cell]]:
    """Return the rows of a table by their heads."""
    found = table(status, title)
    return [dict(zip(found.heads, row, strict=True)) for row in found.rows]


def texts(row: dict[str, Cell]) -> dict[str, str]:
    return {head: cell.text for head, cell in row.items()}


@pytest.mark.parametrize(
    ("count", "title"),
    [
        (0, "No scheduled events on WestNO_0"),
        (1, "1 scheduled event on WestNO_0"),
        (2, "2 scheduled events on WestNO_0"),
    ],
)
def test_title_says_how_many_events_there_are(count: int, title: str) -> None:
    assert overview(status_of(*[imds_event()] * count), START).title == title


def test_nobody_is_told_that_there_are_no_events_before_there_is_a_document() -> None:
    imds = {"lastSuccess": None, "state": "403"}
    status = status_of(imds=imds)
    unknown = "not known, IMDS has not answered yet (403): sebridge check --connect"

    assert overview(status, START).title == f"Scheduled events on WestNO_0: {unknown}"
    assert table(status, "Events").empty == unknown


@pytest.mark.parametrize("state", ["not answering", "timeout", "overdue"])
def test_old_document_without_events_is_no_news(state: str) -> None:
    imds = {"lastSuccess": "2026-03-02T11:27:00Z", "state": state}
    found = table(status_of(imds=imds), "Events")

    assert found.empty == "Nothing was scheduled when IMDS answered last."


def test_starting_bridge_does_not_say_what_it_does_not_know() -> None:
    found = overview(nothing_known("starting"), START).tables[1:]

    assert {one.empty for one in found} == {"Not known yet."}


def test_event_of_a_state_file_is_no_longer_under_way() -> None:
    """No forwarder runs: it may have ended long ago."""
    imds = {"lastSuccess": "2026-03-02T11:27:00Z", "state": "not answering"}
    status = status_of(started(), imds=imds)
    (row,) = rows(status, "Events")

    assert row["Not before"].text == "was under way"
    assert overview(status, START).title == (
        "1 scheduled event on WestNO_0 when IMDS answered last, 33 min 00 s ago"
    )


def test_old_document_is_not_shown_as_the_present_one() -> None:
    imds = {"lastSuccess": "2026-03-02T11:55:00Z", "state": "timeout"}

    assert overview(status_of(imds=imds), START).title == (
        "No scheduled events on WestNO_0 when IMDS answered last, 5 min 00 s ago"
    )


def test_dead_letters_of_a_note_are_not_said_twice() -> None:
    note = "sinks.bus: 1 dead letter (x): sebridge outbox list --state dead"
    status = status_of(sinks=[{**WELL, "dead": 1}], notes=[note])

    assert overview(status, START).notices[1:] == (Cell(note, "warning"),)


def test_event_is_shown_with_a_countdown() -> None:
    (row,) = rows(status_of(imds_event()), "Events (1)")

    assert texts(row) == {
        "Not before": "in 15 min 00 s",
        "Type": "Freeze",
        "Status": "Scheduled",
        "VMs": "WestNO_0 (this VM), WestNO_1",
        "Lasts": "5 s",
        "From": "Platform",
        "EventId": EVENT_ID,
        "Description": "Host server is undergoing maintenance.",
    }
    assert row["Not before"].moment == START + timedelta(minutes=15)


def test_started_event_is_under_way() -> None:
    (row,) = rows(status_of(started(DurationInSeconds=-1)), "Events")

    assert (row["Not before"].text, row["Status"].mood) == ("under way", "bad")
    assert row["Lasts"].text == "not known"


@pytest.mark.parametrize(("given", "shown"), [("", "not said"), ("soon", "soon")])
def test_invalid_not_before_is_shown_unchanged(given: str, shown: str) -> None:
    (row,) = rows(status_of(imds_event(NotBefore=given)), "Events")

    assert row["Not before"] == Cell(shown)


def test_many_resources_and_events_are_counted() -> None:
    names = [f"vm-{n}" for n in range(12)]
    status = status_of(*[imds_event(Resources=names)] * 103)

    found = rows(status, "Events (103, 3 not shown)")

    assert len(found) == 100
    assert found[0]["VMs"].text.endswith("vm-8, vm-9 and 2 more")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (59, "59 s"),
        (60, "1 min 00 s"),
        (3599, "59 min 59 s"),
        (3600, "1 h 00 min"),
        (86399, "23 h 59 min"),
        (90000, "1 d 1 h"),
    ],
)
def test_span_has_its_two_largest_units(seconds: int, text: str) -> None:
    assert span(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.9, "in 0 s"), (0, "0 s ago"), (-0.9, "0 s ago"), (-61, "1 min 01 s ago")],
)
def test_countdown_goes_on_past_the_moment(seconds: float, text: str) -> None:
    assert countdown(START + timedelta(seconds=seconds), START) == text


def test_healthy_bridge_is_ready() -> None:
    assert overview(status_of(), START).notices == (Cell("Ready.", "good"),)


def test_causes_come_before_notes() -> None:
    status = status_of(missing=["imds: x"], notes=["sinks.ops: parked (y)"])

    assert overview(status, START).notices == (
        Cell("Not ready: imds: x", "bad"),
        Cell("sinks.ops: parked (y)", "warning"),
    )


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("starting", "is starting"),
        ("not answering", "No forwarder answers"),
    ],
)
def test_bridge_without_an_answer_is_not_called_ready(state: str, words: str) -> None:
    (notice,) = overview(nothing_known(state), START).notices

    assert words in notice.text
    assert notice.mood == "warning"


def test_silent_forwarder_is_not_told_of_its_sinks_and_imds() -> None:
    """Who does not answer is the forwarder: nothing is known of the others."""
    status = nothing_known("not answering")
    status.sinks = [SinkReport("bus", "not answering")]
    found = overview(status, START)

    table = next(one for one in found.tables if one.title == "Deliveries")
    (row,) = (dict(zip(table.heads, row, strict=True)) for row in table.rows)
    assert row["State"] == Cell("not known")
    assert dict(found.facts)["IMDS"] == Cell("not known", "warning")


WELL = {"name": "bus", "state": "ok", "pending": 0, "dead": 0, "lastError": None}


@pytest.mark.parametrize(
    ("sink", "text"),
    [
        ({"dead": 1}, "bus: 1 dead letter (sebridge outbox list --state dead)"),
        ({"dead": 12}, "bus: 12 dead letters (sebridge outbox list --state dead)"),
        (
            {"pending": 3, "oldestSeconds": 120, "state": "retrying"},
            "bus: 3 pending, the oldest for 2 min 00 s",
        ),
    ],
)
def test_page_is_not_green_if_a_sink_has_undelivered_events(
    sink: dict[str, object], text: str
) -> None:
    status = status_of(sinks=[WELL, {**WELL, **sink}])

    assert overview(status, START).notices == (
        Cell("Ready, but see below.", "warning"),
        Cell(text, "warning"),
    )
    first, second = rows(status, "Deliveries")
    assert first["State"].mood == "good"
    assert second["State"].mood == "warning"


def test_parked_sink_is_not_green() -> None:
    status = status_of(notes=["sinks.ops: parked (y)"])

    first, second = overview(status, START).notices

    assert (first.mood, second.text) == ("warning", "sinks.ops: parked (y)")


def test_sink_with_a_short_wait_is_good() -> None:
    status = status_of(sinks=[{**WELL, "pending": 3, "oldestSeconds": 119}])

    assert overview(status, START).notices == (Cell("Ready.", "good"),)
    assert rows(status, "Deliveries")[0]["State"] == Cell("ok", "good")


def test_sink_that_was_never_tried_is_not_said_to_be_well() -> None:
    status = status_of(sinks=[{**WELL, "state": "untried"}])

    assert overview(status, START).notices == (Cell("Ready.", "good"),)
    said = rows(status, "Deliveries")[0]["State"]
    assert said == Cell("nothing sent since the start")


@pytest.mark.parametrize("state", ["ok", "untried", "early"])
@pytest.mark.parametrize("lack", [{"dead": 1}, {"pending": 1, "oldestSeconds": 9000}])
def test_sink_that_falls_short_is_a_warning_whether_it_was_tried_or_not(
    state: str, lack: dict[str, int]
) -> None:
    status = status_of(sinks=[{**WELL, "state": state, **lack}])

    assert rows(status, "Deliveries")[0]["State"].mood == "warning"


def test_sink_with_an_error_is_not_green() -> None:
    status = status_of(sinks=[{**WELL, "lastError": "answered 503"}])

    assert rows(status, "Deliveries")[0]["State"] == Cell("ok", "warning")


def test_dead_letters_are_shown_without_a_forwarder() -> None:
    status = nothing_known("not answering")
    status.sinks = [SinkReport("bus", "ok", dead=1)]

    first, second = overview(status, START).notices

    assert first.text.startswith("No forwarder answers")
    assert second.text.startswith("bus: 1 dead letter")


def test_facts_that_are_not_known_are_left_out() -> None:
    facts = dict(overview(nothing_known("starting"), START).facts)

    assert facts == {"IMDS": Cell("starting", "warning")}


def test_sinks_are_shown_as_they_stand() -> None:
    well = {"name": "bus", "state": "ok", "pending": 0, "dead": 0}
    ill = {
        **well,
        "name": "ops",
        "state": "parked",
        "dead": 1,
        "oldestSeconds": 61,
        "lastError": "answered 403",
    }

    first, second = rows(status_of(sinks=[well, ill]), "Deliveries")

    assert first["State"] == Cell("ok", "good")
    assert first["Dead"] == Cell("0")
    assert second["State"] == Cell("parked", "bad")
    assert second["Dead"] == Cell("1", "bad")
    assert texts(second)["Oldest"] == "1 min 01 s"
    assert texts(second)["Last error"] == "answered 403"


def test_replies_are_shown_if_there_are_any() -> None:
    replies = {"pending": 1, "dead": 0, "lastError": "no such queue"}

    (row,) = rows(status_of(replies=replies), "Deliveries")

    assert texts(row)["Sink"] == "replies to approvals"
    assert rows(status_of(), "Deliveries") == []


@pytest.mark.parametrize(
    ("receiver", "state"),
    [
        ({"attached": True, "linkSeconds": 61}, Cell("attached", "good")),
        ({"attached": False, "standsBy": True}, Cell("standing by", "good")),
        ({"attached": False, "lastError": "x"}, Cell("not attached", "bad")),
    ],
)
def test_receivers_are_shown(receiver: dict[str, object], state: Cell) -> None:
    status = status_of(receivers=[{"entity": "vm-approvals", **receiver}])

    (row,) = rows(status, "Approvals come from")

    assert (row["Entity"].text, row["State"]) == ("vm-approvals", state)


def test_only_a_running_forwarder_knows_the_receivers() -> None:
    status = status_of(receivers=None)

    assert "running forwarder" in table(status, "Approvals come from").empty


def test_approval_is_shown_with_who_what_and_why() -> None:
    outcome = {
        "outcome": "denied",
        "eventId": EVENT_ID,
        "event": imds_event(),
        "reason": "rule databases",
        "request": {"approvedBy": "anna", "reason": "at night"},
        "observedAt": "2026-03-02T11:59:00Z",
    }

    (row,) = rows(status_of(approvals=[outcome]), "Last approvals")

    assert texts(row) == {
        "When": "1 min 00 s ago",
        "Outcome": "denied",
        "Event": f"Freeze {EVENT_ID}",
        "Who": "anna",
        "Asked because": "at night",
        "Decided because": "rule databases",
    }
    assert row["Outcome"].mood == "bad"


def test_long_text_is_cut_and_what_cannot_be_printed_is_escaped() -> None:
    status = status_of(imds_event(Description="a\x1b[2J\u202e" + 600 * "b"))

    text = rows(status, "Events")[0]["Description"].text

    assert text.startswith("a\\x1b[2J\\u202ebbb")
    assert text.endswith("b…")
    assert len(text) < 520


def anything() -> st.SearchStrategy[Any]:
    """What comes from outside is anything; the rest is texts and numbers."""
    return st.builds(
        lambda events, outcome, command, texts, number: status_of(
            *events,
            vm=dict.fromkeys(("vmName", "version"), texts[0]),
            imds={"lastSuccess": texts[1], "state": texts[0]},
            sinks=[{"name": texts[0], "state": texts[1], "oldestSeconds": number}],
            approvals=[outcome],
            commands=[command],
            receivers=[{"entity": texts[0], "attached": True, "lastReceive": texts[1]}],
            notes=texts,
        ),
        st.lists(odd_events(), max_size=3),
        *[st.dictionaries(st.sampled_from(_INNER), JSON_VALUES)] * 2,
        st.lists(st.text(max_size=30), min_size=2, max_size=2),
        st.none() | st.integers(0, 2**40),
    )


_INNER = ("outcome", "seconds", "attempts", "reason", "request", "event", "observedAt")


@settings(max_examples=50)
@given(anything())
def test_any_status_can_be_shown(status: StatusReport) -> None:
    seen = overview(status, START)

    for found in seen.tables:
        assert all(len(row) == len(found.heads) for row in found.rows)
        for row in found.rows:
            assert all(cell.text == "" or cell.text.isprintable() for cell in row)


@pytest.mark.parametrize(
    ("traffic", "cell"),
    [
        ({"traffic": "in"}, Cell("in", "good")),
        (
            {"traffic": "out", "reason": "scheduled", "eventId": "C7"},
            Cell("out: scheduled C7", "warning"),
        ),
        (
            {"traffic": "out", "reason": "unknown", "eventId": None},
            Cell("out: unknown", "warning"),
        ),
        ({"traffic": "out"}, Cell("out", "warning")),
        ({"traffic": 7}, None),
        ({}, None),
    ],
)
def test_traffic_is_shown_where_there_is_a_probe(
    traffic: dict[str, object], cell: Cell | None
) -> None:
    status = nothing_known("starting")
    status.traffic = traffic

    assert dict(overview(status, START).facts).get("Traffic") == cell


# -- commands and traffic --------------------------------------------------------------


def test_last_commands_are_shown_where_there_were_some() -> None:
    assert all(
        one.title != "Last commands" for one in overview(status_of(), START).tables
    )
    failed = {
        "outcome": "failed",
        "sink": "drain",
        "action": "prepare",
        "event": imds_event(),
        "seconds": 61.4,
        "attempts": 3,
        "reason": "exit code 1",
        "observedAt": "2026-03-02T11:59:00Z",
    }
    skipped = {"outcome": "skipped", "attempts": 0, "seconds": 0}

    first, second = rows(status_of(commands=[failed, skipped]), "Last commands")

    assert texts(first) == {
        "When": "1 min 00 s ago",
        "Sink": "drain",
        "Action": "prepare",
        "Outcome": "failed",
        "Event": f"Freeze {EVENT_ID}",
        "Took": "1 min 01 s",
        "Because": "exit code 1",
    }
    assert (first["Outcome"].mood, second["Outcome"].mood) == ("bad", "warning")
    assert second["Took"].text == ""


@given(st.lists(st.dictionaries(st.sampled_from(["outcome", "seconds"]), JSON_VALUES)))
def test_unexpected_commands_are_shown(found: list[object]) -> None:
    overview(status_of(commands=found), START)


def test_vm_without_an_answer_is_shown_as_out() -> None:
    out = {"traffic": "out", "reason": "no answer"}

    facts = dict(overview(status_of(traffic=out), START).facts)

    assert facts["Traffic"] == Cell("out: no answer", "warning")
