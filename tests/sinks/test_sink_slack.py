"""The Slack sink: what a person reads, and that anything at all can be sent."""

import re
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from msgspec.structs import replace as with_fields

from bridge.events.cloudevent import CloudEvent
from bridge.events.samples import TEST_ATTRIBUTE
from bridge.foundation.errors import (
    DeliveryError,
    MissingExtraError,
    PermanentDeliveryError,
    RefusedDeliveryError,
    TransientDeliveryError,
)
from bridge.sinks.base import ApprovalAddress, Resources
from bridge.sinks.slack.blocks import command, render
from bridge.sinks.slack.text import describe, safe
from tests.support.fakes import FakeClock
from tests.support.sink_fixtures import (
    EVENT_ID,
    Inbox,
    cloud_event,
    config_faults,
    opened_sink,
    sink_config,
)

RAW = {"EventId": EVENT_ID, "EventType": "Freeze", "Resources": ["web-0"]}


def texts(value: object) -> Iterator[str]:
    """All texts of a message, but for what is no text object."""
    if isinstance(value, dict):
        if isinstance(value.get("text"), str):
            yield value["text"]
        for inner in value.values():
            yield from texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts(inner)


def text_of(event: CloudEvent) -> str:
    return "\n".join(texts(render(event)))


def headline(event: CloudEvent) -> str:
    return describe(event).headline


async def test_message_is_posted_as_json(resources: Resources, inbox: Inbox) -> None:
    options = {"type": "slack", "webhook_url": f"{inbox.url}/services/T/B/X"}
    clock = FakeClock(datetime(2026, 11, 21, 10, 4, tzinfo=UTC))
    async with opened_sink(with_fields(resources, clock=clock), options) as sink:
        await sink.deliver(cloud_event())

    (request,) = inbox.received
    assert request.path == "/services/T/B/X"
    assert request.headers["Content-Type"].startswith("application/json")
    assert orjson.loads(request.body) == render(cloud_event(), clock.now())
    assert b"(in 10 min)" in request.body  # although it was seen four minutes ago


APPROVALS = ApprovalAddress(namespace="here", entity="vm-approvals", session=None)
BEFORE = datetime(2026, 11, 21, 10, 4, tzinfo=UTC)


async def test_scheduled_event_says_how_to_approve_it_from_a_terminal(
    resources: Resources, inbox: Inbox
) -> None:
    options = {"type": "slack", "webhook_url": inbox.url}
    here = with_fields(resources, approvals=APPROVALS, clock=FakeClock(BEFORE))
    event = cloud_event()
    async with opened_sink(here, options) as sink:
        await sink.deliver(event)
    preview = await sink_config(options).preview(here, event)

    (request,) = inbox.received
    words = f"Approve it from a terminal: `sebridge approve {EVENT_ID}`"
    assert words in list(texts(orjson.loads(request.body)))
    assert words in list(texts(orjson.loads(preview.body)))


@pytest.mark.parametrize(
    ("event", "is_shown"),
    [
        (cloud_event(), True),
        (
            cloud_event(
                "scheduledevent.updated", event={**RAW, "EventStatus": "Scheduled"}
            ),
            True,
        ),
        (
            cloud_event(
                "scheduledevent.updated", event={**RAW, "EventStatus": "Started"}
            ),
            False,
        ),
        (cloud_event("scheduledevent.started", event=RAW), False),
        (cloud_event("scheduledevent.cancelled", event=RAW), False),
        (
            cloud_event(
                "startrequest.denied", event={**RAW, "EventStatus": "Scheduled"}
            ),
            False,
        ),
        (cloud_event("bridge.started"), False),
        (replace(cloud_event(), extensions={TEST_ATTRIBUTE: "true"}), False),
    ],
)
def test_only_what_can_be_approved_says_how(
    event: CloudEvent, *, is_shown: bool
) -> None:
    for approvals, words in ((APPROVALS, is_shown), (None, False)):
        message = render(event, BEFORE, approvals)
        assert ("sebridge approve" in str(message["blocks"])) is words


