"""Reads and saves the decisions on approvals."""

from msgspec import Struct

from bridge.outbox.records import Decision
from bridge.outbox.storage.database import Database
from bridge.outbox.tables import decisions


class Approvals(Struct):
    """The intents and outcomes of approval messages and of rules."""

    database: Database

    async def save(self, decision: Decision, *, now: float) -> None:
        """Save an intent, or record that its POST has begun."""
        await self.database.run(lambda db: decisions.save(db, decision, now))

    async def claim(self, decision: Decision, *, now: float) -> Decision:
        """Save a record unless its message has one; return the one that is there."""
        return await self.database.run(lambda db: decisions.claim(db, decision, now))

    async def of_message(
        self, message: str, sequence: int | None = None
    ) -> dict[str, Decision]:
        """Return the decisions on a message, by the key of the EventId.

        Args:
            message: the hash of its content.
            sequence: its sequence number. A decision on the message with this number
                takes precedence over a decision on a copy of the message.
        """
        return await self.database.read(
            lambda db: decisions.of_message(db, message, sequence)
        )

    async def open_initiatives(self) -> list[Decision]:
        """Return the intents of rules that have no outcome yet."""
        return await self.database.read(decisions.open_initiatives)

    async def delete(self, message: str, key: str) -> None:
        """Delete an intent for which no POST was sent.

        Otherwise a redelivery of the message would treat the outcome as unknown.
        """
        await self.database.run(lambda db: decisions.delete(db, message, key))

    async def posted(self) -> frozenset[str]:
        """Return the keys of the EventIds for which a POST has begun."""
        return await self.database.read(decisions.posted)

    async def recent_outcomes(self, limit: int) -> list[bytes]:
        """Return the data of the last outcomes as JSON, newest first."""
        return await self.database.read(lambda db: decisions.recent_outcomes(db, limit))
