"""Slack messages: which VMs are affected by what, when, and how soon.

There are two forms. An incoming webhook posts one message for each event and cannot
change it. A bot token posts one message for each EventId and keeps it up to date
(bot.py). Both use the bridge's own HTTP client: slack_sdk's client follows redirects,
takes proxies from the environment and fails at answers that are not JSON. slack_sdk's
Block Kit classes check the limits of the messages.

Source: docs.slack.dev/messaging/sending-messages-using-incoming-webhooks,
docs.slack.dev/reference/methods/chat.postMessage
"""

import asyncio
import importlib
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import ClassVar
from urllib.parse import urlsplit

import aiohttp
import orjson
from msgspec import Struct

from bridge.events.cloudevent import CloudEvent
from bridge.foundation.background import in_background
from bridge.foundation.clock import Clock
from bridge.foundation.errors import MissingExtraError, Reason, TransientDeliveryError
from bridge.foundation.values import Duration, Rate, Secret
from bridge.net.addresses import is_loopback, target_fault
from bridge.net.http_client import (
    Answer,
    Request,
    exchange,
    failure,
    is_http,
    reach,
    redact,
    revealed,
)
from bridge.sinks.base import ApprovalAddress, Preview, Resources, Sink, SinkConfig
from bridge.sinks.slack.blocks import LEAST_SECRET, Signer, render
from bridge.sinks.slack.bot import SlackApi, SlackBot, first_message

_WORD = re.compile(r"[a-z][a-z0-9_ .:-]{0,99}")  # such as invalid_payload
_BETWEEN = re.compile(r"[/?&=#:@]")
_SHORT = 3  # characters; no secret is this short
_JSON = {"Content-Type": "application/json; charset=utf-8"}


class SlackSinkConfig(SinkConfig, frozen=True, kw_only=True):
    """``[[sinks]]`` with ``type = "slack"``.

    Attributes:
        webhook_url: the address of an incoming webhook; everybody who has it can post.
        token: a bot token, in place of webhook_url: one message for each EventId, which
            is kept up to date.
        channel: where the bot posts; it must be a member. Example:
            ``"C012AB3CD"``.
        api_url: the Web API of Slack; GovSlack has another one. Example:
            ``"https://slack-gov.com/api/"``.
        buttons: whether messages of the bot have the buttons Approve and Refuse, for
            the app in infra/functions.
        button_secret: the key that signs buttons: the same as BUTTON_SECRET of the app,
            at least 32 characters.
        timeout: how long one attempt may take.
        max_rate: the highest rate of messages; Slack accepts one a second in a
            channel.
    """

    default_lifecycle: ClassVar[bool] = False
    concurrency: ClassVar[int] = 1

    webhook_url: Secret | None = None
    token: Secret | None = None
    channel: str = ""
    api_url: str = "https://slack.com/api/"
    buttons: bool = False
    button_secret: Secret | None = None
    timeout: Duration = Duration(10)
    max_rate: Rate | None = Rate(1)  # Slack accepts about one message a second

    def faults(self) -> Iterator[tuple[str, ...]]:
        """Check that there is exactly one way to post, and the keys it needs."""
        if (self.webhook_url is None) == (self.token is None):
            text = "set either webhook_url, or token and channel"
            yield "webhook_url", text, "token"
        hook = self.webhook_url
        if hook is not None and (what := target_fault(hook.reveal())):
            yield "webhook_url", what
        if self.token is not None and not self.channel:
            yield "channel", "is missing: the channel to post to, such as C012AB3CD"
        if self.token is None and self.channel:
            yield "channel", "needs token; a webhook posts to its own channel"
        if not _may_have_token(self.api_url):
            text = "must be an https:// URL that ends in a slash (http:// on loopback)"
            yield "api_url", text
        elif what := target_fault(self.api_url):
            yield "api_url", what
        if not self.timeout:
            yield "timeout", "must be more than 0s"
        yield from self._button_faults()

    def _button_faults(self) -> Iterator[tuple[str, ...]]:
        if not self.buttons:
            return
        if self.token is None:
            text = "needs token and channel: a message of a webhook cannot be changed"
            yield "buttons", text, "token"
        if self.button_secret is None:
            text = "is missing: set it to BUTTON_SECRET of the app in infra/functions"
            yield "button_secret", text
        elif len(self.button_secret.reveal()) < LEAST_SECRET:
            yield "button_secret", f"must have at least {LEAST_SECRET} characters"

    @property
    def needs_approvals(self) -> str | None:
        """The key that requires ``[approvals]``."""
        return "buttons" if self.buttons else None

    def load(self) -> None:
        """Import Block Kit.

        Raises:
            MissingExtraError: slack_sdk is not installed.
        """
        try:
            importlib.import_module("slack_sdk.models.blocks")
        except ImportError as error:
            raise MissingExtraError("the Slack sink", "slack") from error

    @asynccontextmanager
    async def open(self, resources: Resources) -> AsyncIterator[Sink]:
        """Load Block Kit; nothing is connected before the first delivery.

        Raises:
            MissingExtraError: slack_sdk is not installed.
        """
        self.load()
        if self.webhook_url is not None:
            yield self._hook(resources, self.webhook_url)
            return
        bot, never = self._bot(resources), asyncio.Event()
        name, clock = f"{self.name}: buttons", resources.clock
        async with in_background(lambda: bot.tend(never), name=name, clock=clock):
            yield bot

    async def reach(self, resources: Resources) -> str:
        """Test the connection to Slack; see ``SinkConfig.reach``."""
        self.load()
        if self.webhook_url is not None:
            return await self._hook(resources, self.webhook_url).reach()
        return await self._bot(resources).reach()

    async def preview(self, resources: Resources, event: CloudEvent) -> Preview:
        """Return what would be posted; a button is shown without its signature."""
        self.load()
        now, address = resources.clock.now(), resources.approvals
        headers = [f"{name}: {value}" for name, value in _JSON.items()]
        if self.webhook_url is not None:
            target = redact(revealed(self.webhook_url, "webhook_url"))
            body = render(event, now, address)
            return Preview(head=(f"POST {target}", *headers), body=orjson.dumps(body))
        signer = Signer(address=address, secret=None) if address else None
        if not self.buttons:
            signer = None
        body = {"channel": self.channel, **first_message(event, now, signer, address)}
        head = (
            f"POST {redact(self.api_url)} chat.postMessage",
            "Authorization: Bearer <secret>",
            *headers,
        )
        return Preview(head=head, body=orjson.dumps(body))

    def _hook(self, resources: Resources, url: Secret) -> "SlackHook":
        return SlackHook(
            url=url,
            timeout=self.timeout,
            http=resources.http,
            clock=resources.clock,
            approvals=resources.approvals,
        )

    def _bot(self, resources: Resources) -> SlackBot:
        return SlackBot(
            api=SlackApi(
                http=resources.http,
                url=self.api_url,
                token=self.token or Secret("", {}),
                timeout=self.timeout,
                clock=resources.clock,
            ),
            channel=self.channel,
            approvals=resources.approvals,
            button_secret=self.button_secret if self.buttons else None,
            memory=resources.memory,
            clock=resources.clock,
            pace=resources.pace,
        )