def test_event_past_its_not_before_is_no_longer_to_be_approved() -> None:
    late = datetime(2026, 11, 21, 10, 14, tzinfo=UTC)

    blocks = str(render(cloud_event(), late, APPROVALS)["blocks"])
    assert "sebridge approve" not in blocks


@pytest.mark.parametrize("session", ["group-7", "vm.7_a:/x", "a", "1" * 128])
def test_command_names_the_session(session: str) -> None:
    address = with_fields(APPROVALS, session=session)

    assert command(RAW, address) == f"sebridge approve {EVENT_ID} --session {session}"


@pytest.mark.parametrize(
    "word", ["", "a b", "-c", "`", "a;b", "$x", "é", "<a>", "a\n", 7]
)
def test_command_that_would_have_to_be_quoted_is_not_shown(word: object) -> None:
    """Whoever copies it must not be led astray by what others wrote."""
    assert command({**RAW, "EventId": word}, APPROVALS) is None
    if isinstance(word, str):
        assert command(RAW, with_fields(APPROVALS, session=word)) is None


def test_scheduled_event_says_what_where_when_and_how_soon() -> None:
    text = text_of(cloud_event())

    assert "Reboot is scheduled: web-0, web-1" in text
    assert "<!date^1795256040^{date_short_pretty} at {time}|" in text
    assert "(in 14 min)" in text
    assert "restarted; what is only in memory is lost; about 30 s" in text
    assert "Platform" in text


def test_time_has_a_fallback_for_who_cannot_show_dates() -> None:
    assert "|2026-11-21T10:14:00Z>" in text_of(cloud_event())


@pytest.mark.parametrize("at", ["soon", "0001-01-01T00:00:00+14:00", 7, None])
def test_time_that_cannot_be_read_is_left_out(at: object) -> None:
    assert "When" not in dict(describe(cloud_event(notBefore=at)).facts)


def test_text_from_imds_is_no_markup() -> None:
    raw = {**RAW, "Description": "<!channel> & <https://evil.example|click>"}

    text = text_of(cloud_event(event=raw))

    assert "&lt;!channel&gt; &amp; &lt;https://evil.example|click&gt;" in text
    assert "<!channel>" not in text


def test_nothing_is_turned_into_links_by_guessing() -> None:
    fields = str(render(cloud_event())["blocks"])

    assert fields.count("'verbatim': True") == fields.count("'mrkdwn'")


def test_ten_machines_are_named_and_the_rest_is_counted() -> None:
    raw = {**RAW, "Resources": [f"web-{n}" for n in range(13)]}

    text = text_of(cloud_event(event=raw))

    assert "web-9 and 3 more" in text
    assert "web-10" not in text


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("Freeze", "paused for some seconds"),
        ("Reboot", "restarted"),
        ("Redeploy", "temporary disks are lost"),
        ("Preempt", "evicted"),
        ("Terminate", "going to be deleted"),
        ("Defrost", "not known"),
    ],
)
def test_impact_is_said_in_plain_words(kind: str, words: str) -> None:
    assert words in text_of(cloud_event(event={**RAW, "EventType": kind}))


def test_event_without_impact_says_so() -> None:
    raw = {**RAW, "DurationInSeconds": 0}

    assert ("Impact", "none") in describe(cloud_event(event=raw)).facts


@pytest.mark.parametrize(
    ("transition", "words"),
    [
        ("started", "Freeze has started: web-0"),
        ("updated", "Freeze was changed: web-0"),
        ("completed", "Freeze is over: web-0"),
        ("cancelled", "Freeze was cancelled: web-0"),
        (
            "ended",
            "Freeze has ended; its outcome is not known: web-0",
        ),
        ("newer", "Freeze newer: web-0"),
    ],
)
def test_each_transition_has_its_headline(transition: str, words: str) -> None:
    event = cloud_event(f"scheduledevent.{transition}", event=RAW)

    assert headline(event) == words
    assert render(event)["text"] == words


