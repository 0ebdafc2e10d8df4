"""The value of an Approve or Refuse button. Pure.

The bridge writes it into the message, and this app reads it when somebody clicks:

    value     = hex(HMAC-SHA256(secret, "sebridge-button-v1:" + json)) + "." + json
    json      = an object without white space, in ASCII, with exactly these members
    action    "approve" or "refuse"
    digest    of the event as shown, see ``digest``
    eventId   as received
    replyTo   the approval entity
    session   ReplyToSessionId; null if the entity has no sessions

So a button stands for one event as one person saw it. Without the secret, nobody can
make it name another queue.

Source: docs.slack.dev/reference/block-kit/block-elements/button-element (value: 2,000
characters).
"""

import hashlib
import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, cast

from approver.errors import UnreadableError

Action = Literal["approve", "refuse"]

ACTION_PREFIX: Final = "sebridge-"
"""The beginning of the action_id of the bridge's buttons."""

MOST_CHARACTERS: Final = 2000
_DOMAIN: Final = b"sebridge-button-v1:"
_MEMBERS: Final = frozenset({"action", "digest", "eventId", "replyTo", "session"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Button:
    """The content of a button.

    Attributes:
        action: what a click requests.
        event_id: as received.
        digest: the digest of the event as shown.
        reply_to: the approval entity.
        session: the session of the approval entity; None if it has no sessions.
    """

    action: Action
    event_id: str
    digest: str
    reply_to: str
    session: str | None


def write(button: Button, secret: str) -> str:
    """Return the value of a button.

    Raises:
        ValueError: it would be too long for Slack.
    """
    members = {
        "action": button.action,
        "digest": button.digest,
        "eventId": button.event_id,
        "replyTo": button.reply_to,
        "session": button.session,
    }
    text = json.dumps(members, separators=(",", ":"))
    value = f"{_mac(text, secret)}.{text}"
    if len(value) > MOST_CHARACTERS:
        raise ValueError(f"a button's value has at most {MOST_CHARACTERS} characters")
    return value


def read(value: str, secrets: Sequence[str]) -> Button:
    """Return the clicked button.

    Args:
        value: as Slack returned it.
        secrets: one of them must have signed it.

    Raises:
        UnreadableError: it is not a button of the bridge, or its signature is wrong.
    """
    mac, _, text = value.partition(".")
    given = mac.encode("utf-8", "replace")
    matches = [
        hmac.compare_digest(_mac(text, each).encode(), given) for each in secrets
    ]
    if len(value) > MOST_CHARACTERS or not any(matches):
        raise UnreadableError("the button's signature is not valid")
    try:
        members = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnreadableError("the button's value is not JSON") from error
    if not isinstance(members, dict) or set(members) != _MEMBERS:
        raise UnreadableError("the button's value has other members")
    session = members.pop("session")
    if not all(isinstance(each, str) and each for each in members.values()):
        raise UnreadableError("a member of the button's value is not a text")
    if members["action"] not in {"approve", "refuse"}:
        raise UnreadableError("the button's action is neither approve nor refuse")
    if not (session is None or isinstance(session, str)):
        raise UnreadableError("the button's session is not a text")
    return Button(
        action=cast("Action", members["action"]),
        event_id=members["eventId"],
        digest=members["digest"],
        reply_to=members["replyTo"],
        session=session,
    )


def _mac(text: str, secret: str) -> str:
    signed = _DOMAIN + text.encode("utf-8", "replace")
    return hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()
