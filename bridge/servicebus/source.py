"""The queue, subscription or session that a receiver receives from."""

from msgspec import Struct


class ApprovalSource(Struct, frozen=True, kw_only=True):
    """Where approvals come from: a queue, or a subscription of a topic.

    Attributes:
        session: the session to accept; None = the entity has no sessions.
        at_once: the most messages that are received at a time. More than one only if
            each is settled soon: messages that the broker sends to a dead connection
            stay locked until their locks end.
    """

    queue: str = ""
    topic: str = ""
    subscription: str = ""
    session: str | None = None
    at_once: int = 1

    @property
    def entity(self) -> str:
        """The queue, or the topic and its subscription."""
        return self.queue or f"{self.topic}/{self.subscription}"

    def __str__(self) -> str:
        session = "" if self.session is None else f" session {self.session}"
        return f"{self.entity}{session}"
