"""The list of events: parses its query, and prepares its rows for the template."""

from collections.abc import Mapping, Sequence
from string import ascii_lowercase, ascii_uppercase
from typing import Any
from urllib.parse import urlencode

from msgspec import Struct
from sqlalchemy import Connection

from bridge.events.vocabulary import EVENT_TYPES
from bridge.hub import views
from bridge.hub.answers import Filters
from bridge.hub.pages import shown
from bridge.hub.pages.frame import notices
from bridge.hub.pages.rendering import Content
from bridge.hub.server import BadQueryError, query_in
from bridge.hub.store import lists
from bridge.hub.view_rows import PAGE, BridgeRow, Situation

_KEYS = ("q", "type", "source", "resourceGroup", "since", "until", "open")
SOURCES = ("Platform", "User")
_SMALL = str.maketrans(ascii_uppercase, ascii_lowercase)
_FOUND = 10
_NAMED = 3
_MOST_PAGES = 1000


class ListQuery(Struct, frozen=True):
    """The query of a list: its filters and its page.

    Attributes:
        asked: the filters of the address in their normal form: queries that are equal
            show the same.
        number: the number of the page, from 0.
    """

    asked: tuple[tuple[str, str], ...]
    number: int

    @classmethod
    def of(cls, query: Mapping[str, str]) -> "ListQuery":
        """Parse the query of an address.

        Raises:
            BadQueryError: a parameter is invalid.
        """
        text = query.get("page", "") or "0"
        if not text.isascii() or not text.isdigit() or int(text[:9]) > _MOST_PAGES:
            raise BadQueryError(f"page must be a number of at most {_MOST_PAGES}")
        asked = {key: " ".join(query.get(key, "").split()) for key in _KEYS}
        normal = {
            "q": asked["q"].translate(_SMALL),
            "type": _named(asked["type"], EVENT_TYPES),
            "source": _named(asked["source"], SOURCES),
            "resourceGroup": asked["resourceGroup"].lower(),
            "since": asked["since"],
            "until": asked["until"],
            "open": "" if asked["open"] == "true" else asked["open"],
        }
        found = cls(tuple(normal.items()), int(text[:9]))
        found.filters()
        return found

    def filters(self) -> Filters:
        """Return the filters for the store; without ``open``, only open events.

        Raises:
            BadQueryError: as ``of``.
        """
        asked = dict(self.asked)
        return query_in(Filters, {**asked, "open": asked["open"] or "true"})

    def address(self, number: int) -> str:
        """Return the address of another page of the same list."""
        given = [(key, value) for key, value in self.asked if value]
        more = [("page", str(number))] if number else []
        return f"/?{urlencode([*given, *more])}"


def _named(given: str, names: Sequence[str]) -> str:
    """Return a name as Azure spells it; a name that is not known stays as it is."""
    return next((one for one in names if one.lower() == given.lower()), given)


def overview_of(
    connection: Connection,
    query: ListQuery,
    situation: Situation,
) -> Content:
    """Read the list of events, with what is wrong with the hub itself."""
    silent = lists.silent(connection, situation)
    rows = _rows(connection, query, situation)
    health = Health(
        silent=len(silent),
        is_deaf=bool(notices(situation)),
        has_bridges=lists.has_bridges(connection),
        may_be_told=lists.count_running(connection, situation) > 0,
        unwatched=lists.count_unwatched(connection, situation),
    )
    return Content(
        "overview.html",
        {
            "here": "/",
            **rows,
            **_around(rows, query, health),
            "silent": _silent(silent),
            "unread": lists.count_unread(connection, situation.now),
            "unwatched": _up_to(health.unwatched),
            **_machines(connection, dict(query.asked)["q"]),
        },
    )


