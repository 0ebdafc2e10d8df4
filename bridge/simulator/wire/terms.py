"""What a server asks of the clients of its connections."""

from collections.abc import Callable

from msgspec import Struct

from bridge.simulator.wire.sasl import ANONYMOUS, Credentials, accept_all

MAX_FRAME_BYTES = 1024 * 1024


class Terms(Struct, frozen=True, kw_only=True):
    """What the server says of itself.

    Attributes:
        container_id: its name.
        max_frame_bytes: the longest frame that it takes.
        idle_seconds: what it asks of its clients: a frame in this time. It waits twice
            as long; None: for ever.
        mechanisms: how clients may sign in; they need not.
        is_known: whether who signs in so is let in.
    """

    container_id: str
    max_frame_bytes: int = MAX_FRAME_BYTES
    idle_seconds: float | None = None
    mechanisms: tuple[str, ...] = (ANONYMOUS,)
    is_known: Callable[[Credentials], bool] = accept_all
