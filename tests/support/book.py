"""The ledger of an open outbox, with the time given at each call."""

import sqlite3
from collections.abc import Collection

from msgspec import Struct

from bridge.outbox.admin import Here, Ledger
from bridge.outbox.questions import Find, Newest, Observation, Selection, Wanted
from bridge.outbox.records import Delivery
from bridge.outbox.storage.database import Database
from bridge.outbox.store import Outbox
from tests.support.builders import router


def sent_to(db: sqlite3.Connection, sink: str) -> list[Delivery]:
    """Return all deliveries to a sink, in whatever state, oldest first."""
    found = list[Delivery]()
    at: int | None = 0
    while at is not None:
        page = Find(selection=Selection(sink=sink), at=at).read(db)
        found += page.found
        at = page.next
    return found


class Book(Struct, frozen=True):
    """What commands ask, and change, in this process."""

    outbox: Outbox

    @classmethod
    async def of(cls, database: Database) -> "Book":
        """Return the book of an open file."""
        return cls(await Outbox.of(database, router({})))

    def at(self, now: float) -> Ledger:
        """Return the ledger at a time."""
        return Ledger(Here(self.outbox, lambda: now))

    async def find(self, selection: Selection, limit: int = 10**6) -> list[Delivery]:
        """Return the selected deliveries, oldest first."""
        return await self.at(0).find(selection, limit)

    async def published(
        self, *, after: int = 0, newest: int, wanted: Wanted | None = None
    ) -> list[Observation]:
        """Return published events, oldest first."""
        return await self.at(0).published(after=after, newest=newest, wanted=wanted)

    async def newest(
        self, selection: Selection, count: int, *, also: Collection[int] = ()
    ) -> list[Delivery]:
        """Return the newest selected deliveries, oldest first."""
        asked = Newest(selection=selection, count=count, also=tuple(also))
        return await self.at(0).ask(asked)

    async def retry(
        self, selection: Selection, *, now: float, force: bool
    ) -> tuple[list[Delivery], list[Delivery], int]:
        """Return what will be sent, what is out of date, and how many became due."""
        done = await self.at(now).retry(selection, force=force)
        return done.sent, done.late, done.hastened

    async def discard(self, selection: Selection, *, now: float) -> list[Delivery]:
        """Discard the selected deliveries, and return them."""
        return await self.at(now).discard(selection)
