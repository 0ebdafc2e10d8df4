"""Slack with a bot token: one message for each EventId, kept up to date.

    step ──▶ card ──▶ chat.postMessage, or chat.update of the message ──▶ stored
                  └─▶ a reply in its thread ──▶ stored

The result is stored after each call, so that a retry continues where it stopped. Slack
has no way to post exactly once: a crash between a post and storing it, or a lost
answer, leaves a second message, and only that second message is kept up to date.

Buttons are removed with the step that makes them useless. ``tend`` removes buttons that
become useless by time (past NotBefore).
"""

import asyncio
import logging
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import urlencode, urljoin
from weakref import WeakValueDictionary

import aiohttp
import orjson
from msgspec.structs import replace

from bridge.events.cloudevent import CloudEvent
from bridge.foundation.clock import Clock
from bridge.foundation.errors import (
    DeliveryError,
    OutboxError,
    PermanentDeliveryError,
    Reason,
    RefusedDeliveryError,
    TransientDeliveryError,
    UnprovenError,
)
from bridge.foundation.pace import Pace
from bridge.foundation.values import Secret
from bridge.foundation.workers import waking
from bridge.net.http_client import Answer, Request, exchange, failure, redact, revealed
from bridge.sinks.base import ApprovalAddress, Memory
from bridge.sinks.slack.blocks import Message, Signer, render, render_card, render_step
from bridge.sinks.slack.card import Card, after, key_of

# -- Slack's Web API: one call, and what its answer means for a delivery ---------------
#
# It is called with the bridge's own HTTP client. slack_sdk's client follows redirects,
# takes proxies from the environment and fails at answers that are not JSON.
#
#     ok: false ─┬─ transient    a later attempt may succeed
#                ├─ refused      everything to this channel with this token is refused
#                ├─ gone         the message no longer exists, or cannot be changed
#                ├─ permanent    this message will never be accepted
#                └─ unknown      transient: the meaning of a new error is not known
#
# Source, at docs.slack.dev: apis/web-api, apis/web-api/rate-limits, and the errors of
# reference/methods/chat.postMessage, chat.update and conversations.info.


_WORD = re.compile(r"[a-z][a-z0-9_]{0,59}")  # such as invalid_auth; never a token
_TOKEN = re.compile(r"[\x21-\x7e]+")

_CHANNEL_ID = re.compile(r"[CG][A-Z0-9]{7,}")  # a name cannot be looked up
_MAY_POST = frozenset({"chat:write", "chat:write:bot", "bot"})
_EVERYWHERE = "chat:write.public"  # also to public channels it is no member of
_LOOKS = "with the scope channels:read (private: groups:read) this is looked up:"

_THROTTLED = frozenset({"ratelimited", "rate_limited", "message_limit_exceeded"})
_GONE = frozenset({"cant_update_message", "edit_window_closed", "message_not_found"})
_NO_THREAD = frozenset(
    {
        "cannot_reply_to_message",
        "restricted_action_non_threadable_channel",
        "restricted_action_thread_locked",
        "thread_not_found",
    }
)
_UNAUTHORIZED = frozenset(
    {
        "access_denied",
        "access_limited",
        "accesslimited",
        "account_inactive",
        "ekm_access_denied",
        "enterprise_is_restricted",
        "invalid_auth",
        "missing_scope",
        "no_permission",
        "not_allowed_token_type",
        "not_authed",
        "org_login_required",
        "restricted_action",
        "restricted_action_read_only_channel",
        "restricted_action_thread_only_channel",
        "team_access_not_granted",
        "token_expired",
        "token_revoked",
        "two_factor_setup_required",
    }
)
_NO_CHANNEL = frozenset(
    {"channel_not_found", "is_archived", "is_inactive", "not_in_channel"}
)
_NOT_FOUND = frozenset({"deprecated_endpoint", "method_deprecated", "unknown_method"})
_TOO_LARGE = frozenset(
    {"metadata_too_large", "msg_blocks_too_long", "msg_too_long", "too_many_contents"}
)
_REJECTED = frozenset(
    {
        "as_user_not_supported",
        "attachment_payload_limit_exceeded",
        "block_mismatch",
        "duplicate_channel_not_found",
        "duplicate_message_not_found",
        "invalid_arg_name",
        "invalid_arguments",
        "invalid_array_arg",
        "invalid_attachments",
        "invalid_blocks",
        "invalid_blocks_format",
        "invalid_charset",
        "invalid_form_data",
        "invalid_json",
        "invalid_metadata_format",
        "invalid_metadata_schema",
        "invalid_post_type",
        "json_not_object",
        "markdown_text_conflict",
        "metadata_must_be_sent_from_app",
        "missing_post_type",
        "no_text",
        "slack_connect_blocked_file_type",
        "too_many_attachments",
        "user_not_in_channel",
    }
)


