"""The sockets under the SDK's senders and receivers, which it does not always close."""

from typing import Any


class Wires:
    """The sockets under a sender or receiver, closed for certain.

    The SDK loses a descriptor with each connection that breaks, since it marks it as
    ended before it would close the socket, and with each that does not open in time.
    There is no public way to them; where these names change, it loses them again.
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
        """Note what is open: the SDK forgets it when it fails to close it."""
        for handler in self._handlers:
            connection = getattr(handler, "_connection", None)
            self._wires.append(getattr(connection, "_transport", None))

    async def hang_up(self) -> None:
        """Close whatever is still open."""
        self.note()
        for wire in self._wires:
            if writer := getattr(wire, "writer", None):
                writer.transport.abort()
            if session := getattr(wire, "session", None):  # of a websocket
                await session.close()
