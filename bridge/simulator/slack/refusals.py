"""Find out whether Slack refuses a message, and with which error code. Pure.

Source:  docs.slack.dev/reference/methods/chat.postMessage,
         docs.slack.dev/messaging/sending-messages-using-incoming-webhooks
"""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from bridge.simulator.errors import SimulatorError
from bridge.simulator.slack.blocks import all_faults, blocks_of, characters

_MOST_ATTACHMENTS: Final = 100
# For all blocks together. Slack enforces it, but does not document it:
# slackapi/bolt-js#2509.
_LONGEST_BLOCKS: Final = 13_200


class Refusal(Struct, frozen=True):
    """Slack's refusal of a message.

    Attributes:
        code: Slack's error code.
        details: the exact faults, each with a JSON pointer; may be empty.
    """

    code: str
    details: Sequence[str] = ()


class RefusedError(SimulatorError):
    """Slack refuses a request.

    Args:
        code: Slack's error code.
        details: the exact faults.
        members: members of the answer besides ``ok`` and ``error``.
    """

    def __init__(
        self, code: str, details: Sequence[str] = (), **members: object
    ) -> None:
        super().__init__(code)
        self.code = code
        self.details = details
        self.members = members


class RateError(SimulatorError):
    """A request is above a rate limit.

    Args:
        seconds: how long to wait.
    """

    def __init__(self, seconds: int) -> None:
        super().__init__("ratelimited")
        self.seconds = seconds


def refusal(message: object) -> str | None:
    """Return the error code with which Slack refuses a message; None: accepted.

    Args:
        message: the body as JSON; text if it is not JSON.
    """
    found = judge(message)
    return found.code if found else None


def judge(message: object) -> Refusal | None:
    """Return why Slack refuses a message; None: accepted."""
    if not isinstance(message, Mapping):
        return Refusal("invalid_payload")
    text, attachments = message.get("text"), message.get("attachments")
    if not text and not message.get("blocks") and not attachments:
        return Refusal("no_text")
    if attachments is not None and (code := _attachments(attachments)):
        return Refusal(code)
    if faults := all_faults(message):
        return Refusal("invalid_blocks", faults)
    if characters([each for _, each in blocks_of(message)]) > _LONGEST_BLOCKS:
        return Refusal("msg_blocks_too_long")
    return None


def _attachments(given: object) -> str | None:
    if not isinstance(given, list):
        return "invalid_attachments"
    if len(given) > _MOST_ATTACHMENTS:
        return "too_many_attachments"
    is_good = all(isinstance(each, Mapping) for each in given)
    return None if is_good else "invalid_attachments"