class MessageGoneError(PermanentDeliveryError):
    """The message no longer exists, or may not be changed."""


class NoThreadError(PermanentDeliveryError):
    """The message can have no replies."""


class NoChannelError(RefusedDeliveryError):
    """The bot cannot post: the channel does not exist, or the bot is not a member."""


_MEANINGS: Sequence[tuple[frozenset[str], type[DeliveryError], Reason]] = (
    (_GONE, MessageGoneError, Reason.NOT_FOUND),
    (_NO_THREAD, NoThreadError, Reason.REJECTED),
    (_NO_CHANNEL, NoChannelError, Reason.NOT_FOUND),
    (_UNAUTHORIZED, RefusedDeliveryError, Reason.UNAUTHORIZED),
    (_NOT_FOUND, RefusedDeliveryError, Reason.NOT_FOUND),
    (_TOO_LARGE, PermanentDeliveryError, Reason.TOO_LARGE),
    (_REJECTED, PermanentDeliveryError, Reason.REJECTED),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlackApi:
    """The Web API, as one bot calls it.

    Attributes:
        url: the base URL of the methods, such as ``https://slack.com/api/``.
        token: the bot's token; read at each call, so that a rotated one is used.
        timeout: seconds for one call.
        clock: the time, see ``exchange``.
    """

    http: aiohttp.ClientSession
    url: str
    token: Secret = field(repr=False)
    timeout: float
    clock: Clock

    @property
    def target(self) -> str:
        """The name of Slack in errors."""
        return redact(self.url)

    async def call(
        self, method: str, arguments: Mapping[str, object]
    ) -> dict[str, object]:
        """Call a method and return its answer.

        Raises:
            DeliveryError: the method failed, or its result is not known.
        """
        return read(await self._answer("POST", method, orjson.dumps(arguments)))

    async def owner(self) -> tuple[dict[str, object], frozenset[str]]:
        """Return the owner of the token, and its scopes; none are known = empty.

        Raises:
            DeliveryError: as ``call``.
        """
        answer = await self._answer("POST", "auth.test", b"{}")
        scopes = answer.headers.get("X-OAuth-Scopes", "").split(",")
        found = frozenset(filter(None, map(str.strip, scopes)))
        return read(answer), found

    async def about(self, channel: str) -> Mapping[str, object]:
        """Return what Slack says about a channel.

        Raises:
            DeliveryError: as ``call``.
        """
        # This method takes no JSON.
        query = f"conversations.info?{urlencode({'channel': channel})}"
        found = read(await self._answer("GET", query, b"")).get("channel")
        return found if isinstance(found, dict) else {}

    async def _answer(self, verb: str, method: str, body: bytes) -> Answer:
        request = Request(
            method=verb,
            url=urljoin(self.url, method),
            headers={
                "Authorization": f"Bearer {self._revealed()}",
                "Content-Type": "application/json; charset=utf-8",
            },
            body=body,
            timeout=self.timeout,
        )
        return await exchange(self.http, request, self.target, self.clock.now)

    def _revealed(self) -> str:
        token = revealed(self.token, "token")
        if not _TOKEN.fullmatch(token):
            text = "token: it holds spaces or other characters that no token has"
            raise RefusedDeliveryError(text, Reason.UNAUTHORIZED)
        return token


def read(answer: Answer) -> dict[str, object]:
    """Return the answer of a method.

    Raises:
        DeliveryError: the method failed.
    """
    body = _object(answer.body)
    error_code = body.get("error")
    is_word = isinstance(error_code, str) and _WORD.fullmatch(error_code)
    word = str(error_code) if is_word else ""
    target, wish = answer.target, answer.retry_after
    if error := failure(answer.status, target=target, retry_after=wish, detail=word):
        raise error
    if body.get("ok") is True:
        return body
    if body.get("ok") is not False:
        text = f"{target} did not answer in Slack's format: is a proxy in between?"
        raise TransientDeliveryError(text, Reason.SERVER)
    raise meaning(word, f"{target} answered {word or 'with an error'}", wish)


def meaning(word: str, text: str, retry_after: float | None) -> DeliveryError:
    """Return what an error of Slack means for a delivery."""
    for words, kind, reason in _MEANINGS:
        if word in words:
            return kind(text, reason)
    reason = Reason.THROTTLED if word in _THROTTLED else Reason.SERVER
    return TransientDeliveryError(text, reason, retry_after=retry_after)


def _object(body: bytes) -> dict[str, object]:
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


# -- Slack with a bot token: one message for each EventId, kept up to date -------------


log = logging.getLogger(__name__)

_QUIET = 1.0  # seconds; deliveries go before the removal of buttons
_LOOK_AGAIN = 60.0  # seconds, because the wall clock may be set meanwhile
_TRY_AGAIN = 60.0
_NOTHING = 3600.0


@dataclass(slots=True, kw_only=True)
class SlackBot:
    """Posts to one channel, and keeps its messages up to date.

    Attributes:
        channel: as configured.
        approvals: the approval entity; None = there is none.
        button_secret: the key that signs buttons; None = no buttons.
        pace: the relay's rate limit: every message beyond one for a delivery counts.
    """

    api: SlackApi
    channel: str
    approvals: ApprovalAddress | None
    button_secret: Secret | None = field(repr=False)
    memory: Memory
    clock: Clock
    pace: Pace
    _deadlines: dict[str, float] = field(default_factory=dict)
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _locks: WeakValueDictionary[str, asyncio.Lock] = field(
        default_factory=WeakValueDictionary
    )
    _idle_from: float = field(init=False)

    def __post_init__(self) -> None:
        self._idle_from = self.clock.monotonic() + _QUIET

    async def deliver(self, event: CloudEvent) -> None:
        """Update the event's message, and reply in its thread; see ``Sink.deliver``.

        Raises:
            DeliveryError: as ``bridge.sinks.slack.bot`` maps it; also if the memory
                cannot be read or written now.
        """
        key = key_of(event)
        try:
            is_shown = key is not None and await self._show(key, event)
        except OutboxError as error:
            raise TransientDeliveryError(str(error), Reason.SERVER) from error
        if not is_shown:
            await self._post(render(event, self.clock.now()), event)

    async def tend(self, stop: asyncio.Event) -> None:
        """Remove buttons past NotBefore, also buttons from before a restart."""
        async with waking(stop, self._news):
            is_known = False
            while not stop.is_set():
                self._news.clear()
                try:
                    if not is_known:
                        await self._remember_deadlines()
                        is_known = True
                    wait = await self.step()
                except OutboxError as error:
                    log.warning(
                        "Slack buttons cannot be checked", extra={"fault": str(error)}
                    )
                    wait = _TRY_AGAIN
                await self.clock.wait(self._news, wait)

    async def step(self) -> float:
        """Remove the buttons of one message, if one is due and no delivery waits.

        Returns:
            Seconds until the next check.

        Raises:
            OutboxError: the memory cannot be read or written.
        """
        if not self._deadlines:
            return _NOTHING
        key = min(self._deadlines, key=lambda each: self._deadlines[each])
        left = self._deadlines[key] - self.clock.now().timestamp()
        if left > 0:
            return min(left, _LOOK_AGAIN)
        free = max(self._idle_from, self.pace.opens_at + _QUIET)
        if (gap := free - self.clock.monotonic()) > 0:
            return gap
        self.pace.take(self.clock.monotonic())
        async with self._lock(key):
            await self._disarm(key)
        return 0.0

    async def reach(self) -> str:
        """Ask Slack for the owner of the token, and whether it may post.

        Raises:
            DeliveryError: the token has no owner, or may not post to the channel, or
                Slack cannot be reached.
            UnprovenError: the token is good; whether it may post is not known.
        """
        answer, scopes = await self.api.owner()
        names = [answer.get(name) for name in ("user", "team")]
        user, team = (n if isinstance(n, str) else "?" for n in names)
        found = f"{self.api.target} accepts the token: {user} in {team}"
        if scopes and scopes.isdisjoint(_MAY_POST):
            text = (
                f"{self.api.target}: the token of {user} has no scope chat:write; add "
                "it to the app, and install the app again"
            )
            raise RefusedDeliveryError(text, Reason.UNAUTHORIZED)
        if not _CHANNEL_ID.fullmatch(self.channel):
            advice = "only the id of a channel, such as C012AB3CD, can be looked up:"
            raise UnprovenError(f"{found}; channel not looked up", advice)
        return f"{found}, who may post to {await self._place(found, user, scopes)}"

    async def _place(self, found: str, user: str, scopes: Collection[str]) -> str:
        """Return the name of the channel, if the bot may post there."""
        try:
            channel = await self.api.about(self.channel)
        except NoChannelError as error:
            where = f"no channel {self.channel}, or it is private"
            raise NoChannelError(
                _invite(f"{error}: {where}", user), error.reason
            ) from None
        except RefusedDeliveryError as error:
            if "missing_scope" not in str(error):
                raise
            raise UnprovenError(f"{found}; channel not looked up", _LOOKS) from None
        name = str(channel.get("name") or self.channel)
        if channel.get("is_archived") is True:
            text = f"{self.api.target}: the channel {name} is archived"
            raise NoChannelError(text, Reason.NOT_FOUND)
        is_open = _EVERYWHERE in scopes and channel.get("is_private") is False
        if channel.get("is_member") is False and not is_open:
            text = f"{self.api.target}: {user} is no member of {name}"
            raise NoChannelError(_invite(text, user), Reason.NOT_FOUND)
        return name

    # -- the message of an EventId ---------------------------------------------

    async def _show(self, key: str, event: CloudEvent) -> bool:
        """Update the message of the event's EventId; False = there is none."""
        async with self._lock(key):
            kept = Card.from_bytes(await self.memory.recall(key))
            card = after(kept, event)
            if card is None:
                return False
            if card != kept:
                card = await self._draw(key, card, event)
            if card.replied != event.id:
                await self._reply(key, card, event)
        return True

    async def _draw(self, key: str, card: Card, event: CloudEvent | None) -> Card:
        """Post a card, or update its message; return it with its place in Slack."""
        now = self.clock.now()
        signer = self._signer() if card.can_be_decided(now) else None
        face = render_card(card, now, signer, self.approvals)
        if card.ts:
            try:
                await self._update(card, face.message)
            except (MessageGoneError, NoChannelError) as error:
                if event is None:
                    raise
                log.info("Slack message posted again", extra=_about(key, error))
                card = replace(card, channel="", ts="")
        if not card.ts and event is not None:
            channel, ts = await self._post(face.message, event)
            card = replace(card, channel=channel, ts=ts)
            self.pace.take(self.clock.monotonic())  # the reply is a message, too
        card = replace(card, buttons_until=face.until)
        await self._keep(key, card)
        return card

    async def _reply(self, key: str, card: Card, event: CloudEvent) -> None:
        message = render_step(event, self.clock.now())
        try:
            await self._post(message, event, channel=card.channel, thread_ts=card.ts)
        except (NoThreadError, NoChannelError) as error:
            log.info("reply in Slack thread not possible", extra=_about(key, error))
        await self._keep(key, replace(card, replied=event.id))

    async def _disarm(self, key: str) -> None:
        """Redraw a message without buttons; try later if that fails now."""
        card = Card.from_bytes(await self.memory.recall(key))
        if card is None or card.buttons_until is None:
            self._deadlines.pop(key, None)
            return
        try:
            await self._draw(key, card, None)
        except (PermanentDeliveryError, NoChannelError) as error:
            log.info("Slack buttons cannot be removed", extra=_about(key, error))
            await self._keep(key, replace(card, buttons_until=None))
        except DeliveryError as error:
            log.warning("Slack buttons not removed yet", extra=_about(key, error))
            wish = getattr(error, "retry_after", None) or 0.0
            delay = max(wish, _TRY_AGAIN)
            self._deadlines[key] = self.clock.now().timestamp() + delay

    async def _remember_deadlines(self) -> None:
        for key, value in (await self.memory.all()).items():
            card = Card.from_bytes(value)
            if card is not None and card.buttons_until is not None:
                self._deadlines.setdefault(key, card.buttons_until)

    async def _keep(self, key: str, card: Card) -> None:
        await self.memory.keep(key, card.to_bytes())
        if card.buttons_until is None:
            self._deadlines.pop(key, None)
        else:
            self._deadlines[key] = card.buttons_until
        self._news.set()

    def _lock(self, key: str) -> asyncio.Lock:
        return self._locks.setdefault(key, asyncio.Lock())

    def _signer(self) -> Signer | None:
        if self.approvals is None or self.button_secret is None:
            return None
        secret = revealed(self.button_secret, "button_secret")
        return Signer(address=self.approvals, secret=secret)

    # -- calls -----------------------------------------------------------------

    async def _post(
        self, message: Message, event: CloudEvent, **where: str
    ) -> tuple[str, str]:
        """Post a message; return its channel and its ts."""
        arguments = {"channel": self.channel, **marked(message, event), **where}
        answer = await self.api.call("chat.postMessage", arguments)
        channel, ts = answer.get("channel"), answer.get("ts")
        if isinstance(channel, str) and isinstance(ts, str) and ts:
            return channel, ts
        text = f"{self.api.target} answered without the channel and ts of the message"
        raise TransientDeliveryError(text, Reason.SERVER)

    async def _update(self, card: Card, message: Message) -> None:
        changed = {name: message[name] for name in ("text", "blocks")}
        await self.api.call(
            "chat.update", {"channel": card.channel, "ts": card.ts, **changed}
        )


def _invite(text: str, user: str) -> str:
    return f"{text}: write /invite @{user} in the channel"


def _about(key: str, error: DeliveryError) -> dict[str, str]:
    return {"eventId": key, "fault": str(error)}


def first_message(
    event: CloudEvent,
    now: datetime,
    signer: Signer | None,
    approvals: ApprovalAddress | None = None,
) -> Message:
    """Return the first message for an EventId."""
    card = after(None, event) if key_of(event) is not None else None
    if card is None:
        return marked(render(event, now), event)
    return marked(render_card(card, now, signer, approvals).message, event)


def marked(message: Message, event: CloudEvent) -> Message:
    """Return a message with metadata, by which programs can recognise it."""
    payload = {"id": event.id, "type": event.type}
    metadata = {"event_type": "sebridge_event", "event_payload": payload}
    return {**message, "metadata": metadata}
