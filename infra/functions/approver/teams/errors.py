"""The errors of the bot."""

from approver.errors import ApproverError


class StrangerError(ApproverError):
    """A request that Teams did not send, or not for this bot; the text says why."""


class TeamsError(ApproverError):
    """Teams, Entra ID or Microsoft Graph did not do what was asked.

    Args:
        words: what happened, without anything from outside.
        status: the HTTP status; 0 if there was none.
        wait: how long to wait, in seconds, if that was said.
    """

    def __init__(self, words: str, status: int = 0, wait: float = 0.0) -> None:
        super().__init__(words)
        self.status = status
        self.wait = wait
