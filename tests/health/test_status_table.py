"""The status at a shell: aligned if it fits, otherwise with one value per line."""

from bridge.health.report import StatusReport, nothing_known
from bridge.health.status_table import plain
from bridge.health.status_view import Mood
from tests.health.test_status_view import status_of
from tests.support.builders import imds_event
from tests.support.fakes import START

SINKS = [
    {"name": "bus", "state": "ok", "pending": 0, "dead": 0},
    {"name": "operations", "state": "parked", "pending": 12, "dead": 1},
]


def unpainted(text: str, mood: Mood) -> str:
    return text


def shown(status: StatusReport, width: int | None = None) -> str:
    return plain(status, START, width=width, paint=unpainted)


def test_columns_are_aligned() -> None:
    lines = shown(status_of(sinks=SINKS)).splitlines()

    at = lines.index("Deliveries")
    assert lines[at + 1 : at + 4] == [
        "  SINK        STATE   PENDING  DEAD",
        "  bus         ok      0        0",
        "  operations  parked  12       1",
    ]


def test_title_and_notices_come_first() -> None:
    text = shown(status_of())

    assert text.startswith("No scheduled events on WestNO_0\nReady.\n\nEvents (0): ")
    assert "IMDS           ok\n" in text


def test_future_moment_is_shown_with_its_time() -> None:
    text = shown(status_of(imds_event()))

    assert "in 15 min 00 s (12:15:00Z)" in text
    assert "Last document  2 s ago\n" in text


def test_moment_on_another_day_is_shown_with_its_date() -> None:
    event = imds_event(NotBefore="2026-03-04T12:00:00Z")

    assert "in 2 d 0 h (2026-03-04 12:00:00Z)" in shown(status_of(event))


def test_table_wider_than_the_terminal_is_a_list_and_nothing_is_cut() -> None:
    text = shown(status_of(imds_event(), imds_event("B")), width=80)

    assert (
        "  Description  Host server is undergoing maintenance.\n\n  Not before " in text
    )
    assert max(map(len, text.splitlines())) <= 80


def test_colours_do_not_move_columns() -> None:
    text = plain(
        status_of(sinks=SINKS),
        START,
        width=None,
        paint=lambda text, mood: f"<{mood}>{text}</>" if mood else text,
    )

    assert "  bus         <good>ok</>      0        0\n" in text
    assert "  operations  <bad>parked</>  12       <bad>1</>\n" in text


def test_empty_status_is_shown_as_empty() -> None:
    text = shown(nothing_known("not answering"))

    assert text.startswith(
        "Scheduled events: not known, no forwarder has read a document yet: "
        "sebridge check --connect\nNo forwarder answers."
    )
