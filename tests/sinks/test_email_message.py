"""A mail: its thread, its words, its entry for calendars."""

import re
from email.message import EmailMessage
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from bridge.events.cloudevent import CloudEvent, hash32
from bridge.events.samples import one_of_each
from bridge.sinks.email.message import describe, html, message
from tests.support.mail import parsed
from tests.support.sink_fixtures import EVENT_ID, cloud_event

TO = ["ops@contoso.com", "night@contoso.com"]
ODD = "a\r\nBcc: evil@x.example\r\n\r\n<script>alert(1)</script>\u202e\x00ä"


def sent(event: CloudEvent, prefix: str = "") -> EmailMessage:
    found = message(event, sender="sebridge@contoso.com", recipients=TO, prefix=prefix)
    assert found.isascii()
    assert max(map(len, found.split(b"\r\n"))) <= 998
    return parsed(found)


def texts(mail: EmailMessage) -> tuple[str, str]:
    plain, rich = (mail.get_body((kind,)) for kind in ("plain", "html"))
    assert isinstance(plain, EmailMessage)
    assert isinstance(rich, EmailMessage)
    return plain.get_content(), rich.get_content()


def entry(mail: EmailMessage) -> dict[str, str]:
    """Return the calendar entry by its names, unfolded."""
    (part,) = mail.iter_attachments()
    assert isinstance(part, EmailMessage)
    assert part.get_content_type() == "text/calendar"
    raw: str = part.get_content()
    assert all(len(line.encode()) <= 75 for line in raw.splitlines())
    lines = raw.replace("\r\n", "\n").replace("\n ", "").splitlines()
    found = dict(line.split(":", 1) for line in lines)
    assert found["METHOD"] == part.get_param("method")
    return found


def test_mail_tells_what_happened_in_text_and_html() -> None:
    mail = sent(cloud_event(), prefix="[maintenance]")
    plain, rich = texts(mail)

    assert mail["Subject"] == "[maintenance] Reboot: web-0, web-1 [602D9444]"
    assert mail["From"] == "sebridge <sebridge@contoso.com>"
    assert mail["To"] == ", ".join(TO)
    assert mail["Date"] == "Sat, 21 Nov 2026 10:00:00 +0000"
    assert mail["Auto-Submitted"] == "auto-generated"
    assert plain.startswith("Reboot is scheduled: web-0, web-1")
    assert "Host & guest <must> restart" in plain
    assert "Host &amp; guest &lt;must&gt; restart" in rich


def test_all_events_of_an_event_id_are_in_one_thread() -> None:
    steps = ("scheduledevent.scheduled", "startrequest.relayed", "command.failed")
    mails = [
        sent(replace(cloud_event(step), id=f"{n:032x}")) for n, step in enumerate(steps)
    ]
    thread = f"<{hash32(EVENT_ID)}.thread@contoso.com>"

    assert {mail["References"] for mail in mails} == {thread}
    assert {mail["In-Reply-To"] for mail in mails} == {thread}
    assert len({mail["Message-ID"] for mail in mails}) == len(mails)
    assert len({mail["Subject"] for mail in mails}) == 1


def test_same_event_makes_the_same_bytes() -> None:
    first, again = (
        message(cloud_event(), sender="a@b.example", recipients=TO) for _ in range(2)
    )

    assert first == again
    assert b"Message-ID: <" + cloud_event().id.encode() + b"@b.example>" in first


def test_event_of_the_bridge_itself_has_no_thread() -> None:
    event = replace(cloud_event("bridge.imds-unreachable"), extensions={}, data={})
    mail = sent(event)

    assert mail["References"] is None
    assert mail["Subject"] == "The bridge cannot read scheduled events: unknown machine"


@pytest.mark.parametrize(("text", "importance"), [("ERROR", "high"), ("INFO", None)])
def test_only_what_interrupts_is_important(text: str, importance: str | None) -> None:
    event = replace(cloud_event(), extensions={"severitytext": text})

    assert sent(event)["Importance"] == importance


@pytest.mark.parametrize(
    "event", list(one_of_each(lifecycle=True)), ids=lambda e: e.type
)
def test_every_event_has_words(event: CloudEvent) -> None:
    plain, rich = texts(sent(event))

    assert plain.splitlines()[0] == describe(event).headline
    assert "unknown type" not in describe(event).headline
    assert rich.count("<tr>") == len(describe(event).facts)


def test_event_of_no_seconds_has_no_impact() -> None:
    words = describe(cloud_event(event={"EventType": "Freeze", "DurationInSeconds": 0}))

    assert ("Impact", "none") in words.facts


def test_event_of_a_kind_that_is_not_known_has_its_type_as_words() -> None:
    event = replace(cloud_event("bridge.new"), extensions={})

    assert describe(event).headline == "sebridge.bridge.new.v1: web-0"


