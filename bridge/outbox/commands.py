"""Reads the successes and results of commands."""

from collections.abc import Sequence

from msgspec import Struct

from bridge.outbox.records import CommandStanding, Success
from bridge.outbox.storage.database import Database
from bridge.outbox.tables import successes


class Commands(Struct, frozen=True):
    """The successes and results of the commands of all sinks."""

    database: Database

    async def successes(self, key: str) -> list[Success]:
        """Return the successes for an EventId that still count."""
        return await self.database.read(lambda db: successes.of_event(db, key))

    async def standings(
        self, key: str, sinks: Sequence[str]
    ) -> dict[str, CommandStanding]:
        """Return how far the command of each sink has come for an EventId."""
        return await self.database.read(lambda db: successes.standings(db, key, sinks))

    async def recent_results(self, limit: int) -> list[dict[str, object]]:
        """Return the last events about commands, newest first."""
        return await self.database.read(lambda db: successes.recent_results(db, limit))
