"""Limits of the mirror: how much of the state file it holds in memory."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Extent:
    """The limits of a mirror.

    While the mirror is loaded again, the old and the new one are both in memory. During
    a long backlog the two take about 20 MiB, with what SQLite needs for each page.

    Attributes:
        rows: the most pending deliveries to load.
        beyond: the most placeholder rows. There is one for each sink and EventId with
            deliveries beyond ``rows``: it holds them back, which keeps their order.
        bodies: the most events to load.
        body_bytes: the most bytes of these events together.
        memories: the most rows to load of each other table; the newest ones.
        bytes: a mirror larger than this is loaded again, which makes it smaller, but
            only after it has grown by a third.
        spare: free memory is given back if it is at least this many bytes.
        statements: a mirror that holds only a part is loaded again after this many
            statements.
        noticed: a load that takes longer than this many seconds must not be frequent.
        life: after such a load, the next load waits for this many times its duration,
            unless the mirror is too large.
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
