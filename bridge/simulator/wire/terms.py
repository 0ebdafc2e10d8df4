"""The values that a server uses for each of its connections."""

from collections.abc import Callable

from msgspec import Struct

from bridge.simulator.wire.sasl import ANONYMOUS, Credentials, accept_all

MAX_FRAME_BYTES = 1024 * 1024


class Terms(Struct, frozen=True, kw_only=True):
    """The server's values for a connection.

    Attributes:
        container_id: the name of the server.
        max_frame_bytes: the longest frame that the server accepts.
        idle_seconds: clients have to send a frame in this time. The server waits twice
            as long before it closes the connection; None: for ever.
        mechanisms: the SASL mechanisms that clients may use; they may also use none.
        is_known: returns whether a client with these credentials is accepted.
    """

    container_id: str
    max_frame_bytes: int = MAX_FRAME_BYTES
    idle_seconds: float | None = None
    mechanisms: tuple[str, ...] = (ANONYMOUS,)
    is_known: Callable[[Credentials], bool] = accept_all
