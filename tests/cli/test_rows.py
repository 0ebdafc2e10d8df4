"""Deliveries and events as rows for people."""

from datetime import UTC, datetime

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.cli.rows import Gist, Listing, Row, delivery_row, event_rows
from bridge.health.status_view import Cell
from bridge.outbox.questions import Observation, step_of
from bridge.outbox.records import Delivery
from tests.support.strategies import JSON_VALUES

BODY = {
    "type": "sebridge.scheduledevent.started.v1",
    "time": "2026-03-02T12:00:00Z",
    "correlationid": "E",
    "data": {
        "event": {"EventType": "Reboot", "Resources": ["web-0", "web-1", "c", "d"]},
        "reporter": {"vmName": "web-0"},
    },
}


def delivery(body: bytes = orjson.dumps(BODY), **given: object) -> Delivery:
    values = dict.fromkeys(Delivery.__struct_fields__)
    return Delivery(
        **{  # type: ignore[arg-type]  # the names of its fields
            **values,
            "id": 7,
            "sink": "siem",
            "state": "dead",
            "type": BODY["type"],
            "body": body,
            "event_id": "E",
            "attempts": 3,
            "created": datetime(2026, 3, 2, 12, tzinfo=UTC).timestamp(),
            "last_error": "answered 400",
            **given,
        }
    )


def texts(row: Row) -> list[str]:
    return [" ".join(cell.text for cell in column) for column in row]


def test_delivery_is_shown_with_event_vm_and_local_time() -> None:
    row = delivery_row(delivery())

    moment = datetime(2026, 3, 2, 12, tzinfo=UTC).astimezone()
    assert texts(row) == [
        *("7", "dead", "siem", f"{moment:%Y-%m-%d %H:%M:%S %Z}", "Reboot", "started"),
        *("web-0,web-1,c,+1", "E", "3", "answered 400"),
    ]
    assert row[1][0].mood == "bad"


def test_event_is_shown_with_its_deliveries_and_errors() -> None:
    places = (delivery(), delivery(sink="ops", state="delivered"))

    row, error = event_rows(Observation(1, orjson.dumps(BODY), places))

    assert [(cell.text, cell.mood) for cell in row[-1]] == [
        ("siem:dead", "bad"),
        ("ops:delivered", "good"),
    ]
    assert texts(error) == ["    siem: answered 400"]


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        ("sebridge.scheduledevent.started.v1", "started"),
        ("a.b.c.bridge.heartbeat.v1", "bridge.heartbeat"),
        ("sebridge.startrequest.relayed.v1", "startrequest.relayed"),
        ("reply", "reply"),
        ("", "-"),
    ],
)
def test_step_is_what_happened(kind: str, step: str) -> None:
    assert step_of(kind) == step


def test_event_without_resources_shows_the_reporter() -> None:
    body = {"data": {"reporter": {"vmName": "web-0"}}}

    assert Gist.of(orjson.dumps(body)).vm == "web-0"


def test_damaged_event_is_shown_as_damaged() -> None:
    assert Gist.of(b'{"type": "sebr').event_type == "damaged"
    assert Gist.of(b"[]").event_type == "damaged"


@given(
    st.binary()
    | st.builds(
        orjson.dumps,
        JSON_VALUES
        | st.fixed_dictionaries(dict.fromkeys(BODY, JSON_VALUES))
        | st.builds(
            lambda event, by: {"data": {"event": event, "reporter": by}},
            st.fixed_dictionaries({"EventType": JSON_VALUES, "Resources": JSON_VALUES}),
            st.dictionaries(st.just("vmName"), JSON_VALUES),
        ),
    ),
    st.text(),
)
def test_whatever_is_stored_is_shown_on_one_line(body: bytes, error: str) -> None:
    odd = delivery(body, last_error=error, event_id=error)
    rows = [delivery_row(odd), *event_rows(Observation(1, body, (odd,)))]

    for row in rows:
        assert all(cell.text.isprintable() for column in row for cell in column)


# -- the table ---------------------------------------------------------------------


def row(*cells: str) -> Row:
    return [[Cell(text)] for text in cells]


def listing(*heads: str, width: int | None = None) -> Listing:
    paint = {"good": "<{}>", "": "{}"}
    return Listing(heads, width, lambda text, mood: paint[mood].format(text))


def test_rows_are_aligned_under_their_heads() -> None:
    rows = [row("1", "2", "3"), row("    a note"), row("", "22222", "")]

    assert [*listing("A", "LONG", "C").lines(rows)] == [
        "A  LONG   C",
        "1  2      3",
        "    a note",
        "   22222",
    ]


def test_heads_are_printed_once_and_only_above_rows() -> None:
    table = listing("A", "B")

    assert [*table.lines([])] == []
    assert [*table.lines([row("1", "2")])] == ["A  B", "1  2"]
    assert [*table.lines([row("333", "4")]), *table.lines([row("5", "6")])] == [
        "333  4",
        "5    6",
    ]


def test_colour_does_not_change_the_width() -> None:
    cells: Row = [[Cell("a", "good"), Cell("b")], [Cell("c")]]

    assert [*listing("AAAA", "C").lines([cells])][1] == "<a> b   c"


def test_text_that_is_cut_ends_with_an_ellipsis() -> None:
    cells: Row = [[Cell("aa", "good"), Cell("bbbb")]]

    for width, line in ((9, "<aa> bbbb"), (6, "<aa> bb…"), (3, "<aa>…"), (2, "<a>…")):
        assert [*listing("", width=width).lines([cells])][1] == line


LONG = row("9C1F2A34-0000-0000-0000-000000000000", "web-0", "went to siem and ops")


@pytest.mark.parametrize(
    ("width", "lines", "hidden"),
    [
        (67, ["EVENTID                               VM     WENT TO", None], []),
        (
            38,
            ["EVENTID    VM     WENT TO", "9C1F2A34…  web-0  went to siem and ops"],
            [],
        ),
        (
            *(36, ["EVENTID    VM     WENT TO", "9C1F2A34…  web-0"]),
            [],
        ),
        (27, ["EVENTID    WENT TO", "9C1F2A34…"], ["VM"]),
    ],
)
def test_table_that_is_too_wide_says_which_columns_it_leaves_out(
    width: int, lines: list[str | None], hidden: list[str]
) -> None:
    table = listing("EVENTID", "VM", "WENT TO", width=width)

    found = [*table.lines([LONG])]

    assert found[0] == lines[0]
    assert lines[1] is None or found[1] == lines[1]
    assert "went to siem and ops" in found[-1]
    assert max(map(len, found)) <= width
    assert table.hidden == hidden
