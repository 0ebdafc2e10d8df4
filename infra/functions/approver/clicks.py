"""Read the request that Slack sends after a click.

The request is a form with one field, ``payload``, signed over its raw bytes.

Source: docs.slack.dev/authentication/verifying-requests-from-slack, and
docs.slack.dev/reference/interaction-payloads/block_actions-payload.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self
from urllib.parse import parse_qs

from slack_sdk.signature import SignatureVerifier

from approver.buttons import ACTION_PREFIX
from approver.errors import UnreadableError
from approver.loading import load


@dataclass(frozen=True, slots=True, kw_only=True)
class Click:
    """A click on one of the bridge's buttons.

    Attributes:
        id: the same if Slack sends the same click again.
        user: the id of the person.
        team: the id of the workspace; empty if Slack does not send it.
        value: the value of the button.
        response_url: where to post answers, five times within 30 minutes.
        blocks: the blocks of the message when it was clicked.
    """

    id: str
    user: str
    team: str
    value: str
    response_url: str
    blocks: tuple[Mapping[str, object], ...] = ()

    def to_bytes(self) -> bytes:
        """Return the click as the body of a message."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, body: bytes) -> Self:
        """Read the result of ``to_bytes``.

        Raises:
            UnreadableError: the body is not a click.
        """
        try:
            members: Any = load(body, "the message")
            return cls(**{**members, "blocks": tuple(members["blocks"])})
        except (TypeError, KeyError) as error:
            raise UnreadableError("the message is not a click") from error


def is_signed(body: bytes, headers: Mapping[str, str], signing_secret: str) -> bool:
    """Whether Slack sent this within the last five minutes.

    Args:
        body: as received: the signature is over its bytes.
        headers: their names in any case.
        signing_secret: of the Slack app; with an empty one every request is refused.
    """
    if not signing_secret.strip():
        return False
    try:
        return SignatureVerifier(signing_secret).is_valid_request(body, dict(headers))
    except (ValueError, TypeError, OverflowError):  # odd bytes, a huge timestamp
        return False


def read(body: bytes) -> Click | None:
    """Return the click; None: Slack reports something else.

    Args:
        body: a body whose signature was checked.

    Raises:
        UnreadableError: it does not have the form of a Slack request.
    """
    payload = _payload(body)
    if payload.get("type") != "block_actions":
        return None
    action = _ours(payload.get("actions"))
    if action is None:
        return None
    message = payload.get("message")
    user_id, moment = _text(payload.get("user"), "id"), _text(action, "action_ts")
    return Click(
        id=f"{user_id}/{moment}/{_text(action, 'action_id')}",
        user=user_id,
        team=_team(payload),
        value=_text(action, "value"),
        response_url=_text(payload, "response_url"),
        blocks=_blocks(message),
    )


def _payload(body: bytes) -> Mapping[str, object]:
    try:
        text = parse_qs(body.decode(), strict_parsing=True)["payload"][0]
    except (ValueError, KeyError) as error:
        raise UnreadableError("the request is not a form with a payload") from error
    payload = load(text, "the payload")
    if not isinstance(payload, dict):
        raise UnreadableError("the payload is not an object")
    return payload


def _ours(actions: object) -> Mapping[str, object] | None:
    """Return the action that is a click on one of the bridge's buttons."""
    if not isinstance(actions, list):
        raise UnreadableError("the payload has no actions")
    for action in actions:
        name = action.get("action_id") if isinstance(action, dict) else None
        if isinstance(name, str) and name.startswith(ACTION_PREFIX):
            return dict(action)
    return None


def _team(payload: Mapping[str, object]) -> str:
    """Return the workspace; ``team`` is null if an organisation installed the app."""
    team, user = payload.get("team"), payload.get("user")
    if team:
        return _text(team, "id")
    of_user = user.get("team_id") if isinstance(user, dict) else None
    return of_user if isinstance(of_user, str) else ""


def _text(owner: object, name: str) -> str:
    value = owner.get(name) if isinstance(owner, dict) else None
    if isinstance(value, str) and value:
        return value
    raise UnreadableError(f"the payload lacks {name}")


def _blocks(message: object) -> tuple[Mapping[str, object], ...]:
    blocks = message.get("blocks") if isinstance(message, dict) else None
    if not isinstance(blocks, list):
        return ()
    return tuple(each for each in blocks if isinstance(each, dict))
