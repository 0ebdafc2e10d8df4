"""The Web API of the local Slack: its methods, limits and errors."""

from typing import Any

import pytest
from slack_sdk.errors import SlackApiError
from slack_sdk.web.async_client import AsyncWebClient

from tests.simulator.slack_client import TOKEN, slack

SECTION = {"type": "section", "text": {"type": "mrkdwn", "text": "x"}}
METADATA = {"event_type": "seen", "event_payload": {"id": "1"}}
OTHER = "xoxb-2-simulated"
OPS = {"id": "C012AB3CD", "name": "ops"}


async def test_message_is_posted_changed_and_deleted() -> None:
    async with slack() as app:
        posted = await app.post()
        at = {"channel": posted["channel"], "ts": posted["ts"]}
        changed = await app.call("chat.update", **at, text="bye", blocks=[SECTION])
        (seen,) = await app.history(posted["channel"])
        deleted = await app.call("chat.delete", **at)

        assert posted["ok"]
        assert posted["message"]["text"] == "hello"
        assert changed == {"ok": True, **at, "text": "bye", "message": seen}
        assert seen["edited"]["ts"]
        assert seen["blocks"][0]["block_id"]
        assert deleted == {"ok": True, **at}
        assert await app.history(posted["channel"]) == []


async def test_what_a_change_does_not_name_stays_and_what_is_empty_goes() -> None:
    async with slack() as app:
        posted = await app.post(blocks=[SECTION], metadata=METADATA)
        at = {"channel": posted["channel"], "ts": posted["ts"]}
        kept = await app.call("chat.update", **at, text="two")
        gone = await app.call("chat.update", **at, text="three", blocks=[], metadata={})
        (seen,) = await app.history(posted["channel"], include_all_metadata=True)

        assert kept["message"]["blocks"] == posted["message"]["blocks"]
        assert "blocks" not in gone["message"]
        assert "metadata" not in seen


async def test_answers_stand_in_the_thread_and_not_in_the_channel() -> None:
    async with slack() as app:
        first = await app.post("first")
        await app.post("in the thread", thread_ts=first["ts"])
        await app.post("in both", thread_ts=first["ts"], reply_broadcast=True)
        channel = first["channel"]
        thread = await app.call(
            "conversations.replies", channel=channel, ts=first["ts"]
        )
        seen = await app.history(channel)

        assert [each["text"] for each in thread["messages"]] == [
            "first",
            "in the thread",
            "in both",
        ]
        assert [each["text"] for each in seen] == ["in both", "first"]
        assert seen[-1]["reply_count"] == 2


async def test_metadata_are_shown_to_those_who_ask() -> None:
    async with slack() as app:
        posted = await app.post(metadata=METADATA)
        (plain,) = await app.history(posted["channel"])
        (whole,) = await app.history(posted["channel"], include_all_metadata=True)

        assert "metadata" not in plain
        assert whole["metadata"] == METADATA


async def test_slacks_own_client_posts_and_changes() -> None:
    async with slack() as app:
        client = AsyncWebClient(TOKEN, base_url=f"{app.inbox.url}/slack/api/")
        own = await client.auth_test()
        posted = await client.chat_postMessage(
            channel="#ops", text="one", blocks=[SECTION], metadata=METADATA
        )
        await client.chat_update(
            channel=str(posted["channel"]), ts=str(posted["ts"]), text="two"
        )
        with pytest.raises(SlackApiError, match="message_not_found"):
            await client.chat_update(channel=str(posted["channel"]), ts="1.0", text="x")
        (seen,) = await app.history(str(posted["channel"]), include_all_metadata=True)

        assert (seen["text"], seen["metadata"]) == ("two", METADATA)
        assert own["bot_id"] == seen["bot_id"]


async def test_form_says_the_same_as_json() -> None:
    async with slack() as app:
        posted = await app.form(
            "chat.postMessage",
            channel="ops",
            blocks='[{"type": "divider"}]',
        )

        assert posted["message"]["blocks"][0]["type"] == "divider"
        assert "warning" not in posted


