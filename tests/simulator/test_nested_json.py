"""JSON that is nested very deep: the inbox refuses it, or keeps it as text."""

import json
from collections.abc import Mapping

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from bridge.simulator.foreign import DEEPEST
from bridge.simulator.inbox import Inbox
from bridge.simulator.teams.team import PEOPLE
from tests.simulator.imds_client import http_client
from tests.simulator.slack_client import JSON, TOKEN, slack
from tests.simulator.test_teams import (
    CHANNEL,
    EXECUTE,
    TEXT,
    card_of,
    local_teams,
    message_of,
)
from tests.support.nested import HERE, Nest, each_depth, holding

# -- the inbox ------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/siem", "/slack/ops"])
@each_depth
async def test_inbox_takes_a_nested_body_as_json_or_text(
    path: str, depth: int, nest: Nest
) -> None:
    async with slack() as app:
        body = holding({"text": "hello", "more": HERE}, nest(depth))
        reply = await app.http.send("POST", path, body, {"Content-Type": JSON})
        listed = await app.http.send("GET", "/messages")

    assert (reply.status, listed.status) in {(200, 200), (204, 200), (400, 200)}
    is_json = depth < DEEPEST
    if path == "/siem":
        kept = listed.json[0]["body"]
        assert kept == (json.loads(body) if is_json else body.decode())
    else:
        assert reply.status == (200 if is_json else 400)


SECTION = {"type": "section", "text": {"type": "mrkdwn", "text": "a"}}


@pytest.mark.parametrize(
    "message",
    [
        {"blocks": [{**SECTION, "x": HERE}]},
        {"blocks": [{"type": "table", "rows": HERE}]},
        {"blocks": [{**SECTION, "accessory": HERE}]},
        {"text": HERE, "blocks": [SECTION]},
        {"blocks": HERE},
        {"text": "a", "attachments": [{"blocks": HERE, "fields": HERE}]},
        {"text": "a", "attachments": [{"fields": HERE}]},
    ],
    ids=str,
)
@each_depth
async def test_slack_takes_a_nested_message_or_refuses_it(
    message: Mapping[str, object], depth: int, nest: Nest
) -> None:
    body = holding({"channel": "ops", **message}, nest(depth))
    async with slack() as app:
        send, kind = app.http.send, {"Content-Type": JSON}
        by_webhook = await send("POST", "/slack/ops", body, kind)
        token = {"Authorization": f"Bearer {TOKEN}"}
        posted = await send("POST", "/slack/api/chat.postMessage", body, kind | token)
        page = await send("GET", "/slack")
        history = await app.ask("conversations.history", channel="ops")
        listed = await send("GET", "/messages")

    assert by_webhook.status in {200, 400}
    assert {posted.status, page.status, history.status, listed.status} == {200}
    if depth > DEEPEST:
        assert by_webhook.status == 400
        assert posted.json["error"] == "invalid_json"


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("blocks", "invalid_blocks_format"),
        ("metadata", "invalid_metadata_format"),
        ("attachments", "invalid_attachments"),
    ],
)
@each_depth
async def test_slack_refuses_a_nested_field_of_a_form(
    name: str, code: str, depth: int, nest: Nest
) -> None:
    async with slack() as app:
        given = {"channel": "ops", "text": "hello", name: nest(depth)}
        answer = await app.form("chat.postMessage", **given)

    if depth > DEEPEST:
        assert answer["error"] == code


@each_depth
async def test_slack_sends_a_click_on_a_nested_message(depth: int, nest: Nest) -> None:
    button = {"type": "button", "text": {"type": "plain_text", "text": "b"}}
    actions = {"type": "actions", "elements": [{**button, "action_id": "a"}], "x": HERE}
    async with slack() as app:
        body = holding({"blocks": [actions]}, nest(depth))
        await app.have(interactivity={"url": app.inbox.url, "signingSecret": "s"})
        await app.http.send("POST", "/slack/ops", body, {"Content-Type": JSON})
        posts = [*app.inbox.slack.workspace.get_or_create("ops").posts]
        for ts in posts:
            click = {"ts": ts, "actionId": "a"}
            assert (await app.http.send("POST", "/slack/click", click)).status == 200

    assert bool(posts) == (depth < DEEPEST - 5)


