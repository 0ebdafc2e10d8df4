"""Sends messages to one Service Bus entity; used by the sink and for replies.

Problems of the SDK, and what this file does about them:

* A sender breaks or hangs if two coroutines use it. So only one sends at a time, and it
  sends all messages that wait at that moment, as one batch.
* To pack a batch takes the SDK longer than to send it. So a batch is packed while the
  one before it is on its way.
* Opening takes half a second. So a link is opened once and kept open (``kept_link``).
  Networks drop idle connections silently. So an idle link is opened again every few
  minutes.
* A connection that was begun during a network failure may hang even after the failure.
  So another one is begun every 3 s, and the first one that opens is used.
* Without a timeout, a send to a silent peer never ends. After a timeout, it is unknown
  whether the message was stored: it is sent again with the same MessageId.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from enum import Enum
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from bridge.events.cloudevent import hash32
from bridge.foundation.errors import DeliveryError
from bridge.servicebus.errors import (
    as_delivery_error,
    delivery_errors,
    failures,
    is_about_batch,
    is_too_large,
    leaves_link_whole,
)
from bridge.servicebus.kept_link import KeptLink, Waiting, linked, pack_ahead
from bridge.servicebus.namespace import TIMINGS, NamespaceConfig, Timings

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusMessage

_MOST_AT_ONCE = 100
_LONGEST_ID = 128


def short_id(value: str) -> str:
    """Return ``value`` as a MessageId or SessionId; a hash if it is too long."""
    return value if len(value) <= _LONGEST_ID else hash32(value)


class Message(Struct, frozen=True, kw_only=True):
    """A message to send, with the properties of Service Bus."""

    body: bytes
    content_type: str
    message_id: str
    subject: str | None = None
    correlation_id: str | None = None
    session_id: str | None = None
    reply_to: str | None = None
    reply_to_session_id: str | None = None
    time_to_live: timedelta | None = None
    application_properties: Mapping[str, str | int] = field(default_factory=dict)


class _Mix(Enum):
    """Which messages the entity takes in one transfer, as its answers have shown."""

    ANY = "any"
    ONE_SESSION = "one session"
    NONE = "none"


class Sender:
    """A sender to one entity, opened at the first use and again after errors.

    Args:
        config: the connection to the namespace; secrets are read at each opening.
        entity: the queue or topic.
        timings: the time limits of Service Bus.

    Attributes:
        link: the link, kept open between messages.
        most: the most messages in one transfer.
    """

    def __init__(
        self, config: NamespaceConfig, entity: str, timings: Timings = TIMINGS
    ) -> None:
        self._target = f"Service Bus entity {entity}"
        self._config = config
        self._guard = asyncio.Lock()
        self._waiting: deque[Waiting] = deque()
        self.link = KeptLink(partial(linked, config, entity), timings)
        self.most = _MOST_AT_ONCE
        self._mix = _Mix.ANY

    @property
    def is_idle(self) -> bool:
        """Whether no message waits or is being sent."""
        return not self._waiting and not self._guard.locked()

    async def send(self, message: Message) -> None:
        """Send a message; return when the broker has stored it.

        Raises:
            DeliveryError: see ``bridge.servicebus.errors``.
        """
        (error,) = await self.send_many([message])
        if error is not None:
            raise error

    async def send_many(
        self, messages: Sequence[Message]
    ) -> Sequence[DeliveryError | None]:
        """Send messages, several in one transfer; return the result of each.

        The errors are those of ``send``.
        """
        mine = [Waiting(_sdk_message(one), len(one.body)) for one in messages]
        self._waiting.extend(mine)
        try:
            sender = self.link.sender
            if len(mine) > 1 and self._guard.locked() and sender is not None:
                await pack_ahead(sender, mine)
            async with self._guard:
                # The previous holder of the guard may have sent these messages in its
                # batch. If that holder was cancelled, no result was set: send again.
                while not all(one.is_done for one in mine):
                    await self._flush()
        finally:
            for one in mine:
                if not one.is_done:
                    self._waiting.remove(one)
        return [self._meaning(one) for one in mine]

    async def reach(self) -> None:
        """Open a link to the entity and send nothing.

        Raises:
            DeliveryError: as ``send``.
        """
        with delivery_errors(self._target, host=self._config.host_if_known):
            async with self._guard:
                await self.link.reopen()

    async def keep_warm(self) -> None:
        """Open the sender, and again each time it was idle, until cancelled.

        Errors are ignored here: the next message shows them.
        """
        while True:
            every, idle = self.link.timings.idle, self.link.idle
            if idle >= every and self.is_idle:
                with suppress(*failures()):
                    await self.reach()
            if _is_cancelled():
                return
            await asyncio.sleep(max(every - idle, every / 10))

    async def close(self) -> None:
        """Close the sender, after the batch in flight."""
        async with self._guard:
            await self.link.drop()

    async def _flush(self) -> None:
        """Send one batch of the waiting messages, and set their results."""
        batch = _together(self._waiting, self._mix, self.most)
        try:
            self._settle(batch[: await self.link.send(batch)])
        except failures() as error:
            if len(batch) == 1 or not is_about_batch(error):
                self._settle(batch, error)
            elif is_too_large(error):
                await self._one_by_one(batch)
            else:
                await self._apart(batch)

    async def _apart(self, batch: list[Waiting]) -> None:
        """Send the messages of a refused batch in smaller transfers.

        If the entity then accepts all of them, it takes such batches neither now nor
        later. If it refuses one of them alone, that message may have been the cause.
        """
        mix = _less(batch)
        while left := [one for one in batch if not one.is_done]:
            part = _together(left, mix, self.most)
            try:
                self._settle(part[: await self.link.send(part)])
            except failures() as error:
                if not leaves_link_whole(error):
                    self._settle(left, error)
                elif len(part) == 1 or not is_about_batch(error):
                    self._settle(part, error)
                elif is_too_large(error):
                    await self._one_by_one(part)
                else:
                    mix = _Mix.NONE
        if all(one.error is None for one in batch):
            self._mix = mix

    async def _one_by_one(self, batch: list[Waiting]) -> None:
        for place, waiting in enumerate(batch):
            try:
                self._settle([waiting][: await self.link.send([waiting])])
            except failures() as error:
                if not leaves_link_whole(error):
                    self._settle(batch[place:], error)
                    return
                self._settle([waiting], error)

    def _settle(self, batch: list[Waiting], error: Exception | None = None) -> None:
        for waiting in batch:
            waiting.is_done, waiting.error = True, error
            if waiting in self._waiting:  # else its caller was cancelled
                self._waiting.remove(waiting)

    def _meaning(self, one: Waiting) -> DeliveryError | None:
        if one.error is None:
            return None
        host = self._config.host_if_known
        error = as_delivery_error(one.error, self._target, size=one.size, host=host)
        error.__cause__ = one.error
        return error


class Senders:
    """A sender for each entity; those beyond a limit that are idle are closed.

    Args:
        most: how many stay open; each is a connection.
        timings: the time limits of Service Bus.
    """

    def __init__(self, most: int, timings: Timings = TIMINGS) -> None:
        self._most = most
        self._timings = timings
        self._open: OrderedDict[tuple[NamespaceConfig, str], Sender] = OrderedDict()

    @property
    def entities(self) -> list[str]:
        """The entities with an open sender, in lower case; the last used one last."""
        return [entity for _, entity in self._open]

    async def send(
        self, config: NamespaceConfig, entity: str, message: Message
    ) -> None:
        """Send a message to an entity of a namespace; see ``Sender.send``.

        Raises:
            DeliveryError: as ``Sender.send``.
        """
        place = (config, entity.lower())
        if place not in self._open:
            self._open[place] = Sender(config, entity, self._timings)
        self._open.move_to_end(place)
        await self._open[place].send(message)
        surplus = max(len(self._open) - self._most, 0)
        idle = [place for place, sender in self._open.items() if sender.is_idle]
        for one in idle[:surplus]:  # the least recently used come first
            await self._open.pop(one).close()

    async def close(self) -> None:
        """Close all senders, after the messages in flight."""
        while self._open:
            _, sender = self._open.popitem()
            await sender.close()


def _together(waiting: Sequence[Waiting], mix: _Mix, most: int) -> list[Waiting]:
    """Return the messages for the next transfer that the entity takes together."""
    first = waiting[0]
    if mix is _Mix.NONE:
        return [first]
    is_any = mix is _Mix.ANY
    fitting = (one for one in waiting if is_any or one.session == first.session)
    return list(islice(fitting, most))


def _less(batch: list[Waiting]) -> _Mix:
    """Return which messages of a refused batch to send together.

    An entity with partitions refuses a batch with several sessions.
    """
    has_several = len({one.session for one in batch}) > 1
    return _Mix.ONE_SESSION if has_several else _Mix.NONE


def _is_cancelled() -> bool:
    """Return whether this task was cancelled.

    Before Python 3.12, ``wait_for``, which the SDK uses, may swallow a cancellation.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _sdk_message(message: Message) -> "ServiceBusMessage":
    from azure.servicebus import ServiceBusMessage  # noqa: PLC0415  costs memory

    # the SDK's type for these properties is not public
    properties: Any = dict(message.application_properties)
    return ServiceBusMessage(
        message.body,
        content_type=message.content_type,
        message_id=message.message_id,
        subject=message.subject,
        correlation_id=message.correlation_id,
        session_id=message.session_id,
        reply_to=message.reply_to,
        reply_to_session_id=message.reply_to_session_id,
        time_to_live=message.time_to_live,
        application_properties=properties,
    )
