"""Closes the sockets of the SDK's senders and receivers, which may stay open."""

from typing import Any


class Wires:
    """The sockets of one sender or receiver.

    The SDK leaks a file descriptor with each connection that breaks (it marks the
    connection as ended before it closes the socket), and with each that does not open
    in time. The SDK has no public access to the sockets. If the internal names used
    here change, descriptors leak again.
    """

    def __init__(self, handle: Any) -> None:
        self._handlers: list[object] = []
        self._wires: list[object] = []
        create = getattr(handle, "_create_handler", None)
        if create is None:
            return

        def remember(*args: object) -> None:
            create(*args)
            self._handlers.append(getattr(handle, "_handler", None))

        handle._create_handler = remember  # noqa: SLF001  see above

    def note(self) -> None:
        """Record the open sockets, before the SDK forgets them."""
        for handler in self._handlers:
            connection = getattr(handler, "_connection", None)
            self._wires.append(getattr(connection, "_transport", None))

    async def hang_up(self) -> None:
        """Close the sockets that are still open."""
        self.note()
        for wire in self._wires:
            if writer := getattr(wire, "writer", None):
                writer.transport.abort()
            if session := getattr(wire, "session", None):  # of a websocket
                await session.close()
