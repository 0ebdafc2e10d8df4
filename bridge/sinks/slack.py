"""Slack, through an incoming webhook: who is hit by what, when, and how soon.

Posted with our own HTTP client and not slack_sdk's, which follows redirects, takes
proxies from the environment and trips over answers that are no JSON. Its Block Kit
classes check the limits of what is posted.

Source: https://api.slack.com/messaging/webhooks, https://api.slack.com/block-kit
"""

import importlib
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import ClassVar

import aiohttp
import orjson

from bridge.cloudevent import CloudEvent
from bridge.errors import MissingExtraError, Reason, TransientDeliveryError
from bridge.options import Duration, Secret
from bridge.sinks.base import Resources, SinkConfig
from bridge.sinks.slack_text import Telling, tell
from bridge.transport import (
    Answer,
    Request,
    exchange,
    failure,
    is_http,
    reach,
    redact,
    revealed,
)

_WORD = re.compile(r"[a-z][a-z0-9_ .:-]{0,99}")  # such as invalid_payload
_BETWEEN = re.compile(r"[/?&=#:@]")
_SHORT = 3  # characters: no secret is so short
_MOST_FIELDS = 10


class SlackSinkConfig(SinkConfig, frozen=True, kw_only=True):
    """``[[sinks]]`` with ``type = "slack"``."""

    default_lifecycle: ClassVar[bool] = False
    concurrency: ClassVar[int] = 1  # Slack takes about one message a second

    webhook_url: Secret
    timeout: Duration = Duration(10)

    def faults(self) -> Iterator[tuple[str, str]]:
        """Check the address without showing it."""
        if not is_http(self.webhook_url.reveal()):
            yield "webhook_url", "must be an http:// or https:// URL"
        if not self.timeout:
            yield "timeout", "must be more than 0s"

    @asynccontextmanager
    async def open(self, resources: Resources) -> AsyncIterator["SlackSink"]:
        """Load Block Kit; nothing is connected before the first delivery.

        Raises:
            MissingExtraError: slack_sdk is not installed.
        """
        try:
            importlib.import_module("slack_sdk.models.blocks")
        except ImportError as error:
            raise MissingExtraError("the Slack sink", "slack") from error
        yield SlackSink(config=self, http=resources.http)

    async def reach(self, resources: Resources) -> str:
        """Ask whether Slack is there; see ``SinkConfig.reach``."""
        async with self.open(resources) as sink:
            return await sink.reach()


@dataclass(frozen=True, slots=True, kw_only=True)
class SlackSink:
    """Posts each event to one incoming webhook."""

    config: SlackSinkConfig
    http: aiohttp.ClientSession

    async def deliver(self, event: CloudEvent) -> None:
        """Post the event; see ``Sink.deliver``.

        Raises:
            DeliveryError: as ``bridge.transport`` maps it.
        """
        request = self._request(orjson.dumps(render(event)))
        target = redact(request.url)
        _judge(await exchange(self.http, request, target), target, request.url)

    async def reach(self) -> str:
        """Ask whether Slack is there; see ``SinkConfig.reach``.

        Raises:
            DeliveryError: it is not.
        """
        request = self._request(b"")
        return await reach(self.http, request, redact(request.url))

    def _request(self, body: bytes) -> Request:
        return Request(
            url=revealed(self.config.webhook_url, "webhook_url"),
            headers={"Content-Type": "application/json; charset=utf-8"},
            body=body,
            timeout=self.config.timeout,
        )


def _judge(answer: Answer, target: str, url: str) -> None:
    """Raise what the answer means; Slack says ``ok`` in plain text or JSON."""
    error = failure(
        answer.status,
        target=target,
        retry_after=answer.retry_after,
        detail=_own_word(answer.body, url),
    )
    if error:
        raise error
    if answer.body.lstrip().startswith(b"<"):
        text = f"{target} answered {answer.status} with a page: is a proxy in between?"
        raise TransientDeliveryError(text, Reason.SERVER)


def _own_word(body: bytes, url: str) -> str:
    """Return Slack's own word for a fault, if it is nothing but a word.

    Nor may it repeat a part of the URL, which is the secret.
    """
    text = body[:100].decode("ascii", "replace").strip()
    parts = [part for part in _BETWEEN.split(url.lower()) if len(part) > _SHORT]
    is_word = _WORD.fullmatch(text) and not any(part in text for part in parts)
    return text if is_word else ""


def render(event: CloudEvent) -> dict[str, object]:
    """Return the message for an event: Block Kit, and text for notifications."""
    telling = tell(event)
    return {
        "text": telling.headline,
        "blocks": _blocks(telling),
        "unfurl_links": False,
        "unfurl_media": False,
    }


def _blocks(telling: Telling) -> list[dict[str, object]]:
    from slack_sdk.models.blocks import (  # noqa: PLC0415  who has no Slack, loads none
        Block,
        ContextBlock,
        MarkdownTextObject,
        SectionBlock,
        TextObject,
    )

    def text(mrkdwn: str) -> MarkdownTextObject:
        return MarkdownTextObject(text=mrkdwn, verbatim=True)  # no links by guessing

    facts: list[str | TextObject] = [
        text(f"*{name}*\n{value}") for name, value in telling.facts[:_MOST_FIELDS]
    ]
    blocks: list[Block] = [SectionBlock(text=text(f"*{telling.headline}*"))]
    if facts:
        blocks.append(SectionBlock(fields=facts))
    blocks.extend(SectionBlock(text=text(words)) for words in telling.paragraphs)
    blocks.append(ContextBlock(elements=[text(telling.footer)]))
    return [block.to_dict() for block in blocks]
