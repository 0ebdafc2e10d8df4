"""Refuse a message as Teams does, with its errors. Pure.

Source:  learn.microsoft.com/microsoftteams/platform/bots/how-to/conversations/
         send-proactive-messages (status codes), …/bots/how-to/rate-limit;
         learn.microsoft.com/microsoftteams/limits-specifications-teams (28 KB)
"""

from collections.abc import Mapping
from typing import Final

import orjson

from bridge.simulator.errors import SimulatorError
from bridge.simulator.teams.cards import faults

CARD_TYPE: Final = "application/vnd.microsoft.card.adaptive"
LARGEST: Final = 28 * 1024
_MEMBERS: Final = frozenset(
    {"type", "id", "summary", "text", "textFormat", "attachments", "channelData"}
)


class TeamsRefusalError(SimulatorError):
    """Teams refuses a request.

    Args:
        status: the HTTP status.
        code: Teams' error code.
        message: the exact fault.
        wait: the seconds of the header Retry-After; 0: no such header.
    """

    def __init__(self, status: int, code: str, message: str, wait: int = 0) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.wait = wait


def card_of(activity: object) -> Mapping[str, object]:
    """Return the only card of a message.

    Raises:
        TeamsRefusalError: the activity is not a message with one valid card.
    """
    if not isinstance(activity, Mapping):
        raise _bad("the body must be an activity")
    if len(orjson.dumps(activity)) > LARGEST:
        raise TeamsRefusalError(413, "MessageSizeTooBig", "Message size too large")
    if activity.get("type") != "message":
        raise _bad("type must be message")
    if unknown := sorted(map(str, set(activity) - _MEMBERS)):
        raise _bad(f"unknown members: {', '.join(unknown)}")
    attachments = activity.get("attachments")
    if not isinstance(attachments, list) or len(attachments) != 1:
        raise _bad("attachments must hold one card")
    (attachment,) = attachments
    if not isinstance(attachment, Mapping):
        raise _bad("an attachment must be an object")
    if attachment.get("contentType") != CARD_TYPE:
        raise _bad(f"contentType must be {CARD_TYPE}")
    return checked(attachment.get("content"))


def checked(card: object) -> Mapping[str, object]:
    """Return the card if it is valid.

    Raises:
        TeamsRefusalError: the card is invalid or too large.
    """
    if found := faults(card):
        raise _bad("; ".join(found[:5]))
    if not isinstance(card, Mapping) or len(orjson.dumps(card)) > LARGEST:
        raise TeamsRefusalError(413, "MessageSizeTooBig", "Message size too large")
    return card


def _bad(message: str) -> TeamsRefusalError:
    return TeamsRefusalError(400, "BadSyntax", f"Bad format: {message}")
