"""``/api/v1``: events and bridges as JSON.

A list continues at the cursor ``next``. Each answer has an ETag; a request with this
ETag in If-None-Match gets 304, if nothing has changed.
"""

import asyncio
import csv
import hashlib
import io
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from bridge.events.build import clean
from bridge.foundation.errors import HubStoreError
from bridge.hub import report, views
from bridge.hub.access import Person
from bridge.hub.answers import (
    LONGEST_WORD,
    BridgeList,
    Error,
    EventList,
)
from bridge.hub.facts import kept_name, key_of
from bridge.hub.fold import Machine
from bridge.hub.openapi import document
from bridge.hub.store import lists
from bridge.hub.store.store import Store
from bridge.hub.view_rows import PAGE, Bridge, Filters, Row, Situation

_DAY, _WEEK, _LONGEST_PERIOD = (timedelta(days=days) for days in (1, 7, 400))
_FIRST_WEEK = datetime(1, 1, 8, tzinfo=UTC)  # before it there is no earlier time
ANY_ID = "{id:[^/]+}"  # of a path, percent-encoded: with braces, too
PERSON = web.RequestKey("person", Person)
WORDS = web.ResponseKey("words", str)  # the reason of an error
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_COLUMNS = (
    *("machine", "resourceGroup", "subscription", "eventType", "events"),
    *("noticeSeconds", "decisionSeconds", "downSeconds", "pausedSeconds"),
    *("plannedSeconds", "unplannedSeconds", "by"),
)
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "＝", "＋", "－", "＠")  # noqa: RUF001 - so a spreadsheet of Japan
# Unicode's categories Cc (but for tab and line feed), Cf, Zl, Zp, and fillers: they
# change the order of what is read, or cannot be seen
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890"
    "\u0891\u08e2\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u2800\u3164\ud800-\udfff\ufeff\uffa0\ufff0-\ufffb\U000110bd"
    "\U000110cd\U00013430-\U0001345f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]"
)


T = TypeVar("T")


class BadQueryError(Exception):
    """A request has an invalid parameter or body."""


class Api:
    """Answers read requests from the store.

    Args:
        store: the store.
        situation: returns the current Situation.
    """

    def __init__(self, store: Store, situation: Callable[[], Situation]) -> None:
        self._store = store
        self._situation = situation
        self._reporting = asyncio.Lock()

    def routes(self) -> list[web.RouteDef]:
        """Return the routes of this class."""
        return [
            web.get("/api/v1/openapi.json", self.openapi),
            web.get("/api/v1/events", self.events),
            web.get(f"/api/v1/events/{ANY_ID}", self.event),
            web.get("/api/v1/bridges", self.bridges),
            web.get("/api/v1/timeline", self.timeline),
            web.get("/api/v1/report", self.report),
            web.get("/api/v1/report.csv", self.report),
        ]

    async def openapi(self, request: web.Request) -> web.Response:
        """Describe the API."""
        return answer(request, document())

    async def events(self, request: web.Request) -> web.Response:
        """List events in the order in which they changed."""
        filters, situation = filters_of(request.query), self._situation()
        found = await self._store.read(
            lambda connection: views.list_events(connection, filters, situation)
        )
        more = str(found[-1].version) if len(found) >= filters.limit else None
        return answer(request, EventList(events=tuple(found), next=more))

    async def event(self, request: web.Request) -> web.Response:
        """Show one event."""
        key, situation = key_of(request.match_info["id"]), self._situation()
        before = word_in(request.query, "before")
        if before and views.place_of_message(before) is None:
            raise BadQueryError("before is not a cursor of messages")
        found = await self._store.read(
            lambda connection: views.one_event(connection, key, situation, before)
        )
        if found is None:
            return fault(404, "nothing is known of this event")
        return answer(request, found)

    async def bridges(self, request: web.Request) -> web.Response:
        """List bridges in the order of their vmIds."""
        limit, situation = limit_of(request.query), self._situation()
        after = word_in(request.query, "cursor")
        found = await self._store.read(
            lambda connection: lists.fleet(
                connection, situation, after=after, limit=limit
            )
        )
        more = found[-1].vm_id if len(found) >= limit else None
        rows = tuple(row.only(Bridge) for row in found)
        return answer(request, BridgeList(bridges=rows, next=more))

    async def timeline(self, request: web.Request) -> web.Response:
        """Show what happened to a machine in a period; by default in the last week."""
        situation = self._situation()
        now = situation.now
        since, until = period_of(request.query, now, ("since", "until"))
        machine = machine_in(request.query)
        found = await self._store.read(
            lambda c: report.time_line(c, machine, since, until, now)
        )
        return answer(request, found)

    async def report(self, request: web.Request) -> web.Response:
        """Report on a period, as JSON or CSV; one report at a time."""
        now = self._situation().now
        since, until = period_of(request.query, now, ("from", "to"))
        async with self._reporting:
            found = await self._store.read(
                lambda c: report.report_of(c, since, until, now)
            )
        if not request.path.endswith(".csv"):
            return answer(request, found)
        return table_of("report", found.rows, _COLUMNS)


