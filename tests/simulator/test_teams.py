"""The local Teams accepts what Teams accepts from a bot, and refuses the rest."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from bridge.simulator.inbox import Inbox
from bridge.simulator.teams.refusals import faults
from bridge.simulator.teams.team import PEOPLE, TENANT
from tests.simulator.test_inbox_slack_page import words

APP = "5eb41d6e-0000-4000-8000-00000000b07a"
CHANNEL = "19:operations@thread.tacv2"
EXECUTE = {"type": "Action.Execute", "title": "Go", "verb": "go", "data": {"a": 1}}
TEXT = {"type": "TextBlock", "text": "Hello <b>"}


def card_of(**changes: object) -> dict[str, object]:
    good: dict[str, object] = {
        "type": "AdaptiveCard",
        "version": "1.5",
        "body": [TEXT],
        "actions": [EXECUTE],
    }
    return {**good, **changes}


def message_of(card: object, **changes: object) -> dict[str, object]:
    kind = "application/vnd.microsoft.card.adaptive"
    attachment = {"contentType": kind, "content": card}
    return {"type": "message", "attachments": [attachment], **changes}


@dataclass
class Client:
    """A bot that talks to the local Teams."""

    inbox: Inbox
    http: aiohttp.ClientSession
    token: str = ""

    async def send(self, method: str, path: str, **more: Any) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {self.token}"}
        url = f"{self.inbox.url}{path}"
        async with self.http.request(method, url, headers=headers, **more) as response:
            is_json = response.content_type == "application/json"
            return response.status, await (
                response.json() if is_json else response.text()
            )

    async def post(self, activity: object) -> tuple[int, Any]:
        path = f"/teams/v3/conversations/{CHANNEL}/activities"
        return await self.send("POST", path, json=activity)


def token_form(**changes: str) -> dict[str, str]:
    return {
        "grant_type": "client_credentials",
        "client_id": APP,
        "client_secret": "s",
        "scope": "https://api.botframework.com/.default",
        **changes,
    }


@asynccontextmanager
async def local_teams() -> AsyncIterator[Client]:
    async with Inbox() as inbox, aiohttp.ClientSession() as http:
        client = Client(inbox, http)
        path = f"/teams/login/{TENANT}/oauth2/v2.0/token"
        status, found = await client.send("POST", path, data=token_form())
        assert status == 200
        client.token = found["access_token"]
        yield client


@pytest.mark.parametrize(
    ("card", "fault"),
    [
        ([], "card: must be an object"),
        (card_of(type="Card"), "card.type: must be one of AdaptiveCard"),
        (card_of(version="1.6"), "card.version: must be one of 1.0"),
        (card_of(version="1.3"), "must be 1.4 or later for Action.Execute"),
        (card_of(colour="red"), "card: has an unknown member: colour"),
        (card_of(body=[{"type": "Media"}]), "card.body[0].type: must be one of"),
        (card_of(body=[{"type": "TextBlock"}]), "card.body[0]: lacks text"),
        (card_of(body=[{**TEXT, "size": "huge"}]), "card.body[0].size: must be one"),
        (card_of(body=[{**TEXT, "wrap": 1}]), "card.body[0].wrap: must be true or"),
        (card_of(body="x"), "card.body: must be a list"),
        (card_of(actions=[{"type": "Action.Http"}]), "card.actions[0].type"),
        (card_of(actions=[{**EXECUTE, "verb": 1}]), "card.actions[0].verb"),
        (card_of(actions=[EXECUTE] * 7), "must not have more than 6 actions"),
        (card_of(refresh={"action": TEXT}), "card.refresh.action.type"),
        (card_of(refresh=7), "card.refresh: must be an object"),
        (
            card_of(refresh={"action": EXECUTE, "userIds": ["29:1"] * 61}),
            "card.refresh.userIds: must not have more than 60 ids",
        ),
        (card_of(refresh={"action": EXECUTE, "x": 1}), "has unknown members: x"),
        (
            card_of(
                body=[
                    {"type": "ColumnSet", "columns": [{"width": "wide", "items": []}]}
                ]
            ),
            "columns[0].width: must be auto",
        ),
    ],
)
async def test_card_is_refused_with_its_fault(card: object, fault: str) -> None:
    async with local_teams() as client:
        status, found = await client.post(message_of(card))

    assert any(fault in each for each in faults(card)), faults(card)
    assert (status, found["error"]["code"]) == (400, "BadSyntax")


@pytest.mark.parametrize(
    ("activity", "status"),
    [
        (message_of(card_of()), 201),
        (message_of(card_of(), type="typing"), 400),
        (message_of(card_of(), from_="x"), 400),
        ({"type": "message", "text": "hello"}, 400),
        ({"type": "message", "attachments": ["x"]}, 400),
        ({"type": "message", "attachments": [{"contentType": "text/html"}]}, 400),
        (["x"], 400),
        (message_of(card_of(body=[{**TEXT, "text": "x" * 28 * 1024}])), 413),
    ],
)
async def test_message_is_taken_or_refused(activity: object, status: int) -> None:
    async with local_teams() as client:
        assert (await client.post(activity))[0] == status


async def test_more_than_seven_messages_at_once_are_too_many() -> None:
    async with local_teams() as client:
        path = f"/teams/v3/conversations/{CHANNEL}/activities"
        statuses = [(await client.post(message_of(card_of())))[0] for _ in range(9)]
        headers = {"Authorization": f"Bearer {client.token}"}
        async with client.http.post(
            f"{client.inbox.url}{path}", json=message_of(card_of()), headers=headers
        ) as response:
            assert response.status == 429
            assert int(response.headers["Retry-After"]) >= 1

    assert statuses[:7] == [201] * 7
    assert 429 in statuses[7:]


async def test_only_the_bot_changes_its_message() -> None:
    async with local_teams() as client:
        _, found = await client.post(message_of(card_of()))
        path = f"/teams/v3/conversations/{CHANNEL}/activities/{found['id']}"
        update = {"json": message_of(card_of(), id=found["id"])}
        assert (await client.send("PUT", path, **update))[0] == 200
        assert (await client.send("PUT", path + "0", **update))[0] == 404
        _, other = await client.send(
            "POST",
            f"/teams/login/{TENANT}/oauth2/v2.0/token",
            data=token_form(client_id="another"),
        )
        client.token = other["access_token"]
        assert (await client.send("PUT", path, **update))[0] == 403
        client.token = "nobody"
        assert (await client.send("PUT", path, **update))[0] == 401


@pytest.mark.parametrize(
    ("tenant", "changes", "status"),
    [
        ("common", {}, 400),
        (TENANT, {"grant_type": "password"}, 400),
        (TENANT, {"scope": "https://graph.microsoft.com/User.Read"}, 400),
        (TENANT, {"client_secret": ""}, 401),
        (TENANT, {"client_secret": "wrong"}, 401),
    ],
)
async def test_no_token_without_the_right_words(
    tenant: str, changes: dict[str, str], status: int
) -> None:
    async with local_teams() as client:
        bots = {"bots": [{"appId": APP, "secret": "s"}]}
        assert (await client.send("PUT", "/teams/workspace", json=bots))[0] == 204
        path = f"/teams/login/{tenant}/oauth2/v2.0/token"
        assert (await client.send("POST", path, data=token_form(**changes)))[
            0
        ] == status


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/teams/login/v1/elsewhere"),
        ("GET", "/teams/v3/elsewhere"),
        ("DELETE", "/teams/click"),
        ("POST", "/teams/v3/conversations/19:x@y/elsewhere"),
        ("POST", "/teams/v3/conversations/general/activities"),
    ],
)
async def test_there_is_nothing_elsewhere(method: str, path: str) -> None:
    async with local_teams() as client:
        assert (await client.send(method, path))[0] in {404, 405}


async def test_workspace_names_who_and_what_is_there() -> None:
    people = [{"objectId": PEOPLE[0].object_id, "name": "Ann"}]
    given = {
        "conversations": [{"id": CHANNEL, "name": "Ops", "people": people}],
        "tenant": "00000000-0000-4000-8000-00000000cafe",
        "groups": {PEOPLE[1].object_id: [PEOPLE[0].object_id]},
        "rateLimit": False,
    }
    async with local_teams() as client:
        assert (await client.send("PUT", "/teams/workspace", json=given))[0] == 204
        assert (await client.send("PUT", "/teams/workspace", json={"x": 1}))[0] == 400
        assert (await client.post(message_of(card_of())))[0] == 201
        path = "/teams/v3/conversations/19:other@x/activities"
        assert (await client.send("POST", path, json={}))[0] == 404
        html = (await client.send("GET", "/teams"))[1]
        assert "Ann" in html
        assert (await client.send("DELETE", "/teams/messages"))[0] == 204
        html = (await client.send("GET", f"/teams?conversation={CHANNEL}"))[1]

    assert "There are no messages yet." in words(html)


async def test_page_shows_text_and_no_markup() -> None:
    facts = {"type": "FactSet", "facts": [{"title": "a", "value": "<i>"}]}
    box = {"type": "ActionSet", "actions": [{"type": "Action.OpenUrl", "url": "x"}]}
    date = {
        "type": "TextBlock",
        "text": "{{DATE(2026-03-02T12:00:00Z, LONG)}} {{TIME(2026-03-02T12:00:00Z)}}"
        " {{DATE(not a time at all)}}",
    }
    rich = {"type": "RichTextBlock", "inlines": ["plain"]}
    async with local_teams() as client:
        body = [TEXT, facts, box, date, rich]
        assert (await client.post(message_of(card_of(body=body))))[0] == 201
        html = (await client.send("GET", "/teams"))[1]

    assert "Hello &lt;b&gt;" in html
    assert "<i>" not in html
    assert "Monday, March 2, 2026 12:00 {{DATE(not a time at all)}}" in html
    assert "<script" not in html


async def test_click_needs_a_bot_a_person_and_a_button() -> None:
    async with local_teams() as client:
        _, found = await client.post(message_of(card_of()))
        click = {
            "conversation": CHANNEL,
            "message": found["id"],
            "user": PEOPLE[0].object_id,
            "verb": "go",
        }
        send = client.send
        assert (await send("POST", "/teams/click", json=click))[0] == 400
        for name, value in (
            ("conversation", "19:x"),
            ("message", "1"),
            ("user", APP),
            ("verb", "stop"),
        ):
            wrong = {**click, name: value}
            assert (await send("POST", "/teams/click", json=wrong))[0] == 404
        nowhere = {"endpoint": "http://127.0.0.1:1/"}
        await send("PUT", "/teams/workspace", json=nowhere)
        status, result = await send("POST", "/teams/click", json=click)

        assert (status, result["status"]) == (200, None)
        assert "Unable to reach app" in result["words"]
        query = f"?conversation={CHANNEL}&as={PEOPLE[0].object_id}"
        assert "Unable to reach app" in (await send("GET", f"/teams{query}"))[1]
        _, html = await send("POST", "/teams/click", data=click)
        assert "Unable to reach app" in html


async def test_tokens_end_after_an_hour() -> None:
    async with local_teams() as client:
        tokens = client.inbox.teams.tokens
        issued = tokens.issue(token_form(), time.time() - 3601)
        client.token = str(issued["access_token"])
        assert (await client.post(message_of(card_of())))[0] == 401
