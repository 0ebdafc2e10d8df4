"""The value of an Approve or Refuse button. Pure.

Whoever posts the message writes it, and this app reads it back when somebody clicks:

    value     = hex(HMAC-SHA256(secret, "sebridge-button-v1:" + json)) + "." + json
    json      = an object without white space, in ASCII, with exactly these members
    action    "approve" or "refuse"
    digest    of the event as it was shown, see ``digest``
    eventId   as received
    replyTo   the approval entity
    session   ReplyToSessionId; null where the entity has no sessions

So a button speaks for one event as one person saw it, and nobody without the secret
can make it name another queue.

Source: docs.slack.dev/reference/block-kit/block-elements/button-element (value: 2,000
characters).
"""

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, cast

from approver.errors import UnreadableError

Action = Literal["approve", "refuse"]

ACTION_PREFIX: Final = "sebridge-"
"""What the action_id of our buttons begins with."""

MOST_CHARACTERS: Final = 2000
_DOMAIN: Final = b"sebridge-button-v1:"
_TERMS: Final = ("DurationInSeconds", "EventSource", "EventType", "NotBefore")
_MEMBERS: Final = frozenset({"action", "digest", "eventId", "replyTo", "session"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Button:
    """What a click on it asks for.

    Attributes:
        action: what is wanted.
        event_id: as received.
        digest: of the event as it was shown.
        reply_to: the approval entity.
        session: of the approval entity; None where it has none.
    """

    action: Action
    event_id: str
    digest: str
    reply_to: str
    session: str | None


def digest(event: Mapping[str, object]) -> str:
    """Return the fingerprint of what a person agrees to.

    32 hex digits of SHA-256 over the JSON list of DurationInSeconds, EventSource,
    EventType, NotBefore (null where absent) and Resources (sorted), with sorted keys,
    no white space, in UTF-8. EventStatus and Description are not part of it.

    Args:
        event: the IMDS object.
    """
    names = event.get("Resources")
    resources = sorted(map(str, names)) if isinstance(names, list) else []
    terms = [*(event.get(name) for name in _TERMS), resources]
    text = json.dumps(terms, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:32]


def write(button: Button, secret: str) -> str:
    """Return the value of a button.

    Raises:
        ValueError: it would be longer than Slack takes.
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
    """Return the button that was clicked.

    Args:
        value: as Slack sent it back.
        secrets: any of them may have signed it.

    Raises:
        UnreadableError: no button of ours, or not signed with one of the secrets.
    """
    mac, _, text = value.partition(".")
    given = mac.encode("utf-8", "replace")
    matches = [
        hmac.compare_digest(_mac(text, each).encode(), given) for each in secrets
    ]
    if len(value) > MOST_CHARACTERS or not any(matches):
        raise UnreadableError("the button is not signed by us")
    try:
        members = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnreadableError("the button's value is no JSON") from error
    if not isinstance(members, dict) or set(members) != _MEMBERS:
        raise UnreadableError("the button's value has other members")
    session = members.pop("session")
    if not all(isinstance(each, str) and each for each in members.values()):
        raise UnreadableError("a member of the button's value is no text")
    if members["action"] not in {"approve", "refuse"}:
        raise UnreadableError("the button's action is neither approve nor refuse")
    if not (session is None or isinstance(session, str)):
        raise UnreadableError("the button's session is no text")
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