def test_update_names_what_changed() -> None:
    event = cloud_event("scheduledevent.updated", changes=["NotBefore", "Resources"])

    assert ("Changed", "NotBefore, Resources") in describe(event).facts


@pytest.mark.parametrize(
    ("notice", "words"),
    [
        (-5, "(any moment)"),
        (0, "(any moment)"),
        (30, "(in 30 s)"),
        (119, "(in 119 s)"),
        (7199, "(in 119 min)"),
        (7200, "(in 2 h)"),
        (True, "}|2026"),
        (None, "}|2026"),
    ],
)
def test_how_soon_is_rounded_to_what_matters(notice: object, words: str) -> None:
    assert words.replace("}|2026", "|2026") in text_of(
        cloud_event(noticeSeconds=notice)
    )


def test_outcome_of_an_approval_says_who_and_why() -> None:
    event = cloud_event(
        "startrequest.denied",
        reason="EventChanged",
        eventId=EVENT_ID,
        request={"approvedBy": "ada@example", "reason": "night shift"},
    )

    facts = dict(describe(event).facts)

    assert headline(event) == "Approval denied (Reboot)"
    assert facts["Approved by"] == "ada@example"
    assert facts["Because"] == "night shift"
    assert facts["Reason"] == "EventChanged"


def test_outcome_without_an_event_names_what_was_asked_for() -> None:
    event = cloud_event("startrequest.unknown-event", event=None, eventId="gone")

    assert headline(event) == "Approval refused: no such event here"
    assert ("Event", "gone") in describe(event).facts


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("bridge.started", "The bridge has started"),
        ("bridge.imds-unreachable", "The bridge cannot read scheduled events"),
        ("document.changed", "The document of scheduled events has changed"),
        ("bridge.newer", "sebridge.bridge.newer.v1"),
    ],
)
def test_own_life_is_reported(what: str, words: str) -> None:
    assert headline(cloud_event(what)).startswith(words)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=5000),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
ANY_EVENT = JSON | st.fixed_dictionaries(
    {},
    optional={
        "EventType": JSON,
        "Resources": JSON | st.lists(st.text(max_size=300), max_size=300),
        "Description": st.text(max_size=5000) | st.just("&" * 9000),
        "EventSource": JSON,
        "DurationInSeconds": JSON,
    },
)
ANY_DATA = st.fixed_dictionaries(
    {},
    optional={
        "event": ANY_EVENT,
        "request": JSON | st.fixed_dictionaries({"approvedBy": JSON, "reason": JSON}),
        "notBefore": JSON | st.just("2026-11-21T10:14:00Z"),
        "noticeSeconds": JSON,
        "changes": JSON | st.lists(st.text()),
        "reason": JSON,
        "reporter": JSON,
        "eventId": JSON,
    },
)
ANY_TYPE = st.text(min_size=1, max_size=500) | st.builds(
    "x.{}.{}.v1".format,
    st.sampled_from(["scheduledevent", "startrequest", "bridge", "document"]),
    st.sampled_from(["scheduled", "updated", "relayed", "started", "newer"]),
)


@pytest.mark.slow
@given(ANY_TYPE, ANY_DATA, st.none() | st.text(max_size=1000))
def test_anything_at_all_can_be_reported(
    kind: str, data: Mapping[str, object], subject: str | None
) -> None:
    """Limits of Block Kit; a message that Slack refuses tells nobody anything."""
    event = CloudEvent(
        id="i", source="/s", type=kind, time="t", dataschema="d", subject=subject,
        data=data,
    )  # fmt: skip

    message = orjson.loads(orjson.dumps(render(event)))

    blocks = message["blocks"]
    assert 1 <= len(message["text"]) <= 4000
    assert 1 <= len(blocks) <= 50
    for block in blocks:
        check_limits(block)
    assert sum(map(len, texts(blocks))) <= 13_000


