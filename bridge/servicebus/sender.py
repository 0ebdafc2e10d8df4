"""Sends messages to one Service Bus entity; used by the sink and for replies.

Problems of the SDK, and what this file does about them:

* A sender breaks or hangs if two coroutines use it. So only one sends at a time, and it
  sends all messages that wait at that moment, as one batch.
* To pack a batch takes the SDK longer than to send it. So a batch is packed while the
  one before it is on its way.
* Opening takes half a second. So a link is opened once and kept open (``KeptLink``).
  Networks drop idle connections silently. So an idle link is opened again every few
  minutes.
* A connection that was begun during a network failure may hang even after the failure.
  So another one is begun every 3 s, and the first one that opens is used.
* Without a timeout, a send to a silent peer never ends. After a timeout, it is unknown
  whether the message was stored: it is sent again with the same MessageId.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
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
from bridge.servicebus.namespace import TIMINGS, NamespaceConfig, Timings, open_handle

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
    from azure.servicebus.aio import ServiceBusSender

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


class Waiting(Struct, eq=False):
    """A message for which a caller of ``send`` waits, and its result."""

    message: "ServiceBusMessage"
    size: int
    pack: "Pack | None" = None
    is_done: bool = False
    error: Exception | None = None

    @property
    def session(self) -> str | None:
        """The SessionId, which is the partition key, too."""
        return self.message.session_id


class Pack(Struct):
    """A batch that was packed while another one was on its way.

    Attributes:
        sender: the link that must send the batch; another link may accept less.
        members: the messages in the batch; ``pack`` of the first one is this batch.
        packed: the batch of the SDK.
    """

    sender: "ServiceBusSender"
    members: list[Waiting]
    packed: "ServiceBusMessageBatch"

    def fits(self, sender: "ServiceBusSender", batch: list[Waiting]) -> bool:
        """Return whether ``batch`` begins with the packed messages, for this link."""
        is_first = batch[: len(self.members)] == self.members
        return sender is self.sender and is_first


async def transfer(
    sender: "ServiceBusSender", batch: list[Waiting], seconds: float
) -> int:
    """Send as many messages as fit into one transfer; return how many.

    Args:
        sender: an open link.
        batch: the messages in their order; at least one.
        seconds: the time limit of the transfer.
    """
    if len(batch) > 1:
        pack, batch[0].pack = batch[0].pack, None
        if pack is None or not pack.fits(sender, batch):
            pack = await _packed(sender, batch)
        count = len(pack.members)
        if count > 1:
            await sender.send_messages(pack.packed, timeout=seconds)
            return count
    await sender.send_messages(batch[0].message, timeout=seconds)
    return 1


async def pack_ahead(sender: "ServiceBusSender", batch: list[Waiting]) -> None:
    """Pack a batch for later; errors show when it is sent."""
    with suppress(*failures()):
        batch[0].pack = await _packed(sender, batch)


async def _packed(sender: "ServiceBusSender", batch: list[Waiting]) -> Pack:
    """Pack as many messages as fit into one transfer."""
    packed, members = await sender.create_message_batch(), list[Waiting]()
    for waiting in batch:
        try:
            packed.add_message(waiting.message)
        except ValueError:  # MessageSizeExceededError, a subclass: the batch is full
            break
        members.append(waiting)
    return Pack(sender, members, packed)


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


# -- Keeps the link of a sender open from one message to the next ----------------------
#
# A link may be dead when it is used (detached, token expired, connection dropped).
# Then, and only then, a second attempt follows at once, on a new link. After any error
# that is not about the message itself, the link is closed.


Link = tuple[AsyncExitStack, "ServiceBusSender"]  # the stack closes the link


async def linked(config: NamespaceConfig, entity: str) -> Link:
    """Open a link, and return it with the stack that closes it."""
    handle = open_handle(config, lambda client: client.get_queue_sender(entity))
    async with AsyncExitStack() as stack:
        sender = await stack.enter_async_context(handle)
        return stack.pop_all(), sender


async def close(stack: AsyncExitStack, timings: Timings) -> None:
    """Close a link, and ignore errors."""
    with suppress(*failures()):
        async with asyncio.timeout(timings.close):
            await stack.aclose()


async def first_open(
    link: Callable[[], Coroutine[None, None, Link]], timings: Timings
) -> Link:
    """Begin to open a link every ``timings.beside`` seconds; return the first open one.

    Raises:
        Exception: the error of the first attempt that ends.
    """
    tasks = set[asyncio.Task[Link]]()
    try:
        while True:
            tasks.add(asyncio.create_task(link()))
            ended, _ = await asyncio.wait(
                tasks, timeout=timings.beside, return_when=asyncio.FIRST_COMPLETED
            )
            if ended:
                first = ended.pop()
                tasks.remove(first)
                return first.result()
    finally:
        await _give_up(tasks, timings)


async def _give_up(tasks: set[asyncio.Task[Link]], timings: Timings) -> None:
    """Cancel the openings, and close the links that are open already."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=timings.close)
    for task in tasks:
        if not task.done():
            task.add_done_callback(_forget)
        elif not task.cancelled() and task.exception() is None:
            await close(task.result()[0], timings)


