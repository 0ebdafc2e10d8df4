"""The record of a StartRequest on disk, from the request to its outcome."""

from msgspec import Struct

from bridge.approvals.policy import Request
from bridge.foundation.clock import Clock
from bridge.outbox.records import Decision
from bridge.outbox.store import Outbox

INTENT = "intent"


class Intent(Struct):
    """The intent for one EventId of one message, or of a rule: its record on disk.

        stored ◀──no POST was sent──▶ marked as posted ──POST──▶ may have worked
          └──────given up: deleted

    It stays on disk if the process dies. If it is marked as posted, a POST may have
    worked, and may even be the reason why the process died.

    Attributes:
        message: the key of the message, or the content of the event for a rule.
        sequence: the sequence number of the message; None for a rule.
        was_tried: whether a POST may have been sent before the restart.
        was_sent: whether a POST was sent since then.
        is_marked: whether the mark is on disk, or has waited for it for long.
    """

    outbox: Outbox
    clock: Clock
    request: Request
    message: str
    sequence: int | None
    was_tried: bool
    was_sent: bool = False
    is_marked: bool = False

    @property
    def was_posted(self) -> bool:
        """Whether a POST was sent, or may have been sent before the restart."""
        return self.was_tried or self.was_sent

    async def store(self) -> None:
        """Store the intent; an intent that is already stored stays as it is."""
        await self._save(posted=False)

    async def mark(self) -> None:
        """Store that a POST begins; called before the POST."""
        await self._save(posted=True)
        self.is_marked = True

    async def unmark(self) -> None:
        """Undo ``mark`` if no POST was sent."""
        if not self.was_posted:
            self.is_marked = False
            await self._delete()
            await self._save(posted=False)

    async def withdraw(self) -> bool:
        """Delete the intent if no POST was begun; return whether it was deleted.

        Otherwise a redelivery would treat the outcome as unknown.
        """
        if not self.was_posted:
            await self._delete()
        return not self.was_posted

    async def _delete(self) -> None:
        await self.outbox.approvals.delete(self.message, self.request.key)

    async def _save(self, *, posted: bool) -> None:
        initiative = self.request.initiative
        intent = Decision(
            message=self.message,
            key=self.request.key,
            event_id=self.request.event_id,
            sequence=self.sequence,
            state=INTENT,
            posted=posted,
            rule=initiative.rule if initiative else None,
        )
        now = self.clock.now().timestamp()
        await self.outbox.approvals.save(intent, now=now)