@pytest.mark.parametrize(
    "path", ["/slack/workspace", "/teams/workspace", "/options", "/faults"]
)
@each_depth
async def test_control_requests_refuse_a_nested_body(
    path: str, depth: int, nest: Nest
) -> None:
    async with Inbox() as inbox, http_client(inbox.url) as http:
        method = "POST" if path == "/faults" else "PUT"
        reply = await http.send(method, path, holding({"tokens": HERE}, nest(depth)))

    assert reply.status == 400
    assert reply.json["error"]


# -- Teams ----------------------------------------------------------------------------


def containers(count: int) -> object:
    """Return a text block in this number of containers."""
    found: object = TEXT
    for _ in range(count):
        found = {"type": "Container", "items": [found]}
    return found


@pytest.mark.parametrize("count", [10, 40, 130, 250, 400])
async def test_teams_takes_a_card_or_refuses_it_by_its_depth(count: int) -> None:
    body = json.dumps(message_of(card_of(body=[containers(count)]))).encode()
    async with local_teams() as client:
        path = f"/teams/v3/conversations/{CHANNEL}/activities"
        status, found = await client.send("POST", path, data=body)
        shown, _ = await client.send("GET", "/teams")

    assert status == (201 if count <= 40 else 400)
    assert shown == 200
    if count > 40:
        assert found["error"]["code"] == "BadSyntax"
        assert "nested" in found["error"]["message"]


@pytest.mark.parametrize(
    "activity",
    [
        message_of(card_of(), channelData=HERE),
        message_of(card_of(), summary=HERE),
        message_of(card_of(msteams={"x": HERE})),
        message_of(card_of(body=HERE)),
        message_of(HERE),
        message_of(card_of(actions=[{**EXECUTE, "data": {"x": HERE}}])),
    ],
    ids=lambda value: str(value)[-60:],
)
@each_depth
async def test_teams_takes_a_nested_activity_or_refuses_it(
    activity: Mapping[str, object], depth: int, nest: Nest
) -> None:
    async with local_teams() as client:
        path = f"/teams/v3/conversations/{CHANNEL}/activities"
        body = holding(activity, nest(depth))
        status, found = await client.send("POST", path, data=body)
        shown, _ = await client.send("GET", "/teams")
        assert status in ({201, 400} if depth < DEEPEST else {400})
        assert shown == 200
        if status == 201:
            nowhere = {"endpoint": "http://127.0.0.1:1/"}
            await client.send("PUT", "/teams/workspace", json=nowhere)
            click = {
                "conversation": CHANNEL,
                "message": found["id"],
                "user": PEOPLE[0].object_id,
                "verb": "go",
            }
            clicked, _ = await client.send("POST", "/teams/click", json=click)
            assert clicked == 200


@each_depth
async def test_teams_refuses_nested_group_ids(depth: int, nest: Nest) -> None:
    async with local_teams() as client:
        user = PEOPLE[0].object_id
        path = f"/teams/graph/v1.0/users/{user}/checkMemberGroups"
        form = {
            "grant_type": "client_credentials",
            "client_id": "5eb41d6e-0000-4000-8000-00000000b07a",
            "client_secret": "s",
            "scope": f"{client.inbox.url}/teams/graph/.default",
        }
        login = f"/teams/login/{client.inbox.teams.team.tenant}/oauth2/v2.0/token"
        client.token = (await client.send("POST", login, data=form))[1]["access_token"]
        body = holding({"groupIds": [HERE]}, nest(depth))
        status, _ = await client.send("POST", path, data=body)

    assert status in ({200, 400} if depth < DEEPEST else {400})


@each_depth
async def test_teams_shows_that_a_bot_answered_nested_json(
    depth: int, nest: Nest
) -> None:
    async def answer(_: web.Request) -> web.Response:
        body = holding({"statusCode": 200, "type": "x", "value": HERE}, nest(depth))
        return web.Response(body=body, content_type="application/json")

    app = web.Application()
    app.router.add_post("/", answer)
    async with TestServer(app) as bot, local_teams() as client:
        _, found = await client.post(message_of(card_of()))
        endpoint = {"endpoint": str(bot.make_url("/"))}
        await client.send("PUT", "/teams/workspace", json=endpoint)
        click = {
            "conversation": CHANNEL,
            "message": found["id"],
            "user": PEOPLE[0].object_id,
            "verb": "go",
        }
        status, result = await client.send("POST", "/teams/click", json=click)

    assert (status, result["status"]) == (200, 200)
    assert (result["answer"] is None) == (depth >= DEEPEST)
    assert result["words"]