def check_limits(block: Mapping[str, Any]) -> None:
    assert block["type"] in {"section", "context"}
    for field in block.get("fields", ()):
        assert 1 <= len(field["text"].strip()) <= 2000
    assert len(block.get("fields", ())) <= 10
    if "text" in block:
        assert 1 <= len(block["text"]["text"].strip()) <= 3000
    for element in block.get("elements", ()):
        assert 1 <= len(element["text"].strip()) <= 2000


@given(st.text(), st.integers(2, 50))
def test_safe_text_is_short_escaped_and_never_empty(text: str, limit: int) -> None:
    result = safe(text, limit)

    assert 1 <= len(result) <= limit
    assert not re.search(r"[<>\n]|&(?!amp;|lt;|gt;)", result)


@pytest.mark.parametrize(
    ("status", "word", "error"),
    [
        (400, "invalid_payload", PermanentDeliveryError),
        (403, "action_prohibited", RefusedDeliveryError),
        (404, "no_service", RefusedDeliveryError),
        (410, "channel_is_archived", RefusedDeliveryError),
        (429, "rate_limited", TransientDeliveryError),
        (500, "rollup_error", TransientDeliveryError),
    ],
)
async def test_slacks_own_word_is_in_the_error(
    status: int,
    word: str,
    error: type[DeliveryError],
    resources: Resources,
    inbox: Inbox,
) -> None:
    inbox.status, inbox.answer = status, word.encode()
    async with opened_sink(
        resources, {"type": "slack", "webhook_url": inbox.url}
    ) as sink:
        with pytest.raises(error, match=f"answered {status}: {word}"):
            await sink.deliver(cloud_event())


@pytest.mark.parametrize(
    "body", [b"<html>5ec12e7", "ung\u00fcltig 5ec12e7".encode(), b'{"x": "5ec12e7"}']
)
async def test_what_is_not_slacks_word_is_not_repeated(
    body: bytes, resources: Resources, inbox: Inbox
) -> None:
    inbox.status, inbox.answer = 400, body
    async with opened_sink(
        resources, {"type": "slack", "webhook_url": inbox.url}
    ) as sink:
        with pytest.raises(PermanentDeliveryError) as caught:
            await sink.deliver(cloud_event())

    assert str(caught.value).endswith("answered 400")


async def test_word_that_repeats_the_address_is_not_slacks_own(
    resources: Resources, inbox: Inbox
) -> None:
    """A receiver in Slack's place may have a secret in its URL that is such a word."""
    inbox.status, inbox.answer = 400, b"no hook abcdefghij"
    url = f"{inbox.url}/hooks/ABCDEFGHIJ"
    async with opened_sink(resources, {"type": "slack", "webhook_url": url}) as sink:
        with pytest.raises(PermanentDeliveryError) as caught:
            await sink.deliver(cloud_event())

    assert str(caught.value).endswith("answered 400")


async def test_page_of_a_captive_portal_is_no_delivery(
    resources: Resources, inbox: Inbox
) -> None:
    inbox.answer = b"\n<!doctype html><title>Sign in</title>"
    async with opened_sink(
        resources, {"type": "slack", "webhook_url": inbox.url}
    ) as sink:
        with pytest.raises(TransientDeliveryError, match="with a page"):
            await sink.deliver(cloud_event())


async def test_missing_package_names_the_extra(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "slack_sdk.models.blocks", None)
    with pytest.raises(MissingExtraError, match=r"\[slack\]"):
        async with opened_sink(
            resources, {"type": "slack", "webhook_url": "https://hooks.example/x"}
        ):
            pass


def test_configuration_says_what_is_wrong_without_the_secret() -> None:
    faults = config_faults({"type": "slack", "webhook_url": "env:HOOK"}, HOOK="5ec12e7")

    assert faults == ["webhook_url: must be an http:// or https:// URL"]
