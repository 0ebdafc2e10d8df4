"""Read what Teams sends when somebody clicks or looks, and write the answer. Pure.

Source: learn.microsoft.com/adaptive-cards/authoring-cards/universal-action-model
        (adaptiveCard/action, its answers)
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, Self, cast

from approver.errors import UnreadableError
from approver.loading import load
from approver.people import is_object_id
from approver.teams.connector import CARD_TYPE

Verb = Literal["approve", "refuse", "look"]

NAME: Final = "adaptiveCard/action"
_VERBS: Final = frozenset({"approve", "refuse", "look"})
_MESSAGE: Final = "application/vnd.microsoft.activity.message"
_ERROR: Final = "application/vnd.microsoft.error"
_LONGEST: Final = 1024
_LONGEST_NAME: Final = 100
_MARK: Final = "teamsClick"


@dataclass(frozen=True, slots=True, kw_only=True)
class Invoke:
    """A click on a button of a card, or a look at the card.

    Attributes:
        id: the same if the same request comes again.
        user: the object id of the person.
        name: what Teams calls the person.
        verb: what is asked for.
        event_id: of the event that the card shows.
        digest: of the event as the card shows it; "" for a look.
    """

    id: str
    user: str
    name: str
    verb: Verb
    event_id: str
    digest: str

    def to_bytes(self) -> bytes:
        """Return it as the body of a message."""
        return json.dumps({_MARK: asdict(self)}, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, body: bytes) -> Self | None:
        """Read the result of ``to_bytes``; None: it is something else."""
        try:
            members: Any = load(body, "the message")
            found = cls(**members[_MARK])
        except (UnreadableError, TypeError, KeyError):
            return None
        are_texts = all(isinstance(each, str) for each in asdict(found).values())
        is_click = are_texts and is_object_id(found.user) and found.verb in _VERBS
        return found if is_click else None


def activity_of(body: bytes) -> Mapping[str, object]:
    """Return the activity in a request.

    Raises:
        UnreadableError: there is none.
    """
    found = load(body, "the body")
    if not isinstance(found, dict):
        raise UnreadableError("the body is not an activity")
    return found


def is_of(activity: Mapping[str, object], tenant: str) -> bool:
    """Whether the activity comes from this tenant, by all that names one."""
    named = (
        _text(_table(activity.get("conversation")), "tenantId"),
        _text(_table(_table(activity.get("channelData")).get("tenant")), "id"),
    )
    given = {each.lower() for each in named if each}
    return given == {tenant}


def conversation_of(activity: Mapping[str, object]) -> str:
    """Return the channel or chat of an activity, without the message in it."""
    found = _text(_table(activity.get("conversation")), "id")
    return found.partition(";")[0]


def read(activity: Mapping[str, object]) -> Invoke:
    """Return the click or look.

    Args:
        activity: an invoke of the name ``NAME``, whose sender was checked.

    Raises:
        UnreadableError: it lacks something, or does not come from one of our cards.
    """
    person = _table(activity.get("from"))
    user = _text(person, "aadObjectId").lower()
    if not is_object_id(user):
        raise UnreadableError("the activity names no person of Entra ID")
    action = _table(_table(activity.get("value")).get("action"))
    verb, data = _text(action, "verb"), _table(action.get("data"))
    if verb not in _VERBS:
        raise UnreadableError("the action is not one of the bot's")
    event_id, own_id = _text(data, "eventId"), _text(activity, "id")
    digest = "" if verb == "look" else _text(data, "digest")
    if not event_id or not own_id or (verb != "look" and not digest):
        raise UnreadableError("the action lacks eventId, digest or id")
    return Invoke(
        id=f"{user}/{own_id}",
        user=user,
        name=" ".join(_text(person, "name").split())[:_LONGEST_NAME],
        verb=cast("Verb", verb),
        event_id=event_id,
        digest=digest,
    )


def with_card(card: Mapping[str, object]) -> dict[str, object]:
    """Return the answer that shows a card to the person."""
    return {"statusCode": 200, "type": CARD_TYPE, "value": card}


def with_words(words: str) -> dict[str, object]:
    """Return the answer that shows a text to the person, and to nobody else."""
    return {"statusCode": 200, "type": _MESSAGE, "value": words}


def with_error(status: int, code: str, words: str) -> dict[str, object]:
    """Return the answer of an error: the client says that the action failed."""
    value = {"code": code, "message": words}
    return {"statusCode": status, "type": _ERROR, "value": value}


def _table(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _text(owner: Mapping[str, object], name: str) -> str:
    value = owner.get(name)
    return value if isinstance(value, str) and len(value) <= _LONGEST else ""