@pytest.mark.parametrize(
    ("token", "word"),
    [
        (None, "not_authed"),
        ("", "not_authed"),
        ("12345", "invalid_auth"),
        ("xapp-1", "not_allowed_token_type"),
    ],
)
async def test_call_without_a_good_token_is_refused(
    token: str | None, word: str
) -> None:
    async with slack() as app:
        reply = await app.ask("chat.postMessage", token, channel="ops", text="x")

        assert (reply.status, reply.json) == (200, {"ok": False, "error": word})
        assert app.inbox.messages == ()


async def test_configured_tokens_are_the_only_ones() -> None:
    async with slack() as app:
        await app.have(
            tokens=[
                {"token": TOKEN, "scopes": ["channels:history"]},
                {"token": OTHER, "refusal": "token_revoked"},
            ]
        )
        without = await app.post()
        revoked = await app.call("auth.test", OTHER)
        unknown = await app.call("auth.test", "xoxb-3")

        assert without == {
            "ok": False,
            "error": "missing_scope",
            "needed": "chat:write",
            "provided": "channels:history",
        }
        assert revoked["error"] == "token_revoked"
        assert unknown["error"] == "invalid_auth"


@pytest.mark.parametrize(
    ("refusal", "is_archived", "is_member"),
    [
        (None, False, True),
        ("is_archived", True, True),
        ("not_in_channel", False, False),
    ],
)
async def test_channel_is_shown_as_the_bot_sees_it(
    refusal: str | None, *, is_archived: bool, is_member: bool
) -> None:
    async with slack() as app:
        await app.have(channels=[{**OPS, "refusal": refusal}])
        path = f"conversations.info?channel={OPS['id']}"
        found = (await app.ask(path)).json["channel"]

        assert (found["id"], found["name"]) == (OPS["id"], OPS["name"])
        assert found["is_archived"] is is_archived
        assert found["is_member"] is is_member
        assert found["is_private"] is False


async def test_channel_is_found_by_its_id_in_the_query_only() -> None:
    async with slack() as app:
        by_json = await app.call("conversations.info", channel=OPS["id"])
        by_name = await app.call("conversations.info?channel=ops")
        await app.have(channels=[{**OPS, "refusal": "channel_not_found"}])
        hidden = await app.call(f"conversations.info?channel={OPS['id']}")

        assert by_json["error"] == "invalid_arguments"
        assert by_name["error"] == "channel_not_found"
        assert hidden["error"] == "channel_not_found"
        assert (await app.call("conversations.info?channel=C99999999"))["ok"] is False


async def test_channel_is_shown_to_who_has_the_scope_which_each_answer_names() -> None:
    async with slack() as app:
        private = {"id": "G012AB3CD", "name": "secret"}
        await app.have(
            channels=[private], tokens=[{"token": TOKEN, "scopes": ["channels:read"]}]
        )
        answer = await app.ask("conversations.info?channel=G012AB3CD")
        await app.have(tokens=[{"token": TOKEN, "scopes": ["chat:write"]}])
        none = await app.ask("conversations.info?channel=G012AB3CD")
        test = await app.ask("auth.test")

        assert answer.json["needed"] == "groups:read"
        assert none.json["error"] == "missing_scope"
        assert test.headers["X-OAuth-Scopes"] == "chat:write"


@pytest.mark.parametrize("word", ["is_archived", "not_in_channel"])
async def test_configured_channels_are_the_only_ones(word: str) -> None:
    async with slack() as app:
        await app.have(channels=[OPS])
        posted = await app.post()
        elsewhere = await app.call("chat.postMessage", channel="other", text="x")
        await app.have(channels=[{**OPS, "refusal": word}])
        again = await app.post()
        at = {"channel": OPS["id"], "ts": posted["ts"]}
        changed = await app.call("chat.update", **at, text="x")

        assert posted["channel"] == OPS["id"]
        assert elsewhere["error"] == "channel_not_found"
        assert again["error"] == word
        assert changed["error"] == {"is_archived": "is_inactive"}.get(word, word)


