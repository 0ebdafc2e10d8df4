"""Deletes old rows from the store, and records that the hub is running.

If no hub was running for longer than the subscription keeps messages, messages are
lost. Open events without a message since then have an unknown status.
"""

import asyncio
import logging
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, select

from bridge.foundation.clock import Clock
from bridge.foundation.errors import HubStoreError
from bridge.hub.config import HubConfig
from bridge.hub.store import retention
from bridge.hub.store.rows import micros, moment_of
from bridge.hub.store.statements import insert
from bridge.hub.store.store import Store
from bridge.hub.store.tables import meta

log = logging.getLogger(__name__)

_EVERY = 30.0
_LONG_AWAY = timedelta(days=1)  # the TTL of the hub's subscription, as infra sets it
_LAST_ALIVE, _ABSENT = "lived", "absent-until"


@dataclass(slots=True)
class Housekeeping:
    """Deletes old rows until asked to stop.

    Attributes:
        absent_until: when the last long absence of all hubs ended; None = never.
    """

    store: Store
    config: HubConfig
    clock: Clock
    name: str = "keeper"
    absent_until: datetime | None = None

    async def begin(self) -> None:
        """Find out whether no hub has read the sources for a long time.

        Raises:
            HubStoreError: the store cannot be used.
        """
        now = self.clock.now()
        self.absent_until = await self.store.write(lambda c: _note_absence(c, now))

    async def run(self, stop: asyncio.Event) -> None:
        """Delete old rows twice a minute until asked to stop."""
        while not await self.clock.wait(stop, _EVERY):
            try:
                await self.step(stop)
            except HubStoreError as error:
                log.warning("store cannot be looked after", extra={"fault": str(error)})

    async def step(self, stop: asyncio.Event) -> None:
        """Record that the hub is running, and delete old rows, portion by portion.

        Raises:
            HubStoreError: the store cannot be used now.
        """
        now, config = self.clock.now(), self.config
        await self.store.write(lambda c: note(c, _LAST_ALIVE, micros(now)))
        portion = 1
        while portion and not stop.is_set():
            portion = await self.store.write(
                lambda c: retention.forget(
                    c, now, retention=config.retention, audit=config.audit_retention
                )
            )


def note(connection: Connection, name: str, value: int) -> None:
    """Store a number under a name."""
    statement = insert(meta).values(name=name, value=str(value))
    fresh = {"value": statement.excluded.value}
    connection.execute(
        statement.on_conflict_do_update(index_elements=["name"], set_=fresh)
    )


def noted(connection: Connection, name: str) -> int | None:
    """Return the number that is stored under a name; None = there is none."""
    found = connection.scalar(select(meta.c.value).where(meta.c.name == name))
    return None if found is None else int(found)


def _note_absence(connection: Connection, now: datetime) -> datetime | None:
    lived, absent = noted(connection, _LAST_ALIVE), noted(connection, _ABSENT)
    if lived is not None and now - moment_of(lived) > _LONG_AWAY:
        absent = micros(now)
        note(connection, _ABSENT, absent)
    note(connection, _LAST_ALIVE, micros(now))
    return None if absent is None else moment_of(absent)
