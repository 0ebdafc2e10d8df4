"""``/api/v1``: events and bridges as JSON, votes, and decisions on keys.

A page of another site must not be able to approve in a person's name. So a POST must be
JSON, must have the header X-Sebridge, and must come from the hub's own Origin. These
are checked before the body is read.

A list continues at the cursor ``next``. Each answer has an ETag; a request with this
ETag in If-None-Match gets 304, if nothing has changed.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

from aiohttp import web
from msgspec.structs import replace
from sqlalchemy import Connection

from bridge.events.cloudevent import clean
from bridge.hub import report, views
from bridge.hub.access import Refusal, origin_fault
from bridge.hub.answers import (
    LONGEST_CURSOR,
    BridgeList,
    DecisionList,
    DecisionRow,
    EventList,
    EventRow,
    HubState,
)
from bridge.hub.bridges import Liveness
from bridge.hub.choices import (
    KEY_STATES,
    WAITING,
    Approval,
    BridgeAsked,
    BridgeDecided,
    Decided,
    KeyList,
    KeysAsked,
    KeysDecided,
)
from bridge.hub.config import HubConfig
from bridge.hub.decisions import DROP_OFFER, SET_ASIDE
from bridge.hub.facts import Machine, kept_name, key_of
from bridge.hub.openapi import document
from bridge.hub.server import (
    ANY_ID,
    PERSON,
    BadQueryError,
    RefusedError,
    T,
    _number,
    answer,
    asked_in,
    fault,
    limit_of,
    table_of,
    word_in,
)
from bridge.hub.store import lists
from bridge.hub.store.accepting import Decider, decide_keys, keys_of
from bridge.hub.store.deciding import (
    VoteRequest,
    VoteResult,
    handle_vote,
)
from bridge.hub.store.rows import made
from bridge.hub.store.store import Store
from bridge.hub.view_rows import Bridge, Filters, Situation

log = logging.getLogger(__name__)

_DAY, _WEEK, _LONGEST_PERIOD = (timedelta(days=days) for days in (1, 7, 400))
_FIRST_WEEK = datetime(1, 1, 8, tzinfo=UTC)  # before it there is no earlier time
_OF_REPORT = (
    *("machine", "resourceGroup", "subscription", "eventType", "events"),
    *("noticeSeconds", "decisionSeconds", "downSeconds", "pausedSeconds"),
    *("plannedSeconds", "unplannedSeconds", "by"),
)
_OF_DECISIONS = (
    *("time", "eventId", "decision", "via", "state", "by", "rule", "reason"),
    *("outcome", "outcomeReason", "id"),
)


class Api:
    """Answers requests from the store, takes votes, and decides on keys.

    Attributes:
        reporting: held while a report is made: one at a time.

    Args:
        store: the store.
        config: who may decide, and where approvals may be sent.
        situation: returns the current Situation.
    """

    def __init__(
        self, store: Store, config: HubConfig, situation: Callable[[], Situation]
    ) -> None:
        self.store = store
        self.config = config
        self.situation = situation
        self.reporting = asyncio.Lock()

    def routes(self) -> list[web.RouteDef]:
        """Return the routes of this class."""
        return [
            web.get("/api/v1/openapi.json", self.openapi),
            web.get("/api/v1/events", self.events),
            web.get(f"/api/v1/events/{ANY_ID}", self.event),
            web.get("/api/v1/bridges", self.bridges),
            web.post("/api/v1/bridges", self.decide_bridge),
            web.get("/api/v1/hub", self.state),
            web.get("/api/v1/timeline", self.timeline),
            web.get("/api/v1/report", self.report),
            web.get("/api/v1/report.csv", self.report),
            web.get(f"/api/v1/events/{ANY_ID}/approval", self.options),
            web.post(f"/api/v1/events/{ANY_ID}/approval", self.approval),
            web.get("/api/v1/decisions", self.decisions),
            web.get("/api/v1/decisions.csv", self.table),
            web.get("/api/v1/keys", self.keys),
            web.post("/api/v1/keys", self.decide_keys),
        ]

    async def openapi(self, request: web.Request) -> web.Response:
        """Describe the API."""
        return answer(request, document())

    async def events(self, request: web.Request) -> web.Response:
        """List events in the order in which they changed."""
        filters, situation = filters_of(request.query), self.situation()
        found = await self.store.read(
            lambda connection: views.list_events(connection, filters, situation)
        )
        more = str(found[-1].version) if len(found) >= filters.limit else None
        return answer(request, EventList(events=tuple(found), next=more))

    async def event(self, request: web.Request) -> web.Response:
        """Show one event."""
        key, situation = key_of(request.match_info["id"]), self.situation()
        before = word_in(request.query, "before")
        if before and views.place_of_message(before) is None:
            raise BadQueryError("before is not a cursor of messages")
        found = await self.store.read(
            lambda connection: views.one_event(connection, key, situation, before)
        )
        if found is None:
            return fault(404, "nothing is known of this event")
        return answer(request, found)

    async def bridges(self, request: web.Request) -> web.Response:
        """List bridges in the order of their vmIds."""
        limit, situation = limit_of(request.query), self.situation()
        state, text, after = (
            word_in(request.query, name) for name in ("state", "q", "cursor")
        )
        if state and state not in {*Liveness}:
            raise BadQueryError(f"state must be one of {', '.join(Liveness)}")

        def read(connection: Connection) -> BridgeList:
            found, more = lists.fleet(
                connection, situation, state=state, text=text, after=after, limit=limit
            )
            return BridgeList(
                bridges=tuple(made(Bridge, row) for row in found),
                total=lists.count_bridges(connection, text),
                next=more or None,
            )

        return answer(request, await self.store.read(read))

    async def decide_bridge(self, request: web.Request) -> web.Response:
        """Say that a bridge is gone."""
        asked = await self._asked(request, BridgeAsked)
        vm_id = clean(asked.vm_id)
        await self.forget(request, vm_id)
        return answer(request, BridgeDecided(vm_id=vm_id))

    async def forget(self, request: web.Request, vm_id: str) -> None:
        """Say that a bridge is gone, for the person who sent a request.

        Raises:
            RefusedError: this person may not, or the bridge is not known.
        """
        person, now = request[PERSON], self.situation().now
        if not person.may_decide:
            raise RefusedError("you may look, but not decide")
        if not await self.store.write(lambda c: lists.forget_bridge(c, vm_id, now)):
            raise RefusedError("nothing is known of this bridge", 404)
        log.info("bridge forgotten", extra={"vmId": vm_id, "person": person.id})

    async def state(self, request: web.Request) -> web.Response:
        """Show what the hub cannot do now, and who asks."""
        situation, person = self.situation(), request[PERSON]
        unread, unwatched = await self.store.read(
            lambda c: (
                lists.count_unread(c, situation.now),
                lists.count_unwatched(c, situation),
            )
        )
        found = HubState(
            store_fault=situation.store_fault,
            not_connected=situation.not_connected,
            drained=situation.drained,
            unread=unread,
            without_heartbeat=unwatched,
            person=person.name,
            may_decide=person.may_decide,
        )
        return answer(request, found)

    async def timeline(self, request: web.Request) -> web.Response:
        """Show what happened to a machine in a period; by default in the last week."""
        situation = self.situation()
        now = situation.now
        since, until = period_of(request.query, now, ("since", "until"))
        machine = machine_in(request.query)
        found = await self.store.read(
            lambda c: report.time_line(c, machine, since, until, now)
        )
        return answer(request, found)

    async def report(self, request: web.Request) -> web.Response:
        """Report on a period, as JSON or CSV; one report at a time."""
        now = self.situation().now
        since, until = period_of(request.query, now, ("from", "to"))
        async with self.reporting:
            found = await self.store.read(
                lambda c: report.report_of(c, since, until, now)
            )
        if not request.path.endswith(".csv"):
            return answer(request, found)
        return table_of("report", found.rows, _OF_REPORT)

    async def options(self, request: web.Request) -> web.Response:
        """Show which decisions are possible for an event, and why others are not."""
        key, situation = key_of(request.match_info["id"]), self.situation()
        found = await self.store.read(
            lambda c: lists.options(c, key, self.config, situation)
        )
        if found is None:
            return fault(404, "nothing is known of this event")
        return answer(request, found)

    async def approval(self, request: web.Request) -> web.Response:
        """Take a vote or a refusal."""
        given = await self._asked(request, Approval)
        key = key_of(request.match_info["id"])
        found = await self.submit(request, key, given)
        if found.status in {200, 202}:
            decided = Decided(
                state="decided" if found.status == 200 else "counted",
                missing=found.missing,
                id=found.id,
            )
            return answer(request, decided, found.status)
        if found.is_changed:
            return fault(409, found.words, event=await self._now(key))
        more = {"needs": found.needs} if found.needs else {}
        return fault(found.status, found.words, **more)

    async def submit(
        self, request: web.Request, key: str, given: Approval
    ) -> VoteResult:
        """Count a vote or a refusal of the person who sent a request."""
        person, situation = request[PERSON], self.situation()
        if given.decision in {SET_ASIDE, DROP_OFFER} and not given.about:
            raise BadQueryError("about is missing: whom or what it is about")
        if not person.may_decide:
            return VoteResult(status=403, words="you may look, but not decide")
        asked = replace(
            given,
            reason=clean(" ".join(given.reason.split())),
            address=clean(given.address),
            about=clean(given.about),
        )
        vote = VoteRequest(key=key, asked=asked, person=person, id=uuid.uuid4().hex)
        return await self.store.write(
            lambda c: handle_vote(c, vote, self.config, situation)
        )

    async def keys(self, request: web.Request) -> web.Response:
        """List the keys that wait, or those that people have accepted."""
        state = request.query.get("state", WAITING)
        if state not in KEY_STATES:
            raise BadQueryError('state must be "waiting" or "accepted"')
        glob, cursor = (word_in(request.query, name) for name in ("match", "cursor"))
        limit = limit_of(request.query)
        found = await self.store.read(lambda c: self.keys_of(c, state=state, glob=glob))
        rest = [one for one in found.keys if one.id > cursor]
        more = rest[limit - 1].id if len(rest) > limit else None
        return answer(request, replace(found, keys=tuple(rest[:limit]), next=more))

    def keys_of(self, connection: Connection, *, state: str, glob: str) -> KeyList:
        """Return the keys that wait, or those that people have accepted."""
        pins = self.store.pinned.refresh(connection)
        return keys_of(connection, pins, self.situation(), state=state, glob=glob)

    async def decide_keys(self, request: web.Request) -> web.Response:
        """Accept or withdraw keys."""
        found = await self.settle_keys(request, await self._asked(request, KeysAsked))
        return answer(request, found, 200 if found.done else 202)

    async def settle_keys(self, request: web.Request, asked: KeysAsked) -> KeysDecided:
        """Accept or withdraw keys for the person who sent a request.

        Raises:
            RefusedError: this person may not, or none can be accepted or withdrawn.
        """
        person, pinned = request[PERSON], self.store.pinned
        now, access = self.situation().now, self.config.access
        by = Decider(person=person, access=access, now=now)
        found = await self.store.write(
            lambda c: decide_keys(c, asked, by, pinned.refresh)
        )
        if isinstance(found, Refusal):
            raise RefusedError(found.words, found.status)
        done = {"decision": asked.decision, "keys": found.done, "person": person.id}
        log.info("keys decided", extra=done)
        return found

    async def _asked(self, request: web.Request, kind: type[T]) -> T:
        """Return what a POST asks.

        Raises:
            RefusedError: another site may have caused it, or it is invalid.
        """
        if request.content_type != "application/json":
            raise RefusedError("the Content-Type must be application/json", 415)
        headers = request.headers
        if headers.getall("X-Sebridge", []) != ["1"]:
            raise RefusedError('the header X-Sebridge must be "1"')
        origins, host = headers.getall("Origin", []), headers.get("Host")
        if what := origin_fault(origins, self.config.public_url, host):
            raise RefusedError(what)
        return asked_in(kind, await request.read())

    async def _now(self, key: str) -> EventRow | None:
        situation = self.situation()
        found = await self.store.read(lambda c: views.one_event(c, key, situation))
        return None if found is None else made(EventRow, found)

    async def decisions(self, request: web.Request) -> web.Response:
        """List decisions, the newest first."""
        rows = await self._rows(request)
        limit = limit_of(request.query)
        more = lists.cursor_of(rows[-1]) if len(rows) >= limit else None
        return answer(request, DecisionList(decisions=tuple(rows), next=more))

    async def table(self, request: web.Request) -> web.Response:
        """List decisions as CSV; a spreadsheet runs no cell of it as a formula."""
        return table_of("decisions", await self._rows(request), _OF_DECISIONS)

    async def _rows(self, request: web.Request) -> list[DecisionRow]:
        cursor = request.query.get("cursor", "")[:LONGEST_CURSOR]
        before = lists.place_of(cursor)
        if cursor and before is None:
            raise BadQueryError("cursor is not a cursor of this list")
        limit = limit_of(request.query)
        return await self.store.read(
            lambda c: lists.list_decisions(c, before=before, limit=limit)
        )


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