@pytest.mark.parametrize("channel", [None, "", "Ops!", 5, "c012ab3cd e"])
async def test_what_names_no_channel_is_not_found(channel: object) -> None:
    async with slack() as app:
        answer = await app.call("chat.postMessage", channel=channel, text="x")

        assert answer["error"] == "channel_not_found"


async def test_channels_name_does_to_post_and_not_to_change() -> None:
    async with slack() as app:
        posted = await app.post()
        answer = await app.call("chat.update", channel="ops", ts=posted["ts"], text="x")

        assert answer["error"] == "channel_not_found"


@pytest.mark.parametrize(
    ("method", "word"),
    [("chat.update", "cant_update_message"), ("chat.delete", "cant_delete_message")],
)
async def test_messages_of_others_cannot_be_changed(method: str, word: str) -> None:
    async with slack() as app:
        posted = await app.post()
        at = {"channel": posted["channel"], "ts": posted["ts"]}
        others = await app.call(method, OTHER, **at, text="x")
        at["ts"] = "1.000000"
        nobodys = await app.call(method, **at, text="x")

        assert others["error"] == word
        assert nobodys["error"] == "message_not_found"


async def test_ephemeral_message_is_for_one_and_cannot_be_changed() -> None:
    async with slack() as app:
        nobody = await app.call("chat.postEphemeral", channel="ops", text="x")
        sent = await app.call(
            "chat.postEphemeral", channel="ops", user="U012AB3CD", text="x"
        )
        (channel,) = app.inbox.slack.workspace.channels
        at = {"channel": channel, "ts": sent["message_ts"]}
        changed = await app.call("chat.update", **at, text="y")

        assert nobody["error"] == "user_not_in_channel"
        assert changed["error"] == "cant_update_message"
        assert await app.history(channel) == []


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({}, "no_text"),
        ({"blocks": "["}, "invalid_blocks_format"),
        ({"blocks": [{}]}, "invalid_blocks"),
        ({"text": "x", "attachments": "x"}, "invalid_attachments"),
        ({"text": "x", "attachments": [5]}, "invalid_attachments"),
        ({"attachments": [{}] * 101}, "too_many_attachments"),
        ({"attachments": [{"blocks": [{}]}]}, "invalid_blocks"),
        ({"text": "x", "thread_ts": 1.5}, "invalid_arguments"),
        ({"text": "x", "thread_ts": "1.5"}, "invalid_arguments"),
        ({"text": "x", "metadata": {"event_type": "x"}}, "invalid_metadata_format"),
        ({"text": "x", "metadata": "{"}, "invalid_metadata_format"),
    ],
    ids=lambda value: str(value)[:50],
)
async def test_bad_message_is_refused(arguments: Any, word: str) -> None:
    async with slack() as app:
        answer = await app.call("chat.postMessage", channel="ops", **arguments)

        assert (answer["ok"], answer["error"]) == (False, word)
        assert app.inbox.messages == ()


async def test_invalid_blocks_are_pointed_at() -> None:
    async with slack() as app:
        long = {"type": "section", "text": {"type": "mrkdwn", "text": "x" * 3001}}
        answer = await app.call("chat.postMessage", channel="ops", blocks=[long])

        place = "must be less than 3001 characters [json-pointer:/blocks/0/text/text]"
        assert answer["response_metadata"] == {"messages": [f"[ERROR] {place}"]}
        assert answer["errors"] == [place]


async def test_long_text_is_cut_when_posted_and_refused_as_a_change() -> None:
    async with slack() as app:
        posted = await app.post("x" * 40_001)
        at = {"channel": posted["channel"], "ts": posted["ts"]}
        changed = await app.call("chat.update", **at, text="x" * 4001)

        assert len(posted["message"]["text"]) == 40_000
        assert posted["warning"] == "message_truncated"
        assert changed["error"] == "msg_too_long"


