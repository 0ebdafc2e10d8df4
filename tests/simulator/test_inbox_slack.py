"""Paths under /slack/ refuse what Slack refuses, with Slack's error codes."""

from typing import Any

import pytest

from bridge.simulator.inbox import Inbox
from bridge.simulator.slack.refusals import refusal
from tests.simulator.imds_client import FakeClock, http_client


def mrkdwn(length: int) -> dict[str, object]:
    return {"type": "mrkdwn", "text": "x" * length}


def plain(length: int) -> dict[str, object]:
    return {"type": "plain_text", "text": "x" * length}


def section(**parts: object) -> dict[str, object]:
    return {"type": "section", **parts}


SECTION = section(text=mrkdwn(1))
BUTTON = {"type": "button", "text": plain(75)}


def button(**parts: object) -> dict[str, object]:
    return {"type": "button", "text": plain(1), **parts}


def actions(*elements: object) -> dict[str, object]:
    return {"type": "actions", "elements": list(elements)}


def confirm(**parts: object) -> dict[str, object]:
    texts = {"title": plain(100), "text": plain(300)}
    return {**texts, "confirm": plain(30), "deny": plain(30), **parts}


@pytest.mark.parametrize(
    "message",
    [
        {"text": "hello"},
        {"attachments": [{}]},
        {"blocks": [SECTION] * 50},
        {"blocks": [section(text=mrkdwn(3000)), section(text=plain(3000))]},
        {"blocks": [section(fields=[mrkdwn(2000)] * 6)]},
        {"blocks": [section(fields=[mrkdwn(1)] * 10)]},
        {"blocks": [{"type": "header", "text": plain(150)}, {"type": "divider"}]},
        {"blocks": [{"type": "context", "elements": [mrkdwn(1)] * 10}]},
        {"blocks": [{"type": "actions", "elements": [BUTTON] * 25}]},
        {"blocks": [actions(button(value="x" * 2000, action_id="x" * 255))]},
        {"blocks": [actions(button(style="danger", confirm=confirm()))]},
        {"blocks": [actions(button(action_id="a")), actions(button(action_id="a"))]},
        {"blocks": [section(text=mrkdwn(1), accessory=BUTTON)]},
        {"blocks": [{"type": "markdown", "text": "x" * 12_000}]},
        {"attachments": [{"color": "#ff0000", "blocks": [SECTION]}]},
    ],
    ids=lambda message: str(message)[:60],
)
def test_good_message_is_taken(message: object) -> None:
    assert refusal(message) is None


@pytest.mark.parametrize("message", ["{", [], 5, None])
def test_what_is_no_object_is_an_invalid_payload(message: object) -> None:
    assert refusal(message) == "invalid_payload"


@pytest.mark.parametrize("message", [{}, {"text": ""}, {"blocks": []}])
def test_message_needs_text_or_blocks(message: object) -> None:
    assert refusal(message) == "no_text"


@pytest.mark.parametrize(
    "blocks",
    [
        "text",
        {"type": "divider"},
        ["text"],
        [SECTION] * 51,
        [{"type": "unknown"}],
        [{}],
        [section()],
        [section(text="plain")],
        [section(text=mrkdwn(0))],
        [section(text=mrkdwn(3001))],
        [section(text={"type": "html", "text": "x"})],
        [section(fields=[])],
        [section(fields=mrkdwn(1))],
        [section(fields=[mrkdwn(1)] * 11)],
        [section(fields=[mrkdwn(2001)])],
        [{"type": "header"}],
        [{"type": "header", "text": mrkdwn(1)}],
        [{"type": "header", "text": plain(151)}],
        [{"type": "context", "elements": []}],
        [{"type": "context", "elements": [mrkdwn(1)] * 11}],
        [{"type": "actions", "elements": [BUTTON] * 26}],
        [{"type": "actions", "elements": [{"type": "button", "text": plain(76)}]}],
        [actions(button(text=mrkdwn(1)))],
        [actions(button(value="x" * 2001))],
        [actions(button(value=5))],
        [actions(button(action_id="x" * 256))],
        [actions(button(action_id="a"), button(action_id="a"))],
        [actions(button(url="x" * 3001))],
        [actions(button(style="green"))],
        [actions(button(confirm=confirm(title=plain(101))))],
        [actions(button(confirm=confirm(text=mrkdwn(301))))],
        [actions(button(confirm=confirm(confirm=plain(31))))],
        [actions(button(confirm=confirm(deny=plain(31))))],
        [actions(button(confirm=confirm(deny=None)))],
        [actions(button(confirm=confirm(style="green")))],
        [actions(button(confirm="sure?"))],
        [actions(mrkdwn(1))],
        [actions("text")],
        [{"type": "context", "elements": [BUTTON]}],
        [section(text=mrkdwn(1), accessory=button(value=""))],
        [{"type": "markdown", "text": "x" * 12_001}],
        [{"type": "image"}],
        [{"type": "divider", "block_id": "x" * 256}],
        [{"type": "divider", "block_id": "a"}, {"type": "divider", "block_id": "a"}],
    ],
    ids=lambda blocks: str(blocks)[:60],
)
def test_blocks_beyond_the_limits_are_invalid(blocks: Any) -> None:
    assert refusal({"text": "hello", "blocks": blocks}) == "invalid_blocks"


def test_blocks_of_attachments_have_the_same_limits() -> None:
    attachment = {"color": "danger", "blocks": [section(text=mrkdwn(3001))]}
    assert refusal({"text": "x", "attachments": [attachment]}) == "invalid_blocks"


@pytest.mark.parametrize("over", [0, 1])
def test_all_blocks_together_have_a_limit_of_their_own(over: int) -> None:
    blocks = [section(text=mrkdwn(3000))] * 3
    rest = section(fields=[mrkdwn(1000), mrkdwn(200 + over)])
    attachments = [{"blocks": [section(text=mrkdwn(3000)), rest]}]
    word = refusal({"text": "x", "blocks": blocks, "attachments": attachments})
    assert word == ("msg_blocks_too_long" if over else None)


async def test_taken_message_is_answered_ok_in_plain_text() -> None:
    async with Inbox() as inbox, http_client(inbox.url) as http:
        headers = {"Content-Type": "application/json"}
        reply = await http.send("POST", "/slack/ops", {"text": "hello"}, headers)

        assert (reply.status, reply.body) == (200, b"ok")
        assert reply.headers["Content-Type"].startswith("text/plain")
        assert inbox.messages[0].body == {"text": "hello"}


async def test_refused_message_is_not_kept() -> None:
    async with Inbox() as inbox, http_client(inbox.url) as http:
        headers = {"Content-Type": "application/json"}
        reply = await http.send("POST", "/slack/ops", b"{", headers)

        assert (reply.status, reply.body) == (400, b"invalid_payload")
        assert inbox.messages == ()


async def test_second_message_within_a_second_is_throttled_when_switched_on() -> None:
    clock = FakeClock()
    async with Inbox(clock=clock) as inbox, http_client(inbox.url) as http:
        await http.send("PUT", "/options", {"slackRateLimit": True})
        headers = {"Content-Type": "application/json"}
        body = {"text": "hello"}
        replies = [
            await http.send("POST", path, body, headers)
            for path in ("/slack/a", "/slack/a", "/slack/b")
        ]
        clock.at += 1
        replies.append(await http.send("POST", "/slack/a", body, headers))

        assert [reply.status for reply in replies] == [200, 429, 200, 200]
        assert replies[1].headers["Retry-After"] == "1"
        assert len(inbox.messages) == 3
