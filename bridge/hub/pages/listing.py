"""The list of events: parses its query, and prepares its rows for the template."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from sqlalchemy import Connection

from bridge.events.document import EVENT_TYPES
from bridge.hub import views
from bridge.hub.access_config import AccessConfig
from bridge.hub.api import BadQueryError, filters_of
from bridge.hub.pages import shown
from bridge.hub.view_rows import PAGE, Filters, Situation

_KEYS = ("q", "type", "source", "resourceGroup", "open")
_MOST_PAGES = 1000


@dataclass(frozen=True, slots=True)
class ListQuery:
    """The query of a list: its filters and its page.

    Attributes:
        asked: the filters, as in the address.
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
        found = cls(tuple((key, query.get(key, "")) for key in _KEYS), int(text[:9]))
        found.filters()
        return found

    def filters(self) -> Filters:
        """Return the filters for the store; without ``open``, only open events.

        Raises:
            BadQueryError: as ``of``.
        """
        asked = dict(self.asked)
        return filters_of({**asked, "open": asked["open"] or "true"})

    def address(self, number: int) -> str:
        """Return the address of another page of the same list."""
        given = [(key, value) for key, value in self.asked if value]
        more = [("page", str(number))] if number else []
        return f"/?{urlencode([*given, *more])}"


def list_rows(
    connection: Connection,
    query: ListQuery,
    access: AccessConfig,
    situation: Situation,
) -> dict[str, Any]:
    """Return the rows of the list, and the links to the pages before and after."""
    filters = replace(query.filters(), limit=PAGE)
    skip = query.number * PAGE
    found = views.overview(connection, filters, situation, skip=skip)
    rows = [shown.event(row, access, situation.now) for row in found]
    is_narrow = any(value for key, value in query.asked if key != "open")
    return {
        "rows": rows,
        "empty": "Nothing fits" if is_narrow else "Nothing is announced",
        "empty_more": (
            "No event fits these filters."
            if is_narrow
            else "Azure has announced no maintenance for the machines of this hub."
        ),
        "further": query.address(query.number + 1) if len(found) == PAGE else None,
        "back": query.address(query.number - 1) if query.number else None,
    }


def list_frame(found: Mapping[str, Any], query: ListQuery) -> dict[str, Any]:
    """Add the values around the list: title, figures and the form of filters."""
    tiles = shown.tiles(found["rows"])
    waiting = tiles[0]["count"]
    is_over = dict(query.asked)["open"] == "false"
    plural = "event waits" if waiting == 1 else "events wait"
    title = f"{waiting} {plural} for a decision" if waiting else "Nothing needs you now"
    if found["further"] or found["back"]:
        title += " on this page"
    return {
        **found,
        "tiles": tiles,
        "waiting": waiting,
        "title": "What is over" if is_over else title,
        "types": EVENT_TYPES,
        "asked": dict(query.asked),
    }
