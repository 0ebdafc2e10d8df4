"""The local Slack sends clicks to an app, as Slack does, and accepts its answers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from slack_sdk.signature import Clock as SignatureClock
from slack_sdk.signature import SignatureVerifier

from approver.clicks import Click, read
from bridge.simulator.slack.clicks import signature
from tests.simulator.slack_client import FORM, JSON, App, slack

SECRET = "8f742231b10e8888abcd99yyyzzz85a5"
BUTTON = {
    "type": "button",
    "action_id": "sebridge-approve",
    "text": {"type": "plain_text", "text": "Approve"},
    "value": "signed",
}
ACTIONS = {"type": "actions", "elements": [BUTTON]}
ALICE = "U0ALICE"


@dataclass
class Listener:
    """An app that receives clicks."""

    slack: App
    status: int = 200
    silent: bool = False
    bodies: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    async def take(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.read())
        self.headers.append(dict(request.headers))
        if self.silent:
            await asyncio.Event().wait()
        return web.Response(status=self.status)

    async def click(self, **click: Any) -> Any:
        body = {"actionId": "sebridge-approve", "user": ALICE, **click}
        return (await self.slack.http.send("POST", "/slack/click", body)).json

    async def respond(self, url: str, **message: Any) -> tuple[int, bytes]:
        """Post to a response_url."""
        path = url.removeprefix(self.slack.inbox.url)
        headers = {"Content-Type": JSON}
        reply = await self.slack.http.send("POST", path, message, headers)
        return reply.status, reply.body

    @property
    def payload(self) -> Any:
        """The payload of the last click."""
        return orjson.loads(parse_qs(self.bodies[-1].decode())["payload"][0])


@asynccontextmanager
async def listening() -> AsyncIterator[Listener]:
    async with slack() as app:
        listener = Listener(app)
        application = web.Application()
        application.router.add_post("/clicks", listener.take)
        async with TestServer(application) as server:
            url = str(server.make_url("/clicks"))
            await app.have(interactivity={"url": url, "signingSecret": SECRET})
            yield listener


def test_signature_is_that_of_slacks_own_example() -> None:
    body = (
        b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow"
        b"&channel_id=G8PSS9T3V&channel_name=foobar&user_id=U2CERLKJA"
        b"&user_name=roadrunner&command=%2Fwebhook-collect&text="
        b"&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J"
        b"%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN"
        b"&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
    )
    wanted = "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"
    assert signature(SECRET, "1531420618", body) == wanted


async def test_click_is_sent_and_signed_as_slack_does_it() -> None:
    async with listening() as app:
        posted = await app.slack.post(blocks=[ACTIONS])
        result = await app.click(ts=posted["ts"])

        class Now(SignatureClock):
            def now(self) -> float:
                return app.slack.clock.at

        verifier = SignatureVerifier(SECRET, Now())
        assert verifier.is_valid_request(app.bodies[0], app.headers[0])
        click = read(app.bodies[0])
        assert isinstance(click, Click)
        assert (click.user, click.value) == (ALICE, "signed")
        assert click.response_url == result["responseUrl"]
        assert click.blocks == tuple(posted["message"]["blocks"])
        assert (result["acknowledged"], result["status"]) == (True, 200)
        assert app.payload["channel"] == {"id": posted["channel"], "name": "ops"}
        assert app.payload["container"]["message_ts"] == posted["ts"]


async def test_each_click_is_another() -> None:
    async with listening() as app:
        posted = await app.slack.post(blocks=[ACTIONS])
        for _ in range(2):
            await app.click(ts=posted["ts"])

        one, two = map(read, app.bodies)
        assert one is not None
        assert two is not None
        assert one.id != two.id
        assert one.response_url != two.response_url


async def test_button_in_an_attachment_or_beside_a_text_can_be_clicked() -> None:
    async with listening() as app:
        text = {"type": "mrkdwn", "text": "x"}
        section = {"type": "section", "text": text, "accessory": BUTTON}
        inside = await app.slack.post(attachments=[{"blocks": [ACTIONS]}])
        beside = await app.slack.post(blocks=[section])

        assert (await app.click(ts=inside["ts"]))["acknowledged"]
        assert (await app.click(ts=beside["ts"]))["acknowledged"]


@pytest.mark.parametrize("status", [302, 401, 500])
async def test_app_that_does_not_say_ok_has_not_acknowledged(status: int) -> None:
    async with listening() as app:
        posted = await app.slack.post(blocks=[ACTIONS])
        app.status = status
        result = await app.click(ts=posted["ts"])

        assert (result["acknowledged"], result["status"]) == (False, status)


async def test_app_that_is_too_slow_has_not_acknowledged() -> None:
    async with listening() as app:
        assert app.slack.inbox.slack.clicks.ack_seconds == 3
        app.slack.inbox.slack.clicks.ack_seconds = 0.05
        app.silent = True
        posted = await app.slack.post(blocks=[ACTIONS])
        result = await app.click(ts=posted["ts"])

        assert (result["acknowledged"], result["status"]) == (False, None)


async def test_answer_replaces_the_message_or_is_for_one_or_for_all() -> None:
    async with listening() as app:
        posted = await app.slack.post(blocks=[ACTIONS])
        url = (await app.click(ts=posted["ts"]))["responseUrl"]
        await app.respond(url, text="No.")
        await app.respond(url, text="Yes.", response_type="in_channel")
        replaced = await app.respond(url, text="Done.", replace_original=True)
        channel = app.slack.inbox.slack.workspace.channels[posted["channel"]]
        shown = [(each.content.text, each.only_for) for each in channel.posts.values()]
        (_, first) = await app.slack.history(posted["channel"])
        await app.respond(url, delete_original=True)
        (left,) = await app.slack.history(posted["channel"])

        assert replaced == (200, b"ok")
        assert shown == [("Done.", None), ("No.", ALICE), ("Yes.", None)]
        assert "blocks" not in first
        assert left["text"] == "Yes."


async def test_answers_are_taken_five_times_within_half_an_hour() -> None:
    async with listening() as app:
        posted = await app.slack.post(blocks=[ACTIONS])
        urls = [(await app.click(ts=posted["ts"]))["responseUrl"] for _ in range(2)]
        refused = await app.respond(urls[0])
        taken = [await app.respond(urls[0], text="x") for _ in range(6)]
        app.slack.clock.at += 30 * 60 + 1
        late = await app.respond(urls[1], text="x")
        unknown = await app.respond(f"{urls[1]}0", text="x")

        assert refused == (400, b"no_text")
        assert taken == [(200, b"ok")] * 5 + [(404, b"used_url")]
        assert late == unknown == (404, b"expired_url")


async def test_what_is_no_object_is_an_invalid_answer() -> None:
    async with listening() as app:
        posted = await app.slack.post(blocks=[ACTIONS])
        url = (await app.click(ts=posted["ts"]))["responseUrl"]
        path = url.removeprefix(app.slack.inbox.url)
        reply = await app.slack.http.send(
            "POST", path, b"text=x", {"Content-Type": FORM}
        )

        assert (reply.status, reply.body) == (400, b"invalid_payload")


@pytest.mark.parametrize(
    "click",
    [
        {"ts": "1.000000"},
        {"actionId": "sebridge-shout"},
        {"blockId": "other"},
        {"channel": "other"},
    ],
)
async def test_button_that_is_not_there_cannot_be_clicked(click: Any) -> None:
    async with listening() as app:
        posted = await app.slack.post(blocks=[ACTIONS])
        answer = await app.click(**{"ts": posted["ts"], **click})

        assert answer["error"].startswith(("there is no message", "message "))
        assert app.bodies == []


async def test_click_without_an_app_says_how_to_name_one() -> None:
    async with slack() as app:
        posted = await app.post(blocks=[ACTIONS])
        body = {"ts": posted["ts"], "actionId": "sebridge-approve"}
        reply = await app.http.send("POST", "/slack/click", body)

        assert reply.status == 400
        assert "PUT /slack/workspace" in reply.json["error"]


async def test_page_of_another_site_cannot_click() -> None:
    async with listening() as app:
        posted = await app.slack.post(blocks=[ACTIONS])
        body = f"ts={posted['ts']}&actionId=sebridge-approve".encode()
        headers = {"Content-Type": FORM, "Sec-Fetch-Site": "cross-site"}
        reply = await app.slack.http.send("POST", "/slack/click", body, headers)

        assert reply.status == 403
        assert app.bodies == []
