"""Refuse a message as Teams does, with its errors. Pure.

Source:  learn.microsoft.com/microsoftteams/platform/bots/how-to/conversations/
         send-proactive-messages (status codes), …/bots/how-to/rate-limit;
         learn.microsoft.com/microsoftteams/limits-specifications-teams (28 KB)
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import orjson

from bridge.simulator.errors import SimulatorError

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


# -- Check whether Teams accepts an Adaptive Card of a bot. Pure -----------------------
#
# The check is stricter than Teams, which ignores unknown members: here each unknown
# member is a fault, because it would have no effect.
#
# Source:  adaptivecards.io/explorer (schema 1.5);
#          learn.microsoft.com/microsoftteams/platform/task-modules-and-cards/cards/
#          cards-reference (Action.Http is refused; version 1.5 or earlier),
#          learn.microsoft.com/adaptive-cards/authoring-cards/universal-action-model
#          (refresh: one Action.Execute, and at most 60 userIds)


Fault = tuple[str, str]
_Check = Callable[[object, str], Iterator[Fault]]

VERSIONS: Final = ("1.0", "1.1", "1.2", "1.3", "1.4", "1.5")
_EXECUTE_SINCE: Final = ("1.4", "1.5")
_MOST_USERS: Final = 60
_MOST_ACTIONS: Final = 6
_DEEPEST: Final = 20
_WIDTH: Final = re.compile(r"\d{1,4}px")


def faults(card: object) -> list[str]:
    """Return the faults of a card, each with its place; empty: the card is valid."""
    return [f"{place}: {words}" for place, words in _card(card, "card")]


def _is(kind: type | tuple[type, ...], words: str) -> _Check:
    def check(value: object, place: str) -> Iterator[Fault]:
        is_bool = isinstance(value, bool) and kind is not bool
        if is_bool or not isinstance(value, kind):
            yield place, f"must be {words}"

    return check


def _one_of(*allowed: str) -> _Check:
    def check(value: object, place: str) -> Iterator[Fault]:
        if not isinstance(value, str) or value.lower() not in allowed:
            yield place, f"must be one of {', '.join(allowed)}"

    return check


def _list(each: _Check) -> _Check:
    def check(value: object, place: str) -> Iterator[Fault]:
        if not isinstance(value, list):
            yield place, "must be a list"
            return
        for number, item in enumerate(value):
            yield from each(item, f"{place}[{number}]")

    return check


def _width(value: object, place: str) -> Iterator[Fault]:
    is_word = isinstance(value, str) and (
        value in {"auto", "stretch"} or _WIDTH.fullmatch(value) is not None
    )
    is_weight = isinstance(value, int) and not isinstance(value, bool) and value > 0
    if not (is_word or is_weight):
        yield place, "must be auto, stretch, a weight, or pixels such as 50px"


def _element(value: object, place: str) -> Iterator[Fault]:
    yield from _typed(value, place, _ELEMENTS)


def _inline(value: object, place: str) -> Iterator[Fault]:
    if not isinstance(value, str):
        yield from _typed(value, place, {"TextRun": _RUN})


def _action(value: object, place: str) -> Iterator[Fault]:
    yield from _typed(value, place, _ACTIONS)


def _actions(value: object, place: str) -> Iterator[Fault]:
    if isinstance(value, list) and len(value) > _MOST_ACTIONS:
        yield place, f"must not have more than {_MOST_ACTIONS} actions"
    yield from _list(_action)(value, place)


def _refresh(value: object, place: str) -> Iterator[Fault]:
    if not isinstance(value, Mapping):
        yield place, "must be an object"
        return
    yield from _typed(
        value.get("action"), f"{place}.action", {"Action.Execute": _EXECUTE}
    )
    users = value.get("userIds", [])
    if isinstance(users, list) and len(users) > _MOST_USERS:
        yield f"{place}.userIds", f"must not have more than {_MOST_USERS} ids"
    yield from _list(_text)(users, f"{place}.userIds")
    if unknown := sorted(set(value) - {"action", "userIds"}):
        yield place, f"has unknown members: {', '.join(map(str, unknown))}"


def _card(value: object, place: str) -> Iterator[Fault]:
    if place.count(".card") > _DEEPEST:
        yield place, "is too deep"
        return
    yield from _typed(value, place, {"AdaptiveCard": _CARD})
    if not isinstance(value, Mapping):
        return
    version = value.get("version")
    if place == "card" and version not in VERSIONS:
        yield f"{place}.version", f"must be one of {', '.join(VERSIONS)}"
    is_old = place == "card" and version not in _EXECUTE_SINCE
    if is_old and "Action.Execute" in str(value):
        yield f"{place}.version", "must be 1.4 or later for Action.Execute"


def _typed(
    value: object, place: str, kinds: Mapping[str, Mapping[str, _Check]]
) -> Iterator[Fault]:
    """Check the members of an object by its type; names that end in ! are required."""
    if not isinstance(value, Mapping):
        yield place, "must be an object"
        return
    kind = value.get("type")
    members = kinds.get(kind) if isinstance(kind, str) else None
    if members is None:
        yield f"{place}.type", f"must be one of {', '.join(sorted(kinds))}"
        return
    for name in (each.rstrip("!") for each in members if each.endswith("!")):
        if name not in value:
            yield place, f"lacks {name}"
    checks = {name.rstrip("!"): check for name, check in members.items()}
    for name, given in value.items():
        if name in checks:
            yield from checks[name](given, f"{place}.{name}")
        elif name != "type":
            yield place, f"has an unknown member: {name}"


_text: Final = _is(str, "a text")
_flag: Final = _is(bool, "true or false")
_table: Final = _is(Mapping, "an object")
_number: Final = _is(int, "a number")
_SPACING: Final = _one_of(
    "none", "small", "default", "medium", "large", "extralarge", "padding"
)
_COLOR: Final = _one_of(
    "default", "dark", "light", "accent", "good", "warning", "attention"
)
_STYLE: Final = _one_of("default", "emphasis", "good", "attention", "warning", "accent")
_ALIGN: Final = _one_of("left", "center", "right")
_ALL: Final[Mapping[str, _Check]] = {
    "id": _text,
    "isVisible": _flag,
    "separator": _flag,
    "spacing": _SPACING,
}
_WORDS: Final[Mapping[str, _Check]] = {
    "text!": _text,
    "color": _COLOR,
    "fontType": _one_of("default", "monospace"),
    "isSubtle": _flag,
    "size": _one_of("small", "default", "medium", "large", "extralarge"),
    "weight": _one_of("lighter", "default", "bolder"),
}
_RUN: Final[Mapping[str, _Check]] = {
    **_WORDS,
    "highlight": _flag,
    "italic": _flag,
    "strikethrough": _flag,
    "underline": _flag,
}
_BOX: Final[Mapping[str, _Check]] = {
    **_ALL,
    "items!": _list(_element),
    "style": _STYLE,
    "bleed": _flag,
    "minHeight": _text,
    "verticalContentAlignment": _one_of("top", "center", "bottom"),
}


def _column(value: object, place: str) -> Iterator[Fault]:
    given = value if not isinstance(value, Mapping) else {"type": "Column", **value}
    yield from _typed(given, place, {"Column": {**_BOX, "width": _width}})


def _fact(value: object, place: str) -> Iterator[Fault]:
    given = value if not isinstance(value, Mapping) else {**value, "type": "Fact"}
    yield from _typed(given, place, {"Fact": {"title!": _text, "value!": _text}})


_ELEMENTS: Final[Mapping[str, Mapping[str, _Check]]] = {
    "TextBlock": {
        **_ALL,
        **_WORDS,
        "horizontalAlignment": _ALIGN,
        "maxLines": _number,
        "style": _one_of("default", "heading"),
        "wrap": _flag,
    },
    "RichTextBlock": {
        **_ALL,
        "inlines!": _list(_inline),
        "horizontalAlignment": _ALIGN,
    },
    "Container": _BOX,
    "ColumnSet": {
        **_ALL,
        "columns!": _list(_column),
        "style": _STYLE,
        "bleed": _flag,
    },
    "FactSet": {**_ALL, "facts!": _list(_fact)},
    "ActionSet": {**_ALL, "actions!": _actions},
}
_BUTTON: Final[Mapping[str, _Check]] = {
    "id": _text,
    "title": _text,
    "tooltip": _text,
    "isEnabled": _flag,
    "mode": _one_of("primary", "secondary"),
    "style": _one_of("default", "positive", "destructive"),
}
_EXECUTE: Final[Mapping[str, _Check]] = {
    **_BUTTON,
    "verb!": _text,
    "data": _table,
    "associatedInputs": _one_of("auto", "none"),
}
_ACTIONS: Final[Mapping[str, Mapping[str, _Check]]] = {
    "Action.Execute": _EXECUTE,
    "Action.ShowCard": {**_BUTTON, "card!": _card},
    "Action.OpenUrl": {**_BUTTON, "url!": _text},
}
_CARD: Final[Mapping[str, _Check]] = {
    "$schema": _text,
    "version": _text,
    "fallbackText": _text,
    "speak": _text,
    "lang": _text,
    "msteams": _table,
    "refresh": _refresh,
    "body": _list(_element),
    "actions": _actions,
}
