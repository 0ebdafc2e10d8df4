"""The page of the local Slack shows messages as people would see them."""

import asyncio
import re
from html import unescape
from typing import Any

import pytest

from tests.simulator.slack_client import FORM, App, slack
from tests.simulator.test_inbox_slack_clicks import ACTIONS, listening
from tests.support.browser import Browser
from tests.support.png import colors


async def page(app: App, query: str = "") -> str:
    reply = await app.http.send("GET", f"/slack{query}")
    assert reply.status == 200
    return reply.body.decode()


def words(html: str) -> str:
    """Return the text of a page."""
    return " ".join(
        unescape(re.sub(r"(?s)<style>.*?</style>|<[^>]+>", " ", html)).split()
    )


def text(words: str) -> dict[str, object]:
    return {"type": "mrkdwn", "text": words}


def plain(words: str) -> dict[str, object]:
    return {"type": "plain_text", "text": words}


async def test_page_is_there_before_anybody_spoke() -> None:
    async with slack() as app:
        assert "There are no messages yet." in words(await page(app))
        assert (await app.http.send("GET", "/slack/")).status == 200


@pytest.mark.parametrize(
    ("block", "shown"),
    [
        ({"type": "header", "text": plain("Reboot :warning:")}, 'head">Reboot \u26a0'),
        ({"type": "section", "text": text("*a*")}, "<b>a</b>"),
        (
            {"type": "section", "fields": [text("a"), text("b")]},
            'fields"><div>a</div><div>b</div>',
        ),
        ({"type": "context", "elements": [text("_a_")]}, "<i>a</i>"),
        ({"type": "divider"}, "<hr>"),
        ({"type": "markdown", "text": "a"}, ">a<"),
        ({"type": "image", "alt_text": "a <map>"}, "a &lt;map&gt;"),
        ({"type": "video"}, "[video]"),
        ({"type": "section", "text": plain("<b>&amp;")}, "&lt;b&gt;&amp;"),
        (
            {"type": "section", "text": text("a"), "accessory": {"type": "overflow"}},
            "overflow",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_block_is_shown(block: Any, shown: str) -> None:
    async with slack() as app:
        answer = await app.post("only for notifications", blocks=[block])
        html = await page(app)

        assert answer["ok"], answer
        assert shown in html
        assert "only for notifications" not in html


async def test_attachment_has_a_bar_of_its_colour() -> None:
    async with slack() as app:
        blocks = [{"type": "section", "text": text("inside")}]
        old = {
            "title": "old",
            "text": "words",
            "fields": [{"title": "f", "value": "v"}],
        }
        await app.post(
            attachments=[
                {"color": "#A30200", "blocks": blocks},
                {"color": "good", **old},
                {"color": "red; } * {", "fallback": "short"},
            ]
        )
        html = await page(app)

        assert ".bar-a30200{border-color:#a30200}" in html
        assert "attachment bar-2eb886" in html
        assert "red; }" not in html
        assert words(html).endswith("inside old words f v short")


async def test_thread_stands_beneath_and_what_was_changed_is_marked() -> None:
    async with slack() as app:
        first = await app.post("first")
        await app.post("answer", thread_ts=first["ts"])
        at = {"channel": first["channel"], "ts": first["ts"]}
        await app.call("chat.update", **at, text="changed")
        await app.post("second")
        shown = words(await page(app))

        first_at, thread_at, second_at = map(
            shown.index, ("changed (edited)", "1 reply", "second")
        )
        assert first_at < thread_at < shown.index("answer") < second_at


async def test_webhooks_and_channels_are_listed_and_the_last_is_open() -> None:
    async with slack() as app:
        headers = {"Content-Type": "application/json"}
        await app.post("by token")
        app.clock.at += 1
        await app.http.send("POST", "/slack/on-call", {"text": "by webhook"}, headers)
        last, ops = await page(app), await page(app, "?channel=ops")
        none = await page(app, "?channel=none")

        assert "# on-call" in ops
        assert "# ops" in last
        assert "by webhook" in last
        assert "by token" not in last
        assert "by token" in ops
        assert "There are no messages" in none


async def test_ephemeral_message_says_who_sees_it() -> None:
    async with slack() as app:
        one = {"channel": "ops", "user": "U012AB3CD"}
        await app.call("chat.postEphemeral", **one, text="psst")

        assert "Only visible to you" in words(await page(app))


async def test_page_may_load_and_run_nothing() -> None:
    async with slack() as app:
        await app.post("<script>alert(1)</script>")
        reply = await app.http.send("GET", "/slack")
        policy = reply.headers["Content-Security-Policy"]

        assert policy.startswith("default-src 'none'; style-src 'sha256-")
        assert "<script>" not in reply.body.decode()


async def test_messages_can_be_forgotten() -> None:
    async with slack() as app:
        posted = await app.post("first")
        reply = await app.http.send("DELETE", "/slack/messages")
        at = {"channel": posted["channel"], "ts": posted["ts"]}
        changed = await app.call("chat.update", **at, text="x")

        assert reply.status == 204
        assert "first" not in words(await page(app))
        assert changed["error"] == "message_not_found"


async def test_button_of_the_page_clicks() -> None:
    async with listening() as app:
        posted = await app.slack.post(blocks=[ACTIONS])
        html = await page(app.slack)
        fields = dict(re.findall(r'name="(\w+)" value="([^"]*)"', html))
        body = "&".join(f"{name}={value}" for name, value in fields.items()).encode()
        headers = {"Content-Type": FORM, "Sec-Fetch-Site": "same-origin"}
        clicked = await app.slack.http.send("POST", "/slack/click", body, headers)
        app.status = 500
        failed = await app.slack.http.send("POST", "/slack/click", body, headers)

        assert clicked.status == 303
        assert clicked.headers["Location"] == f"/slack?channel={posted['channel']}"
        assert app.payload["actions"][0]["action_id"] == "sebridge-approve"
        assert app.payload["message"]["ts"] == posted["ts"]
        assert (failed.status, failed.body) == (502, b"The app answered 500.")


async def test_browser_shows_the_page_in_its_colours(browser: Browser) -> None:
    async with slack() as app:
        confirm = {name: plain(name) for name in ("title", "text", "confirm", "deny")}
        button = {"type": "button", "text": plain("Approve"), "confirm": confirm}
        actions = {"type": "actions", "elements": [button]}
        section = {"type": "section", "text": text("*Reboot* of <b>")}
        await app.post(attachments=[{"color": "#a1b2c3", "blocks": [section, actions]}])
        url = f"{app.inbox.url}/slack"
        dom, png = await asyncio.gather(
            browser.dom(url), browser.picture(url, 500, 300)
        )

        assert "<b>Reboot</b> of &lt;b&gt;" in dom
        assert dom.count("<summary") == 1
        assert {"a1b2c3", "3f0e40"} <= colors(png)  # the style was not refused
