"""Keeps what the inbox receives, and tells who waits for it.

One event loop; the last messages only, so that it may run for weeks.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakSet

KEPT: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One request that was taken.

    Attributes:
        received_at: RFC 3339, UTC.
        headers: by their lower-case names.
        body: JSON where the content type says so and it is; else text.
    """

    received_at: str
    path: str
    headers: Mapping[str, str]
    body: object

    def as_json(self) -> dict[str, object]:
        """Return it as GET /messages shows it."""
        return {
            "receivedAt": self.received_at,
            "path": self.path,
            "headers": dict(self.headers),
            "body": self.body,
        }


@dataclass(slots=True)
class Mailbox:
    """The messages, oldest first, and those who wait for more."""

    _messages: deque[Message] = field(default_factory=lambda: deque(maxlen=KEPT))
    # Weak: a stream that nobody reads any more is forgotten with its reader.
    _listeners: "WeakSet[asyncio.Queue[Message]]" = field(default_factory=WeakSet)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages, oldest first."""
        return tuple(self._messages)

    def put(self, message: Message) -> None:
        """Keep a message and tell those who wait."""
        self._messages.append(message)
        for listener in self._listeners:
            listener.put_nowait(message)

    def clear(self) -> None:
        """Forget all messages."""
        self._messages.clear()

    def stream(self) -> AsyncIterator[Message]:
        """Return all messages that come from now on, as they come."""
        listener: asyncio.Queue[Message] = asyncio.Queue()
        self._listeners.add(listener)
        return _drained(listener)

    async def wait_for(
        self, predicate: Callable[[Message], bool], within: float
    ) -> Message:
        """Return the first message that is meant, also one that is here already.

        Args:
            predicate: says whether a message is meant.
            within: how many seconds to wait.

        Raises:
            TimeoutError: none came.
        """
        coming = self.stream()  # before the look, so that none falls in between
        for message in self._messages:
            if predicate(message):
                return message
        async with asyncio.timeout(within):
            async for message in coming:
                if predicate(message):
                    return message
        raise TimeoutError  # not reached: a stream has no end


async def _drained(listener: asyncio.Queue[Message]) -> AsyncIterator[Message]:
    while True:
        yield await listener.get()
