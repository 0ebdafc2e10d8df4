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
from dataclasses import dataclass, field
from datetime import datetime
from weakref import WeakValueDictionary

from msgspec.structs import replace

from bridge.events.cloudevent import CloudEvent
from bridge.foundation.clock import Clock
from bridge.foundation.errors import (
    DeliveryError,
    OutboxError,
    PermanentDeliveryError,
    Reason,
    TransientDeliveryError,
)
from bridge.foundation.rate_limit import Pace
from bridge.foundation.values import Secret
from bridge.foundation.workers import waking
from bridge.net.http_client import revealed
from bridge.sinks.base import ApprovalAddress, Memory
from bridge.sinks.slack.api import (
    MessageGoneError,
    NoChannelError,
    NoThreadError,
    SlackApi,
)
from bridge.sinks.slack.blocks import Message, Signer, render, render_card, render_step
from bridge.sinks.slack.card import Card, after, key_of

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
            DeliveryError: as ``bridge.sinks.slack.api`` maps it; also if the memory
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
        """Ask Slack for the owner of the token.

        Raises:
            DeliveryError: the token has no owner, or Slack cannot be reached.
        """
        answer = await self.api.call("auth.test", {})
        names = [answer.get(name) for name in ("user", "team")]
        user, team = (n if isinstance(n, str) else "?" for n in names)
        return f"{self.api.target} accepts the token: {user} in {team}"

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
