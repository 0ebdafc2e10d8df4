"""Sends messages to one Service Bus entity; shared by the sink and by replies.

What the SDK asks of its users, and what is done about it here:

* A sender breaks, and hangs, when two coroutines use it: one at a time does, and it
  takes along all that wait meanwhile, as one batch.
* Opening costs half a second, so a sender is opened once and kept; one that was idle
  for minutes, which networks drop without a word, is opened anew before it is needed.
* It may be found dead when next used (an idle link is detached, a token expires, a
  connection is dropped): then, and only then, there is a quick second attempt.
* A connection that was begun while the network was away may hang although it is back:
  another is begun beside it every 3 s, and the first one that stands is used.
* Without a timeout a send to a peer that went silent never ends. After one it is
  not known whether the message was stored: the same MessageId goes out again.
* After any error but one about the message itself, a sender is closed and made anew.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any

from bridge.foundation.hashing import hash32
from bridge.servicebus.errors import (
    as_delivery_error,
    delivery_errors,
    failures,
    is_about_batch,
    is_too_large,
    leaves_link_whole,
)
from bridge.servicebus.namespace import NamespaceConfig, open_handle

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
    from azure.servicebus.aio import ServiceBusSender

_ATTEMPT_SECONDS = 10.0  # to open a sender and send with it
_STALE_SECONDS = 5.0  # to find out that a sender is dead
_BESIDE_SECONDS = 3.0  # until another link is opened beside one that hangs
_CLOSE_SECONDS = 1.0
_WARM_SECONDS = 200.0  # load balancers of Azure forget a connection after 4 minutes
_MOST_AT_ONCE = 100
_LONGEST_ID = 128


def short_id(value: str) -> str:
    """Return ``value`` as Service Bus takes it for a MessageId or SessionId."""
    return value if len(value) <= _LONGEST_ID else hash32(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message on its way out, in the words of Service Bus."""

    body: bytes
    content_type: str
    message_id: str
    subject: str | None = None
    correlation_id: str | None = None
    session_id: str | None = None
    reply_to: str | None = None
    reply_to_session_id: str | None = None
    time_to_live: timedelta | None = None
    application_properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Waiting:
    """A message that somebody waits for, and what became of it."""

    message: "ServiceBusMessage"
    size: int
    is_done: bool = False
    error: Exception | None = None


_Link = tuple[AsyncExitStack, "ServiceBusSender"]  # what closes it, and the link