def _may_have_token(url: str) -> bool:
    """Whether a token may be sent to a URL: over TLS, or only on this machine."""
    if not is_http(url) or not url.endswith("/"):
        return False
    parts = urlsplit(url)
    return parts.scheme == "https" or is_loopback(parts.hostname or "")


class SlackHook(Struct, frozen=True, kw_only=True):
    """Posts each event to one incoming webhook.

    Attributes:
        approvals: the approval entity; None = there is none.
    """

    url: Secret
    timeout: float
    http: aiohttp.ClientSession
    clock: Clock
    approvals: ApprovalAddress | None

    async def deliver(self, event: CloudEvent) -> None:
        """Post the event; see ``Sink.deliver``.

        Raises:
            DeliveryError: as ``bridge.net.http_client`` maps it.
        """
        message = render(event, self.clock.now(), self.approvals)
        request = self._request(orjson.dumps(message))
        target = redact(request.url)
        answer = await exchange(self.http, request, target, self.clock.now)
        _judge(answer, request.url)

    async def reach(self) -> str:
        """Test the connection to Slack; see ``SinkConfig.reach``.

        Raises:
            DeliveryError: Slack cannot be reached.
            UnprovenError: Slack answers, but this does not prove that it takes events.
        """
        request = self._request(b"")
        return await reach(self.http, request, redact(request.url))

    def _request(self, body: bytes) -> Request:
        return Request(
            url=revealed(self.url, "webhook_url"),
            headers=_JSON,
            body=body,
            timeout=self.timeout,
        )


def _judge(answer: Answer, url: str) -> None:
    """Raise the error of an answer; Slack says ``ok`` in plain text or JSON."""
    error = failure(
        answer.status,
        target=answer.target,
        retry_after=answer.retry_after,
        detail=_own_word(answer.body, url),
    )
    if error:
        raise error
    if answer.body.lstrip().startswith(b"<"):
        text = f"{answer.summary} with a page: is a proxy in between?"
        raise TransientDeliveryError(text, Reason.SERVER)


def _own_word(body: bytes, url: str) -> str:
    """Return Slack's error, if it is a single word.

    A word that is part of the URL is not returned: the URL is the secret.
    """
    text = body[:100].decode("ascii", "replace").strip()
    parts = [part for part in _BETWEEN.split(url.lower()) if len(part) > _SHORT]
    is_word = _WORD.fullmatch(text) and not any(part in text for part in parts)
    return text if is_word else ""