def _forget(task: asyncio.Task[Link]) -> None:
    """Read the error of a cancelled opening, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()


class KeptLink:
    """A link that is opened at the first use, and again after errors.

    Only one coroutine may use it at a time.

    Args:
        link: opens a link.
        timings: the time limits of Service Bus; may be replaced later.

    Attributes:
        sender: the open sender of the SDK; None = the link is not open.
    """

    def __init__(
        self, link: Callable[[], Coroutine[None, None, Link]], timings: Timings
    ) -> None:
        self._link = link
        self.timings = timings
        self.sender: ServiceBusSender | None = None
        self._stack = AsyncExitStack()
        self._is_suspect = False
        self._used = float("-inf")

    @property
    def idle(self) -> float:
        """Seconds since the link was used or opened."""
        return _now() - self._used

    async def send(self, batch: list[Waiting]) -> int:
        """Send as many of ``batch`` as fit into one transfer; return how many.

        Raises:
            Exception: as ``bridge.servicebus.errors.failures``.
        """
        if self.sender is None or self._is_suspect:
            return await self._send_anew(batch)
        try:
            async with asyncio.timeout(self.timings.stale):
                return await self._transmit(self.sender, batch)
        except failures() as error:
            if leaves_link_whole(error):
                raise
            return await self._send_anew(batch)

    async def reopen(self) -> None:
        """Open a new link, and send nothing.

        Raises:
            Exception: as ``send``.
        """
        async with asyncio.timeout(self.timings.attempt):
            await self.drop()
            await self._open()

    async def drop(self) -> None:
        """Close the link, and ignore errors."""
        if self.sender is None:
            return
        stack, self._stack = self._stack, AsyncExitStack()
        self.sender, self._is_suspect = None, False
        await close(stack, self.timings)

    async def _send_anew(self, batch: list[Waiting]) -> int:
        await self.drop()
        async with asyncio.timeout(self.timings.attempt):
            return await self._transmit(await self._open(), batch)

    async def _transmit(self, sender: "ServiceBusSender", batch: list[Waiting]) -> int:
        self._is_suspect = True  # stays so after a cancellation, which may break it
        try:
            sent = await transfer(sender, batch, self.timings.attempt)
        except failures() as error:
            self._is_suspect = not leaves_link_whole(error)
            raise
        self._is_suspect = False
        self._used = _now()
        return sent

    async def _open(self) -> "ServiceBusSender":
        self._stack, self.sender = await first_open(self._link, self.timings)
        self._used = _now()
        return self.sender


def _now() -> float:
    return asyncio.get_running_loop().time()