async def test_fourth_message_at_once_has_to_wait_a_second() -> None:
    async with slack() as app:
        replies = [
            await app.ask("chat.postMessage", channel=channel, text="x")
            for channel in ("ops", "ops", "ops", "ops", "other")
        ]
        app.clock.at += 1
        replies.append(await app.ask("chat.postMessage", channel="ops", text="x"))

        assert [reply.status for reply in replies] == [200, 200, 200, 429, 200, 200]
        assert replies[3].headers["Retry-After"] == "1"
        assert replies[3].json == {"ok": False, "error": "ratelimited"}


async def test_fifty_changes_a_minute_are_allowed() -> None:
    async with slack() as app:
        posted = await app.post()
        at = {"channel": posted["channel"], "ts": posted["ts"]}
        replies = [await app.ask("chat.update", **at, text="x") for _ in range(51)]

        assert {reply.status for reply in replies[:50]} == {200}
        assert replies[50].status == 429
        assert replies[50].headers["Retry-After"] == "2"


async def test_limits_can_be_tightened_and_lifted() -> None:
    async with slack() as app:
        await app.have(rateLimit=True, postBurst=1, postsPerSecond=0.1)
        tight = [await app.ask("chat.postMessage", channel="ops", text="x")] * 2
        tight[1] = await app.ask("chat.postMessage", channel="ops", text="x")
        await app.have(rateLimit=False)
        free = [await app.post() for _ in range(5)]

        assert [reply.status for reply in tight] == [200, 429]
        assert tight[1].headers["Retry-After"] == "10"
        assert all(answer["ok"] for answer in free)


@pytest.mark.parametrize(
    ("body", "content_type", "word"),
    [
        (b"{", "application/json", "invalid_json"),
        (b"[]", "application/json", "json_not_object"),
        (b"{}", "application/json; charset=latin-9", "invalid_charset"),
        (b"text", "application/x-www-form-urlencoded", "invalid_form_data"),
        (b"{}", "application/xml", "invalid_post_type"),
    ],
)
async def test_body_that_cannot_be_read_is_refused(
    body: bytes, content_type: str, word: str
) -> None:
    async with slack() as app:
        headers = {"Content-Type": content_type, "Authorization": f"Bearer {TOKEN}"}
        path = "/slack/api/chat.postMessage"
        reply = await app.http.send("POST", path, body, headers)

        assert (reply.status, reply.json["error"]) == (200, word)


async def test_missing_charset_is_remarked() -> None:
    async with slack() as app:
        headers = {
            "Content-Type": "application/json",
            "Authorization": f"Bearer {TOKEN}",
        }
        reply = await app.http.send("POST", "/slack/api/auth.test", {}, headers)

        assert reply.json["warning"] == "missing_charset"


async def test_unknown_method_is_named() -> None:
    async with slack() as app:
        answer = await app.call("chat.shout")

        assert answer["error"] == "unknown_method"
        assert answer["req_method"] == "chat.shout"


async def test_fault_strikes_a_method() -> None:
    async with slack() as app:
        fault = {"path": "/slack/api/chat.update", "status": 503, "retryAfter": 30}
        await app.http.send("POST", "/faults", fault)
        posted = await app.ask("chat.postMessage", channel="ops", text="x")
        struck = await app.ask("chat.update", channel="ops", ts="1.0", text="x")

        assert (posted.status, struck.status) == (200, 503)


async def test_taken_message_is_among_those_of_the_inbox() -> None:
    async with slack() as app:
        await app.post()

        (message,) = app.inbox.messages
        assert message.path == "/slack/api/chat.postMessage"
        assert message.body == {"channel": "ops", "text": "hello"}


async def test_settings_that_are_not_understood_change_nothing() -> None:
    async with slack() as app:
        reply = await app.http.send(
            "PUT", "/slack/workspace", {"channels": [{"id": "x"}]}
        )

        assert reply.status == 400
        assert (await app.post())["ok"]
