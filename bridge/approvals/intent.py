"""The intent of a StartRequest: its record in the state file before the outcome.

    stored ◀──no POST was sent──▶ marked as posted ──POST──▶ may have worked
      └──────given up: deleted

The intent stays on disk if the process dies. If it is marked as posted, a POST may have
worked, and may even be the reason why the process died.
"""

from msgspec import Struct

from bridge.approvals.context import ApprovalContext
from bridge.approvals.policy import Request
from bridge.outbox.records import Decision

INTENT = "intent"


class Intent(Struct):
    """The intent for one EventId of one message, or of a rule.

    Attributes:
        request: the EventId, and the approval that asks for it.
        message: the key of the message.
        sequence: the sequence number of the message; None for a rule.
        was_tried: whether a POST was begun before the restart, and its outcome is not
            known.
        was_sent: whether a POST was sent since then.
    """

    context: ApprovalContext
    request: Request
    message: str
    sequence: int | None
    was_tried: bool
    was_sent: bool = False
    _is_marked: bool = False

    def __post_init__(self) -> None:
        self._is_marked = self.was_tried

    @property
    def was_posted(self) -> bool:
        """Whether a POST was sent, or may have been sent before the restart."""
        return self.was_tried or self.was_sent

    async def store(self) -> None:
        """Store the intent; an intent that is already stored stays as it is."""
        await self._save(posted=False)

    async def mark(self) -> None:
        """Store that a POST begins; called before the POST."""
        if not self._is_marked:
            self._is_marked = True
            await self._save(posted=True)

    async def unmark(self) -> None:
        """Undo ``mark`` if no POST was sent."""
        if self._is_marked and not self.was_posted:
            self._is_marked = False
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
        await self.context.outbox.approvals.delete(self.message, self.request.key)

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
        now = self.context.clock.now().timestamp()
        await self.context.outbox.approvals.save(intent, now=now)