# -- texts of events are data ------------------------------------------------------


class Tags(HTMLParser):
    """Collects the tags of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, _: object) -> None:
        self.seen.add(tag)


def tags(event: CloudEvent) -> set[str]:
    reader = Tags()
    reader.feed(html(event, describe(event)))
    return reader.seen


def test_no_text_becomes_a_header_or_a_tag() -> None:
    raw = {
        "EventId": ODD,
        "EventType": ODD,
        "Resources": [ODD, "web-1"],
        "Description": ODD,
        "EventSource": ODD,
    }
    event = replace(
        cloud_event(event=raw, reason=ODD, reporter={"vmName": ODD}),
        id=ODD,
        extensions={"correlationid": ODD},
    )
    mail = sent(event)

    assert mail["Bcc"] is None
    assert mail["To"] == ", ".join(TO)
    assert tags(event) == tags(cloud_event())
    assert "\u202e" not in "".join(texts(mail))


@given(
    st.dictionaries(
        st.sampled_from(["EventType", "Resources", "Description", "DurationInSeconds"]),
        st.none() | st.text() | st.lists(st.text()) | st.integers(),
    ),
    st.text(min_size=1),
)
@settings(max_examples=60)
def test_whatever_imds_says_makes_a_mail(raw: dict[str, object], key: str) -> None:
    key = key.encode(errors="replace").decode()
    event = replace(cloud_event(event=raw), extensions={"correlationid": key})
    mail = sent(event)

    expected = {
        *("From", "To", "Subject", "Date", "Message-ID", "In-Reply-To", "References"),
        *("Auto-Submitted", "MIME-Version", "Content-Type"),
    }
    assert set(mail.keys()) == expected


def test_long_texts_and_many_names_are_cut() -> None:
    raw = {"Resources": [f"vm-{n}" for n in range(60)], "Description": "x" * 9000}
    plain, _ = texts(sent(cloud_event(event=raw)))

    assert "vm-49 and 10 more" in plain
    assert "x" * 1999 + "…" in plain.replace("\n", "")


def test_time_that_is_none_is_left_to_the_relay() -> None:
    assert sent(replace(cloud_event(), time="then"))["Date"] in {None, ""}


# -- the calendar ------------------------------------------------------------------


def test_not_before_is_an_entry() -> None:
    found = entry(sent(cloud_event()))

    assert found["METHOD"] == "PUBLISH"
    assert found["UID"] == f"{hash32(EVENT_ID)}@contoso.com"
    assert (found["DTSTART"], found["DTEND"]) == (
        "20261121T101400Z",
        "20261121T101430Z",
    )
    assert found["ORGANIZER"] == "mailto:sebridge@contoso.com"
    assert found["SUMMARY"] == r"Reboot: web-0\, web-1 [602D9444]"
    assert r"\nMachines: web-0\, web-1" in found["DESCRIPTION"]


def test_change_follows_and_cancellation_ends_the_entry() -> None:
    later = replace(cloud_event("scheduledevent.updated"), time="2026-11-21T10:01:00Z")
    last = replace(cloud_event("scheduledevent.cancelled"), time="2026-11-21T10:02:00Z")
    entries = [entry(sent(event)) for event in (cloud_event(), later, last)]

    assert len({found["UID"] for found in entries}) == 1
    organizers = {found["ORGANIZER"] for found in entries}  # RFC 5546: CANCEL needs it
    assert organizers == {"mailto:sebridge@contoso.com"}
    numbers = [int(found["SEQUENCE"]) for found in entries]
    assert numbers == sorted(set(numbers))
    assert (entries[-1]["METHOD"], entries[-1]["STATUS"]) == ("CANCEL", "CANCELLED")


@pytest.mark.parametrize(
    "event",
    [
        cloud_event("scheduledevent.started"),
        cloud_event("startrequest.relayed"),
        cloud_event(notBefore=None),
        cloud_event(notBefore="soon"),
        cloud_event(notBefore="9999-12-31T23:59:59Z"),
        replace(cloud_event(), extensions={}),
    ],
)
def test_what_has_no_time_to_come_is_no_entry(event: CloudEvent) -> None:
    assert list(sent(event).iter_attachments()) == []


def test_length_that_is_not_known_is_a_quarter_of_an_hour() -> None:
    found = entry(sent(cloud_event(event={"DurationInSeconds": -1})))

    assert found["DTEND"] == "20261121T102900Z"


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=300))
@settings(max_examples=60)
def test_entry_holds_any_text(text: str) -> None:
    found = entry(sent(cloud_event(event={"EventSource": text})))

    assert set(found) >= {"UID", "DTSTART", "SUMMARY", "DESCRIPTION"}
    assert not re.search(r"(?<!\\)(?:\\\\)*[;,]", found["DESCRIPTION"])
