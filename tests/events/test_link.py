"""The link of an event: made of the configuration, shown where people look."""

import email
from datetime import UTC, datetime
from email.policy import default
from typing import Any

import orjson
import pytest
from msgspec import UNSET, structs
from msgspec.structs import replace

from bridge.configuration import load as configuration
from bridge.events.build import from_outcome
from bridge.events.cloudevent import CloudEvent, link_fault, link_of, link_to
from bridge.foundation.errors import ConfigError
from bridge.sinks.email.message import message
from bridge.sinks.slack.blocks import render, render_card, render_step
from bridge.sinks.slack.card import Card, after
from bridge.sinks.webhook.presets import alert, teams
from tests.configuration.test_schemas import faults
from tests.support.builders import EVENT_ID, event_context_of
from tests.support.example_events import outcome, published, transition
from tests.support.fakes import START

PAGE = "https://hub.example/events/{event_id}?from=a&to=b"
LINK = f"https://hub.example/events/{EVENT_ID}?from=a&to=b"


def scheduled(link: str = PAGE) -> CloudEvent:
    context = structs.replace(event_context_of(), link=link)
    return published(transition(), context=context).event


def test_every_step_and_outcome_has_the_link_of_its_event() -> None:
    event_context = structs.replace(event_context_of(), link=PAGE)
    found = outcome(
        "expired",
        event=None,
        imds_status=None,
        confirmed=None,
        request=dict.fromkeys(
            ("messageId", "enqueuedAt", "approvedBy", "reason", "expiresAt")
        ),
    )
    answer = from_outcome(event_context, found, START).event

    for one in (scheduled(), answer):
        assert one.data["link"] == link_of(one) == LINK
        assert faults("event", orjson.loads(one.to_json())) == []


def test_link_is_no_part_of_the_id_and_absent_unless_configured() -> None:
    assert scheduled().id == scheduled("").id
    assert "link" not in scheduled("").data


@pytest.mark.parametrize(
    ("event_id", "path"),
    [
        ("A/../B", "A%2F..%2FB"),
        ("<https://evil|x>", "%3Chttps%3A%2F%2Fevil%7Cx%3E"),
        ("é\n\"'", "%C3%A9%0A%22%27"),
        ("\ud800", "%3F"),
    ],
)
def test_event_id_is_one_part_of_the_path(event_id: str, path: str) -> None:
    found = link_to("https://h/{event_id}", event_id)
    assert found == f"https://h/{path}"


def test_event_id_that_is_too_long_makes_no_link() -> None:
    assert link_to("https://h/{event_id}", "x" * 3000) is UNSET
    assert link_to("https://h/{event_id}", None) is UNSET


def test_template_with_the_event_id_in_its_path_is_good() -> None:
    assert link_fault("https://hub.example/events/{event_id}") is None


@pytest.mark.parametrize(
    "template",
    [
        "https://hub.example/events",
        "ftp://hub.example/{event_id}",
        "{event_id}://hub.example/",
        "https://{event_id}",
        "https://hub.example/{event_id}/{vm_id}",
        "https://hub.example/ {event_id}",
        "javascript:alert('{event_id}')",
    ],
)
def test_what_makes_no_link_is_a_fault(template: str) -> None:
    assert link_fault(template) is not None
    with pytest.raises(ConfigError, match=r"events\.link: must be a URL with"):
        configuration.parse(
            {"events": {"link": template}}, file="bridge.toml", environ={}
        )


@pytest.mark.parametrize(
    "value", ["javascript:alert(1)", "https://x/<b>", "https://x/|y", 7, None, "x" * 9]
)
def test_what_is_no_link_is_not_shown(value: Any) -> None:
    found = scheduled("")
    assert link_of(replace(found, data={**found.data, "link": value})) == ""


def elements(blocks: Any) -> list[str]:
    return [e["text"] for b in blocks if b["type"] == "context" for e in b["elements"]]


def test_slack_shows_it() -> None:
    one, now = scheduled(), datetime(2026, 3, 2, 12, tzinfo=UTC)
    first = after(None, one)
    assert first is not None
    card = Card.from_bytes(first.to_bytes())
    assert card is not None
    shown = f"<{LINK.replace('&', '&amp;')}|Open>"

    for found in (render(one), render_card(card, now, None).message):
        assert elements(found["blocks"])[-1] == shown
    assert shown not in elements(render_step(one, now)["blocks"])
    assert len(elements(render(scheduled(""))["blocks"])) == 1


def test_teams_opens_it() -> None:
    def actions(event: CloudEvent) -> Any:
        body = orjson.loads(teams.render(event)[1])
        return body["attachments"][0]["content"].get("actions")

    opens = {"type": "Action.OpenUrl", "title": "Open", "url": LINK}
    assert actions(scheduled()) == [opens]
    assert actions(scheduled("")) is None


def test_mail_has_it_as_text_and_as_html() -> None:
    sent = message(scheduled(), sender="a@x.example", recipients=["b@x.example"])
    plain, html, *_ = (
        part.get_content()
        for part in email.message_from_bytes(sent, policy=default).walk()
        if not part.is_multipart()
    )

    assert LINK in plain.splitlines()
    assert f'<a href="{LINK.replace("&", "&amp;")}">Open</a>' in html


def test_services_of_alerts_get_it() -> None:
    found = alert.alert(scheduled())
    assert found is not None
    assert found.details["Link"] == LINK
