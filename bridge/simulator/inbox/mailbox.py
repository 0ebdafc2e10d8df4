"""Store the messages of the inbox, and wake the readers that wait for one.

Used by one event loop. Only the last messages are kept, so it may run for weeks.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Final
from weakref import WeakSet

from msgspec import Struct

KEPT: Final = 10_000


class Message(Struct, frozen=True, kw_only=True):
    """One accepted request.

    Attributes:
        received_at: RFC 3339, UTC.
        headers: by their lower-case names.
        body: JSON if the content type says so, and ``load`` accepts it; else text.
    """

    received_at: str
    path: str
    headers: Mapping[str, str]
    body: object

    def as_json(self) -> dict[str, object]:
        """Return the message as GET /messages shows it."""
        return {
            "receivedAt": self.received_at,
            "path": self.path,
            "headers": dict(self.headers),
            "body": self.body,
        }


class Mailbox:
    """The messages, oldest first, and the streams that wait for more."""

    def __init__(self) -> None:
        self._messages = deque[Message](maxlen=KEPT)
        # Weak: a stream is removed when its reader is gone.
        self._listeners = WeakSet[asyncio.Queue[Message]]()

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages, oldest first."""
        return tuple(self._messages)

    def put(self, message: Message) -> None:
        """Store a message and pass it to the waiting streams."""
        self._messages.append(message)
        for listener in self._listeners:
            listener.put_nowait(message)

    def clear(self) -> None:
        """Remove all messages."""
        self._messages.clear()

    def stream(self) -> AsyncIterator[Message]:
        """Return a stream of all messages from now on."""
        listener: asyncio.Queue[Message] = asyncio.Queue()
        self._listeners.add(listener)
        return _drained(listener)

    async def wait_for(
        self, predicate: Callable[[Message], bool], within: float
    ) -> Message:
        """Return the first message that matches; it may have arrived before the call.

        Args:
            predicate: returns whether a message matches.
            within: how many seconds to wait.

        Raises:
            TimeoutError: no such message arrived.
        """
        coming = self.stream()  # opened first, so that no message is missed
        for message in self._messages:
            if predicate(message):
                return message
        async with asyncio.timeout(within):
            async for message in coming:
                if predicate(message):
                    return message
        raise TimeoutError  # never reached: a stream has no end


async def _drained(listener: asyncio.Queue[Message]) -> AsyncIterator[Message]:
    while True:
        yield await listener.get()