def machine_in(query: Mapping[str, str]) -> Machine:
    """Parse the query parameters that name a machine."""
    subscription, group, name = (
        word_in(query, key) for key in ("subscription", "resourceGroup", "name")
    )
    return Machine(
        subscription=subscription.lower(), group=group.lower(), name=kept_name(name)
    )


def period_of(
    query: Mapping[str, str], now: datetime, names: tuple[str, str]
) -> tuple[datetime, datetime]:
    """Parse the query parameters of a period; by default the last seven days.

    Args:
        query: the parameters: RFC 3339 times, or days of UTC, the last one included.
        now: the end of the default.
        names: of the begin and the end.

    Raises:
        BadQueryError: a time is invalid, or the period is not within 400 days.
    """
    begin, end = (moment_in(query, name, is_end=name == names[1]) for name in names)
    until = end or now
    since = begin or max(until, _FIRST_WEEK) - _WEEK
    if not since < until or until - since > _LONGEST_PERIOD:
        words = f"{names[0]} must be before {names[1]}, by at most 400 days"
        raise BadQueryError(words)
    return since, until


def moment_in(
    query: Mapping[str, str], name: str, *, is_end: bool = False
) -> datetime | None:
    """Parse a query parameter with a time, or with a day of UTC; None = it is missing.

    Raises:
        BadQueryError: it is neither.
    """
    given = word_in(query, name).strip().replace(" ", "+")  # "+" of an offset, decoded
    if not given:
        return None
    try:
        found = datetime.fromisoformat(given)
        found = found if found.tzinfo else found.replace(tzinfo=UTC)
        is_day = len(given) == len("2026-11-27")
        return found.astimezone(UTC) + (_DAY if is_end and is_day else timedelta())
    except (ValueError, OverflowError):
        words = f"{name} must be a time of RFC 3339, or a day such as 2026-11-27"
        raise BadQueryError(words) from None


def filters_of(query: Mapping[str, str]) -> Filters:
    """Parse the query parameters of a list of events.

    Raises:
        BadQueryError: a parameter is invalid.
    """
    is_open = {"true": True, "false": False, "": None}
    if query.get("open", "") not in is_open:
        raise BadQueryError('open must be "true" or "false"')
    return Filters(
        is_open=is_open[query.get("open", "")],
        event_type=word_in(query, "type"),
        event_source=word_in(query, "source"),
        group=word_in(query, "resourceGroup"),
        status=word_in(query, "status"),
        text=word_in(query, "q"),
        since=moment_in(query, "since"),
        until=moment_in(query, "until", is_end=True),
        after=_number(query, "cursor", 0, 2**62),
        limit=limit_of(query),
    )


def asked_in(kind: type[T], given: bytes | Mapping[str, object]) -> T:
    """Parse what a request asks: its JSON body, or the fields of its form.

    Raises:
        BadQueryError: a value is missing or invalid.
    """
    try:
        if isinstance(given, bytes):
            return msgspec.json.decode(given, type=kind)
        return msgspec.convert(given, kind, strict=False)
    except (ValueError, RecursionError) as error:
        raise BadQueryError(f"it is not as described: {error}") from error