class Health(Struct, frozen=True, kw_only=True):
    """What is wrong with the hub itself, so that its list may not be complete.

    Attributes:
        silent: how many bridges are silent.
        is_deaf: whether a source is not connected, or not read to its end.
        has_bridges: whether any bridge has ever sent a message.
        may_be_told: whether any bridge may run.
        unwatched: how many bridges may run and send no heartbeats.
    """

    silent: int
    is_deaf: bool
    has_bridges: bool
    may_be_told: bool
    unwatched: int

    @property
    def trouble(self) -> str:
        """What a person must know before "nothing needs you" is true; "" = nothing."""
        if self.is_deaf:
            return "The hub does not receive everything"
        if not self.has_bridges:
            return "No bridge has been heard yet"
        if self.silent:
            many = f"{_up_to(self.silent)} bridges are silent"
            return "One bridge is silent" if self.silent == 1 else many
        if self.unwatched:
            many = f"{_up_to(self.unwatched)} bridges send no heartbeat"
            return "One bridge sends no heartbeat" if self.unwatched == 1 else many
        return "" if self.may_be_told else "All bridges have stopped or are gone"

    @property
    def empty(self) -> str:
        """The heading of an empty list."""
        if not self.has_bridges:
            return "No bridge has been heard yet"
        return "No event is known" if self.trouble else "Nothing is announced"

    @property
    def empty_more(self) -> str:
        """What an empty list means."""
        if not (self.has_bridges or self.is_deaf):
            return (
                "Start a forwarder whose events reach a source of this hub: its first "
                "message makes it known. Until then, no event can be shown."
            )
        if self.trouble:
            why = self.trouble[:1].lower() + self.trouble[1:]
            return f"No event is known, but the hub may have missed some: {why}."
        return "Azure has announced no maintenance for the machines of this hub."


def _silent(found: Sequence[BridgeRow]) -> dict[str, Any]:
    named = [
        {"name": shown.name_of(one.name or one.vm_id), "href": shown.machine_of(one)}
        for one in found[:_NAMED]
    ]
    count = len(found)
    more = max(count - _NAMED, 0)
    return {"first": named, "more": more, "count": _up_to(count)}


def _up_to(count: int) -> str:
    """Return a number, of which no more than 200 are counted; "" = 0."""
    return f"{PAGE} or more" if count == PAGE else str(count or "")


def _machines(connection: Connection, text: str) -> dict[str, Any]:
    """Find machines whose names begin with a text: also those without an event."""
    found = lists.bridges_like(connection, text, _FOUND + 1) if text else []
    named = [
        {"name": shown.name_of(name), "href": shown.address_of(machine)}
        for name, machine in found[:_FOUND]
    ]
    return {"machines": named, "is_more_machines": len(found) > _FOUND}


def _rows(
    connection: Connection,
    query: ListQuery,
    situation: Situation,
) -> dict[str, Any]:
    """Return the rows of the list, and the links to the pages before and after."""
    skip = query.number * PAGE
    found = views.overview(connection, query.filters(), situation, skip=skip)
    return {
        "rows": [shown.event(row, situation.now) for row in found],
        "further": query.address(query.number + 1) if len(found) == PAGE else None,
        "back": query.address(query.number - 1) if query.number else None,
    }


def _around(
    found: Mapping[str, Any], query: ListQuery, health: Health
) -> dict[str, Any]:
    """Return the values around the list: title, figures and the form of filters."""
    tiles, asked = shown.tiles(found["rows"]), dict(query.asked)
    waiting = tiles[0]["count"]
    is_narrow = any(value for key, value in query.asked if key != "open")
    plural = "event waits" if waiting == 1 else "events wait"
    title = f"{waiting} {plural} for a decision" if waiting else ""
    calm = "None of these needs you now" if is_narrow else "Nothing needs you now"
    title = title or health.trouble or calm
    if found["further"] or found["back"]:
        title += " on this page"
    return {
        "tiles": tiles,
        "waiting": waiting,
        "trouble": health.trouble,
        "title": "What is over" if asked["open"] == "false" else title,
        "types": EVENT_TYPES,
        "asked": asked,
        "is_filtered": any(asked[key] for key in _KEYS[1:-1]),
        "empty": "Nothing fits" if is_narrow else health.empty,
        "empty_more": (
            "No event fits these filters." if is_narrow else health.empty_more
        ),
    }
