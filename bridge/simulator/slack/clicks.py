"""Clicks on buttons: Slack's request to an app, and the app's answer.

Source:  docs.slack.dev/interactivity/handling-user-interaction (3 seconds, no retry;
         a response_url can be used five times within 30 minutes),
         docs.slack.dev/reference/interaction-payloads/block_actions-payload,
         docs.slack.dev/authentication/verifying-requests-from-slack
"""

import hmac
import itertools
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Annotated, Final
from urllib.parse import urlencode

import aiohttp
import msgspec
import orjson
from msgspec import Struct
from msgspec.structs import replace

from bridge.simulator.clock import Clock
from bridge.simulator.errors import BadInputError, NoSuchEntityError
from bridge.simulator.foreign import Input
from bridge.simulator.slack.methods import is_true
from bridge.simulator.slack.refusals import RefusedError, judge
from bridge.simulator.slack.workspace import (
    TEAM,
    Bot,
    Channel,
    Content,
    Post,
    Workspace,
)

ACTIONS: Final = "/slack/actions/"
_ACK_SECONDS: Final = 3.0
_USES: Final = 5
_LIFETIME: Final = 30 * 60.0
_KEPT: Final = 1000

Table = Mapping[str, object]


class Click(Input, frozen=True, kw_only=True):
    """A user's click on a button."""

    ts: str
    action_id: str
    block_id: str | None = None
    channel: str | None = None
    user: Annotated[str, msgspec.Meta(pattern="^[UW][A-Z0-9]{2,20}$")] = "U012AB3CD"


class Interactivity(Input, frozen=True, kw_only=True):
    """The app that receives clicks, and the secret that signs them."""

    url: Annotated[str, msgspec.Meta(pattern="^https?://")]
    signing_secret: Annotated[str, msgspec.Meta(min_length=1)]


class _ResponseUrl(Struct):
    """A URL where an app may answer a click."""

    channel: Channel
    bot: Bot
    ts: str
    user: str
    until: float
    uses: int = 0


