"""How long Service Bus may take."""

from msgspec import Struct


class Timings(Struct, frozen=True, kw_only=True):
    """Limits and periods, in seconds.

    Attributes:
        attempt: to open a sender and send with it.
        stale: to find out that an open sender is dead.
        beside: until a second link is opened while the first one hangs.
        idle: a sender that was not used for so long is opened again. The load balancers
            of Azure drop a connection that was idle for 4 minutes.
        open: to open a receiver.
        settle: to settle a message.
        look: a receiver peeks at its queue this often, and must get an answer.
        renew: to renew a lock.
        least_renew: to renew a short lock; the first renewal opens a link.
        close: to close a link.
    """

    attempt: float = 10.0
    stale: float = 5.0
    beside: float = 3.0
    idle: float = 200.0
    open: float = 10.0
    settle: float = 10.0
    look: float = 20.0
    renew: float = 5.0
    least_renew: float = 2.0
    close: float = 1.0


TIMINGS = Timings()
