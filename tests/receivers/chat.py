"""Incoming webhooks of Google Chat, Mattermost and Discord, and ntfy.

Source: https://developers.google.com/workspace/chat/quickstart/webhooks
        https://developers.mattermost.com/integrate/webhooks/incoming/
        https://discord.com/developers/docs/resources/webhook#execute-webhook
        https://docs.ntfy.sh/publish/#publish-as-json
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any

from tests.receivers.serving import Post, Reply, faults_of, json_reply

_MENTION = re.compile(r"@\w")
_MARKUP = re.compile(r"<(?!/?(?:b|i|u|br|a|font)\b)|&(?!\w+;|#\d+;)")


@dataclass(slots=True)
class Chat:
    """One of the four; its rules are in ``faults``."""

    status: int | None = None
    taken: list[dict[str, Any]] = field(default_factory=list)

    def faults(self, body: dict[str, Any]) -> list[str]:
        raise NotImplementedError

    def answer(self, post: Post) -> Reply:
        if self.status:
            return Reply(self.status)
        body = json.loads(post.body)
        faults = self.faults(body)
        if faults or post.media_type != "application/json":
            return json_reply(400, {"message": faults})
        self.taken.append(body)
        return json_reply(200, {})


@dataclass(slots=True)
class GoogleChat(Chat):
    def faults(self, body: dict[str, Any]) -> list[str]:
        (card,) = body["cardsV2"]
        widgets = [w for s in card["card"]["sections"] for w in s["widgets"]]
        texts = [widget["decoratedText"]["text"] for widget in widgets]
        return faults_of(
            {
                "unknown field": body.keys() <= {"thread", "cardsV2", "text"},
                "threadKey": 0 < len(body["thread"]["threadKey"]) <= 4000,
                "title": bool(card["card"]["header"]["title"]),
                "widgets": 0 < len(widgets) <= 100,
                "no text": all(texts),
                "markup": not any(map(_MARKUP.search, texts)),
                "too long": len(json.dumps(body)) <= 32_000,
            }
        )


@dataclass(slots=True)
class Mattermost(Chat):
    def faults(self, body: dict[str, Any]) -> list[str]:
        (attachment,) = body["attachments"]
        fields = attachment["fields"]
        return faults_of(
            {
                "unknown field": body.keys() <= {"attachments", "text", "username"},
                "color": bool(re.fullmatch("#[0-9a-f]{6}", attachment["color"])),
                "fallback": bool(attachment["fallback"]),
                "fields": all(
                    one.keys() == {"short", "title", "value"} for one in fields
                ),
                "a mention": not _MENTION.search(json.dumps(body, ensure_ascii=False)),
                "too long": len(json.dumps(body)) <= 7_600_000,
            }
        )


@dataclass(slots=True)
class Discord(Chat):
    def faults(self, body: dict[str, Any]) -> list[str]:
        (embed,) = body["embeds"]
        fields = embed["fields"]
        total = len(embed["title"]) + sum(
            len(one["name"]) + len(one["value"]) for one in fields
        )
        return faults_of(
            {
                "unknown field": body.keys()
                <= {"allowed_mentions", "embeds", "content"},
                "mentions are on": body["allowed_mentions"] == {"parse": []},
                "title": 0 < len(embed["title"]) <= 256,
                "fields": len(fields) <= 25,
                "field": all(
                    0 < len(one["name"]) <= 256 and 0 < len(one["value"]) <= 1024
                    for one in fields
                ),
                "all texts together": total <= 6000,
                "color": isinstance(embed["color"], int),
            }
        )


@dataclass(slots=True)
class Ntfy(Chat):
    def faults(self, body: dict[str, Any]) -> list[str]:
        known = {"topic", "title", "priority", "tags", "message", "click", "markdown"}
        return faults_of(
            {
                "unknown field": body.keys() <= known,
                "topic": bool(re.fullmatch(r"[-_A-Za-z0-9]{1,64}", body["topic"])),
                "priority": body["priority"] in range(1, 6),
                "it would become an attachment": len(body["message"].encode()) <= 4096,
                "title": len(body["title"]) <= 250,
            }
        )


@dataclass(slots=True)
class Telegram(Chat):
    """``sendMessage`` of the Bot API, without a parse_mode: the text is plain.

    Source: https://core.telegram.org/bots/api#sendmessage
    """

    def faults(self, body: dict[str, Any]) -> list[str]:
        known = {"chat_id", "text", "disable_notification", "link_preview_options"}
        return faults_of(
            {
                "unknown field": body.keys() <= known,
                "chat_id": isinstance(body["chat_id"], str) and bool(body["chat_id"]),
                "text": 0 < len(body["text"].encode("utf-16-le")) // 2 <= 4096,
                "silent": isinstance(body["disable_notification"], bool),
            }
        )


SERVICES = {
    "google-chat": GoogleChat,
    "mattermost": Mattermost,
    "discord": Discord,
    "ntfy": Ntfy,
    "telegram": Telegram,
}