class Clicks:
    """Sends clicks to one app, and accepts its answers.

    Args:
        workspace: holds the messages with the buttons.
        clock: the source of time.

    Attributes:
        app: the receiver of clicks; None: not configured.
        base_url: the start of every response_url.
        ack_seconds: how long the app may take to answer.
    """

    def __init__(self, workspace: Workspace, clock: Clock) -> None:
        self.app: Interactivity | None = None
        self.base_url = ""
        self.ack_seconds = _ACK_SECONDS
        self._workspace = workspace
        self._clock = clock
        self._count = itertools.count(1)
        self._urls: dict[str, _ResponseUrl] = {}

    async def click(self, click: Click) -> dict[str, object]:
        """Send a click to the app; return the result.

        Raises:
            BadInputError: there is no app.
            NoSuchEntityError: there is no such button.
        """
        if self.app is None:
            raise BadInputError(
                "no app receives clicks: set its URL with PUT /slack/workspace"
                ' {"interactivity": {"url": …, "signingSecret": …}}'
            )
        channel, post = self._message(click)
        block, button = _button(post, click)
        url = self._response_url(channel, post, click.user)
        payload = self._payload(channel, post, click, url)
        now = self._clock.now()
        payload["actions"] = [_action(block, button, now, next(self._count))]
        status = await self._send(self.app, payload)
        return {
            "acknowledged": status is not None and 200 <= status < 300,
            "status": status,
            "channel": channel.id,
            "responseUrl": url,
        }

    def respond(self, name: str, message: object) -> None:
        """Accept what an app posts to a response_url.

        Args:
            name: the last part of the URL.
            message: the body as JSON.

        Raises:
            RefusedError: Slack refuses it, with this error code.
        """
        url = self._urls.get(name)
        if url is None or self._clock.now() > url.until:
            raise RefusedError("expired_url")
        if url.uses == _USES:
            raise RefusedError("used_url")
        if not isinstance(message, Mapping):
            raise RefusedError("invalid_payload")
        if is_true(message.get("delete_original")):
            url.channel.posts.pop(url.ts, None)
        elif found := judge(message):
            raise RefusedError(found.code, found.details)
        else:
            self._show(url, message)
        url.uses += 1

    def _show(self, url: _ResponseUrl, message: Table) -> None:
        now = self._clock.now()
        original = url.channel.posts.get(url.ts)
        if is_true(message.get("replace_original")) and original is not None:
            content = Content.of(message, original.ts)
            url.channel.keep(replace(original, content=content, edited_at=now))
            return
        ts = self._workspace.new_ts(now)
        is_for_all = message.get("response_type") == "in_channel"
        thread_ts = message.get("thread_ts")
        url.channel.keep(
            Post(
                ts=ts,
                bot=url.bot,
                content=Content.of(message, ts),
                thread_ts=thread_ts if isinstance(thread_ts, str) else None,
                only_for=None if is_for_all else url.user,
            )
        )

    def _message(self, click: Click) -> tuple[Channel, Post]:
        for channel in self._workspace.channels.values():
            is_searched = click.channel in {None, channel.id, channel.name}
            if is_searched and click.ts in channel.posts:
                return channel, channel.posts[click.ts]
        raise NoSuchEntityError(f"there is no message {click.ts}")

    def _response_url(self, channel: Channel, post: Post, user: str) -> str:
        name = f"{TEAM}-{next(self._count)}"
        until = self._clock.now() + _LIFETIME
        self._urls[name] = _ResponseUrl(channel, post.bot, post.ts, user, until)
        while len(self._urls) > _KEPT:
            del self._urls[next(iter(self._urls))]
        return f"{self.base_url}{ACTIONS}{name}"

    def _payload(
        self, channel: Channel, post: Post, click: Click, url: str
    ) -> dict[str, object]:
        name = click.user.lower()
        return {
            "type": "block_actions",
            "user": {
                "id": click.user,
                "username": name,
                "name": name,
                "team_id": TEAM,
            },
            "api_app_id": post.bot.app_id,
            "container": {
                "type": "message",
                "message_ts": post.ts,
                "channel_id": channel.id,
                "is_ephemeral": post.only_for is not None,
            },
            "trigger_id": f"{next(self._count)}.{TEAM}",
            "team": {"id": TEAM, "domain": "example"},
            "enterprise": None,
            "is_enterprise_install": False,
            "channel": {"id": channel.id, "name": channel.name},
            "message": post.as_json(),
            "state": {"values": {}},
            "response_url": url,
        }

    async def _send(self, app: Interactivity, payload: Table) -> int | None:
        """Send a click; return the status of the answer; None: no answer in time."""
        body = urlencode({"payload": orjson.dumps(payload).decode()}).encode()
        timestamp = str(int(self._clock.now()))
        headers = {
            "Content-Type": "application/x-www-form-urlencoded",
            "X-Slack-Request-Timestamp": timestamp,
            "X-Slack-Signature": signature(app.signing_secret, timestamp, body),
        }
        timeout = aiohttp.ClientTimeout(total=self.ack_seconds)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as http,
                http.post(
                    app.url, data=body, headers=headers, allow_redirects=False
                ) as response,
            ):
                await response.read()
                return response.status
        except (aiohttp.ClientError, TimeoutError):
            return None


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """Return Slack's signature of a request.

    Args:
        secret: the app's signing secret.
        timestamp: seconds since the epoch, as in the header.
        body: as it is sent.
    """
    signed = b":".join((b"v0", timestamp.encode(), body))
    return f"v0={hmac.new(secret.encode(), signed, sha256).hexdigest()}"


def _button(post: Post, click: Click) -> tuple[Table, Table]:
    """Return the block of the clicked button, and the button."""
    for block in _blocks(post):
        for element in _elements(block):
            is_block = click.block_id in {None, block.get("block_id")}
            if is_block and element.get("action_id") == click.action_id:
                return block, element
    raise NoSuchEntityError(f"message {click.ts} has no button {click.action_id}")


def _blocks(post: Post) -> Iterator[Table]:
    yield from post.content.blocks
    for attachment in post.content.attachments:
        blocks = attachment.get("blocks")
        yield from blocks if isinstance(blocks, list) else ()


def _elements(block: Table) -> Iterator[Table]:
    elements, accessory = block.get("elements"), block.get("accessory")
    for each in [*(elements if isinstance(elements, list) else ()), accessory]:
        if isinstance(each, Mapping) and each.get("type") == "button":
            yield each


def _action(block: Table, button: Table, now: float, count: int) -> dict[str, object]:
    names = ("action_id", "type", "text", "value", "style", "url")
    return {
        "block_id": block.get("block_id"),
        **{name: button[name] for name in names if name in button},
        "action_ts": f"{int(now)}.{count % 1_000_000:06d}",
    }
