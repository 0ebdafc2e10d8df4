"""A Teams workflow that begins "when a Teams webhook request is received".

Source: https://learn.microsoft.com/microsoftteams/platform/webhooks-and-connectors
        https://adaptivecards.io/explorer
"""

import json
from dataclasses import dataclass, field
from typing import Any

from tests.receivers.serving import Post, Reply, Way

SIGNATURE = "s1gnature"
_LARGEST = 28 * 1024
_RUN = {"type", "text", "weight", "color", "isSubtle", "size"}
_COLORS = {"Default", "Dark", "Light", "Accent", "Good", "Warning", "Attention"}


@dataclass(slots=True)
class Teams:
    status: int | None = None
    taken: list[dict[str, Any]] = field(default_factory=list)

    def answer(self, post: Post) -> Reply:
        if post.query.get("sig") != SIGNATURE:
            return Reply(401)
        if self.status:
            return Reply(self.status)
        if len(post.body) > _LARGEST:
            return Reply(413)
        message = json.loads(post.body)
        if post.media_type != "application/json" or _faults(message):
            return Reply(400)
        self.taken.append(message)
        return Reply(202)


def _faults(message: dict[str, Any]) -> list[str]:
    (attachment,) = message["attachments"]
    card = attachment["content"]
    head = (message["type"], attachment["contentType"], card["type"], card["version"])
    found = []
    if head != (
        "message",
        "application/vnd.microsoft.card.adaptive",
        "AdaptiveCard",
        "1.4",
    ):
        found.append("no card")
    for block in card["body"]:
        if block.keys() != {"type", "inlines"} or block["type"] != "RichTextBlock":
            found.append("only rich text knows no Markdown")
            continue
        for run in block["inlines"]:
            is_known = run.keys() <= _RUN and run["type"] == "TextRun"
            is_plain = run["text"].strip() and "{{" not in run["text"]
            if not is_known or not is_plain or run.get("color", "Good") not in _COLORS:
                found.append(f"run {run}")
    return found


WAYS = {
    "teams": Way(
        Teams,
        f"/workflows/w/triggers/manual?sig={SIGNATURE}",
        environ={"TEAMS_WORKFLOW_URL": "https://x.example/workflows?sig=s"},
        wrong={"url": "http://127.0.0.1:9/workflows?sig=wrong"},
        statuses={400: "P", 404: "R", 413: "P", 429: "T", 502: "T"},
    )
}
