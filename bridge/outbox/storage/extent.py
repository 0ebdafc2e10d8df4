"""How much of the state file its mirror holds in memory."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Extent:
    """The limits of a mirror.

    While it is loaded again, the old one and the new one are both in memory. With what
    SQLite needs for each page, the two take about 20 MiB of a long backlog.

    Attributes:
        rows: so many pending deliveries are loaded at most.
        beyond: so many EventIds of a sink that have more behind those rows are held
            back at most, which keeps their order.
        bodies: so many of the events of the deliveries at most.
        body_bytes: size of these events at most.
        memories: so many rows of each other table at most, the newest ones.
        bytes: a larger mirror is loaded again, which makes it smaller, but not before
            it has grown by a third.
        spare: so many free bytes at least are given back.
        statements: after so many it is loaded again if it holds a part only.
        noticed: a load that takes so many seconds must not be frequent.
        life: then the next one, if it is no more than useful, comes after so many times
            as long.
    """

    rows: int = 5_000
    beyond: int = 55_000
    bodies: int = 5_000
    body_bytes: int = 2 * 1024 * 1024
    memories: int = 5_000
    bytes: int = 6 * 1024 * 1024
    spare: int = 1024 * 1024
    statements: int = 20_000
    noticed: float = 0.05
    life: float = 20.0


EXTENT = Extent()
