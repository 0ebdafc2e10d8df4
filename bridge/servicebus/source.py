"""The queue, subscription or session that a receiver receives from."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalSource:
    """Where approvals come from: a queue, or a subscription of a topic.

    Attributes:
        session: the session to accept; None = the entity has no sessions.
        at_once: so many messages are taken at a time, at most. More than one is for
            whoever settles each soon: what is handed to a connection that went dead is
            locked as long as a lock lasts.
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