class Sender:
    """A sender to one entity, opened lazily and opened anew when it broke.

    Args:
        config: how the namespace is reached; secrets are read at each opening.
        entity: the queue or topic: the wire knows no difference.
        beside: seconds until another link is opened beside one that hangs.
    """

    def __init__(
        self, config: NamespaceConfig, entity: str, beside: float = _BESIDE_SECONDS
    ) -> None:
        self._config = config
        self._entity = entity
        self._target = f"Service Bus entity {entity}"
        self._guard = asyncio.Lock()
        self._waiting: deque[_Waiting] = deque()
        self._stack = AsyncExitStack()
        self._sender: ServiceBusSender | None = None
        self._is_suspect = False
        self._beside_seconds = beside
        self._may_batch = True
        self._used = float("-inf")

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits for it."""
        return not self._waiting and not self._guard.locked()

    async def send(self, message: Message) -> None:
        """Return when the broker has stored ``message``.

        Raises:
            DeliveryError: as ``namespace_errors`` maps it.
        """
        waiting = _Waiting(_sdk_message(message), len(message.body))
        self._waiting.append(waiting)
        try:
            async with self._guard:
                # Whoever had the guard before may have taken this one along. If he
                # was cancelled, nobody was told anything, and all of it goes again.
                while not waiting.is_done:
                    await self._flush()
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
        if waiting.error is not None:
            error = waiting.error
            raise as_delivery_error(error, self._target, size=waiting.size) from error

    async def reach(self) -> None:
        """Open a link to the entity and send nothing.

        Raises:
            DeliveryError: as ``send``.
        """
        with delivery_errors(self._target):
            async with self._guard, asyncio.timeout(_ATTEMPT_SECONDS):
                await self._drop()
                await self._open()

    async def keep_warm(self, every: float = _WARM_SECONDS) -> None:
        """Open the sender, and anew whenever it was idle, until cancelled.

        What goes wrong is of no matter: the next message finds it out.

        Args:
            every: seconds of idleness.
        """
        while True:
            idle = _now() - self._used
            if idle >= every and self.is_idle:
                with suppress(*failures()):
                    await self.reach()
            if _is_cancelled():
                return
            await asyncio.sleep(max(every - idle, every / 10))

    async def close(self) -> None:
        """Close after what is under way."""
        async with self._guard:
            await self._drop()

    async def _flush(self) -> None:
        """Send what waits, or some of it, and settle what was sent or failed."""
        most = _MOST_AT_ONCE if self._may_batch else 1
        batch = list(islice(self._waiting, most))
        try:
            self._settle(batch[: await self._attempt(batch)])
        except failures() as error:
            if len(batch) == 1 or not is_about_batch(error):
                self._settle(batch, error)
            else:
                await self._one_by_one(batch)
                # An entity with partitions takes no batch of several sessions. One
                # that is merely too large says nothing of the next.
                self._may_batch = is_too_large(error)

    async def _one_by_one(self, batch: list[_Waiting]) -> None:
        for place, waiting in enumerate(batch):
            try:
                self._settle([waiting][: await self._attempt([waiting])])
            except failures() as error:
                if not leaves_link_whole(error):
                    self._settle(batch[place:], error)
                    return
                self._settle([waiting], error)

    def _settle(self, batch: list[_Waiting], error: Exception | None = None) -> None:
        for waiting in batch:
            waiting.is_done, waiting.error = True, error
            if waiting in self._waiting:  # nobody waits for it who was cancelled
                self._waiting.remove(waiting)

    async def _attempt(self, batch: list[_Waiting]) -> int:
        """Send, once more where a sender that was open proves to be dead."""
        if self._sender is None or self._is_suspect:
            return await self._send_anew(batch)
        try:
            async with asyncio.timeout(_STALE_SECONDS):
                return await self._transmit(self._sender, batch)
        except failures() as error:
            if leaves_link_whole(error):
                raise
            return await self._send_anew(batch)

    async def _send_anew(self, batch: list[_Waiting]) -> int:
        await self._drop()
        async with asyncio.timeout(_ATTEMPT_SECONDS):
            sender = await self._open()
            return await self._transmit(sender, batch)

    async def _transmit(self, sender: "ServiceBusSender", batch: list[_Waiting]) -> int:
        """Send as many of ``batch`` as fit into one transfer; return how many."""
        self._is_suspect = True  # until the end is reached: cancellation breaks it too
        try:
            sent = await _transfer(sender, batch)
        except failures() as error:
            self._is_suspect = not leaves_link_whole(error)
            raise
        self._is_suspect = False
        self._used = _now()
        return sent

    async def _open(self) -> "ServiceBusSender":
        self._stack, self._sender = await _first(self._link, every=self._beside_seconds)
        self._may_batch = True
        self._used = _now()
        return self._sender

    async def _link(self) -> _Link:
        """Open a link, and return it with what closes it."""
        handle = open_handle(self._config, lambda c: c.get_queue_sender(self._entity))
        async with AsyncExitStack() as stack:
            sender = await stack.enter_async_context(handle)
            return stack.pop_all(), sender

    async def _drop(self) -> None:
        """Close the sender, however it takes it."""
        if self._sender is None:
            return
        stack, self._stack = self._stack, AsyncExitStack()
        self._sender, self._is_suspect = None, False
        await _close(stack)


async def _close(stack: AsyncExitStack) -> None:
    with suppress(*failures()):
        async with asyncio.timeout(_CLOSE_SECONDS):
            await stack.aclose()


async def _first(
    link: Callable[[], Coroutine[None, None, _Link]], *, every: float
) -> _Link:
    """Return the first link that stands, of one that is begun every so many seconds.

    Raises:
        Exception: what the first one that ends has failed with.
    """
    tasks = set[asyncio.Task[_Link]]()
    try:
        while True:
            tasks.add(asyncio.create_task(link()))
            ended, _ = await asyncio.wait(
                tasks, timeout=every, return_when=asyncio.FIRST_COMPLETED
            )
            if ended:
                first = ended.pop()
                tasks.remove(first)
                return first.result()
    finally:
        await _give_up(tasks)


async def _give_up(tasks: set[asyncio.Task[_Link]]) -> None:
    """End what is being opened, and close what stands already."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=_CLOSE_SECONDS)
    for task in tasks:
        if not task.done():
            task.add_done_callback(_forget)
        elif not task.cancelled() and task.exception() is None:
            await _close(task.result()[0])


def _forget(task: asyncio.Task[_Link]) -> None:
    """Take the error of what was given up: nobody else waits for it."""
    if not task.cancelled():
        task.exception()


def _is_cancelled() -> bool:
    """Whether this task is to end.

    ``wait_for``, which the SDK lives on, may swallow that before Python 3.12.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _now() -> float:
    return asyncio.get_running_loop().time()


async def _transfer(sender: "ServiceBusSender", batch: list[_Waiting]) -> int:
    if len(batch) > 1:
        packed = await sender.create_message_batch()
        count = _pack(packed, batch)
        if count > 1:
            await sender.send_messages(packed, timeout=_ATTEMPT_SECONDS)
            return count
    await sender.send_messages(batch[0].message, timeout=_ATTEMPT_SECONDS)
    return 1


def _pack(packed: "ServiceBusMessageBatch", batch: list[_Waiting]) -> int:
    for count, waiting in enumerate(batch):
        try:
            packed.add_message(waiting.message)
        except ValueError:  # MessageSizeExceededError is one: it is full
            return count
    return len(batch)


def _sdk_message(message: Message) -> "ServiceBusMessage":
    from azure.servicebus import ServiceBusMessage  # noqa: PLC0415  costs memory

    # the SDK's type for these cannot be named from outside
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