def limit_of(query: Mapping[str, str]) -> int:
    """Parse the query parameter ``limit``.

    Raises:
        BadQueryError: it is not a number from 1 to 200.
    """
    found = _number(query, "limit", PAGE, PAGE)
    if found < 1:
        raise BadQueryError(f"limit must be a number of 1 to {PAGE}")
    return found


def word_in(query: Mapping[str, str], name: str) -> str:
    """Return a query parameter; "" = it is missing.

    Raises:
        BadQueryError: it is too long, or has a NUL character.
    """
    found = query.get(name, "")
    if len(found) > LONGEST_WORD or "\0" in found:
        raise BadQueryError(f"{name} is too long, or has a NUL character")
    return found


def _number(query: Mapping[str, str], name: str, otherwise: int, most: int) -> int:
    found = query.get(name, "")
    if not found:
        return otherwise
    is_number = found.isascii() and found.isdigit() and len(found) <= len(str(most))
    if not is_number or int(found) > most:
        raise BadQueryError(f"{name} must be a number of at most {most}")
    return int(found)


def answer(request: web.Request, value: object, status: int = 200) -> web.Response:
    """Return a value as JSON, or 304 if the client already has it."""
    body = msgspec.json.encode(value)
    mark = hashlib.sha256(body).hexdigest()[:32]
    etag = f'"{mark}"'
    headers = {"ETag": etag, "Cache-Control": "no-cache"}
    given = request.headers.get("If-None-Match", "")
    if status == 200 and etag in {part.strip() for part in given.split(",")}:
        return web.Response(status=304, headers=headers)
    return web.Response(
        body=body, status=status, content_type="application/json", headers=headers
    )


def fault(status: int, words: str, **more: Any) -> web.Response:
    """Return an error as JSON, with the reason; ``more`` are members of ``Error``."""
    body = msgspec.json.encode(Error(error=words, **more))
    headers = {"Cache-Control": "no-store"}
    found = web.Response(
        body=body, status=status, content_type="application/json", headers=headers
    )
    found[WORDS] = words
    return found


@web.middleware
async def faults_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn exceptions of a handler into errors as JSON."""
    try:
        return await handler(request)
    except BadQueryError as error:
        return fault(400, str(error))
    except HubStoreError as error:
        return fault(503, str(error))
    except web.HTTPException as error:
        found = fault(error.status, error.reason)
        if "Allow" in error.headers:
            found.headers["Allow"] = error.headers["Allow"]
        return found


# -- tables ----------------------------------------------------------------------------


def table_of(name: str, rows: Sequence[Row], columns: Sequence[str]) -> web.Response:
    """Return rows as CSV, every cell in quotes.

    Cells that a spreadsheet would run get a leading ', and characters that cannot be
    seen are marked as on the pages; the JSON has them as they came.
    """
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_ALL)
    writer.writerow(columns)
    for one in map(msgspec.to_builtins, rows):
        writer.writerow([_cell(one[column]) for column in columns])
    return web.Response(
        text=out.getvalue(),
        content_type="text/csv",
        charset="utf-8",
        headers={
            "Content-Disposition": f'attachment; filename="{name}.csv"',
            "Cache-Control": "no-store",
        },
    )


def _cell(value: object) -> str:
    if isinstance(value, int | float):
        return str(round(value, 3))
    text = ", ".join(value) if isinstance(value, list | tuple) else str(value or "")
    plain = visible(clean(" ".join(text.split())))
    is_formula = plain.lstrip().startswith(_FORMULA)
    return f"'{plain}" if is_formula else plain


def visible(text: str) -> str:
    """Replace characters that cannot be seen by marks: U+202E becomes "[U+202E]".

    Otherwise a name could be read backwards, or look the same as another one.
    Source: unicode.org/reports/tr36, section 3 (bidirectional and invisible text)
    """
    return _UNSEEN.sub(lambda found: f"[U+{ord(found[0]):04X}]", text)
