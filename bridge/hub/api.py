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
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from aiohttp import web
from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy import Connection

from bridge.events.cloudevent import clean
from bridge.hub import openapi, report, views
from bridge.hub.access import Refusal, origin_fault
from bridge.hub.answers import (
    Asked,
    BridgeList,
    BridgesAsked,
    DecisionList,
    EventList,
    EventPage,
    EventRow,
    Filters,
    HubState,
    Listed,
    MessagesAsked,
)
from bridge.hub.choices import (
    Approval,
    BridgeAsked,
    BridgeDecided,
    Decided,
    KeyList,
    KeysAsked,
    KeysDecided,
    KeysListed,
    Options,
    VoteRequest,
    VoteResult,
)
from bridge.hub.config import HubConfig
from bridge.hub.decisions import DROP_OFFER, SET_ASIDE
from bridge.hub.facts import Machine, kept_name, key_of
from bridge.hub.openapi import Json, Operation, camel
from bridge.hub.report import Report, ReportAsked
from bridge.hub.server import (
    ANY_ID,
    PERSON,
    BadQueryError,
    RefusedError,
    T,
    answer,
    asked_in,
    fault,
    query_in,
    table_of,
)
from bridge.hub.store import lists
from bridge.hub.store.accepting import Decider, decide_keys, keys_of
from bridge.hub.store.deciding import handle_vote
from bridge.hub.store.rows import made
from bridge.hub.store.store import Store
from bridge.hub.timeline import TimeLine, TimeLineAsked
from bridge.hub.view_rows import Bridge, Situation

log = logging.getLogger(__name__)

_WEEK, _LONGEST_PERIOD = (timedelta(days=days) for days in (7, 400))
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


H = TypeVar("H", bound=Callable[..., Any])
_EVENT = f"events/{ANY_ID}"
_OPERATIONS: dict[str, Operation] = {}  # by their handlers


def _serves(
    path: str, answer: type[Struct] | None = None, **asked: Any
) -> Callable[[H], H]:
    """Say what a handler is asked and what it answers: see ``Operation``."""

    def note(handler: H) -> H:
        _OPERATIONS[handler.__name__] = Operation(
            path=f"/api/v1/{path}",
            name=camel(handler.__name__),
            words=(handler.__doc__ or "").partition("\n")[0],
            answer=answer,
            **asked,
        )
        return handler

    return note


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
            (web.post if one.body else web.get)(one.path, getattr(self, handler))
            for handler, one in _OPERATIONS.items()
        ]

    @_serves("openapi.json")
    async def get_description(self, request: web.Request) -> web.Response:
        """Describe the API."""
        query_in(Asked, request.query)
        return answer(request, document())

    @_serves("events", EventList, query=Filters)
    async def list_events(self, request: web.Request) -> web.Response:
        """List events in the order in which they changed."""
        filters, situation = query_in(Filters, request.query), self.situation()
        found = await self.store.read(
            lambda connection: views.list_events(connection, filters, situation)
        )
        more = str(found[-1].version) if len(found) >= filters.limit else None
        return answer(request, EventList(events=tuple(found), next=more))

    @_serves(_EVENT, EventPage, query=MessagesAsked)
    async def get_event(self, request: web.Request) -> web.Response:
        """Show one event with its messages, outcomes, decisions and record."""
        key, situation = key_of(request.match_info["id"]), self.situation()
        before = query_in(MessagesAsked, request.query).before
        if before and views.place_of_message(before) is None:
            raise BadQueryError("before is not a cursor of messages")
        found = await self.store.read(
            lambda connection: views.one_event(connection, key, situation, before)
        )
        if found is None:
            return fault(404, "nothing is known of this event")
        return answer(request, found)

    @_serves("bridges", BridgeList, query=BridgesAsked)
    async def list_bridges(self, request: web.Request) -> web.Response:
        """List bridges in the order of their vmIds."""
        asked, situation = query_in(BridgesAsked, request.query), self.situation()

        def read(connection: Connection) -> BridgeList:
            found, more = lists.fleet(connection, situation, asked)
            return BridgeList(
                bridges=tuple(made(Bridge, row) for row in found),
                total=lists.count_bridges(connection, asked.text),
                next=more or None,
            )

        return answer(request, await self.store.read(read))

    @_serves("bridges", BridgeDecided, body=BridgeAsked, refusals=("404",))
    async def decide_bridge(self, request: web.Request) -> web.Response:
        """Say that a bridge is gone, until it is heard again."""
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

    @_serves("hub", HubState)
    async def get_hub(self, request: web.Request) -> web.Response:
        """Show what the hub cannot do now, so that something may be missing."""
        query_in(Asked, request.query)
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

    @_serves("timeline", TimeLine, query=TimeLineAsked)
    async def get_time_line(self, request: web.Request) -> web.Response:
        """Show what happened to a machine: was it down, how long, why."""
        now, asked = self.situation().now, query_in(TimeLineAsked, request.query)
        since, until = period_of(asked, now)
        place = (asked.subscription.lower(), asked.group.lower(), kept_name(asked.name))
        machine = Machine.at(place)
        found = await self.store.read(
            lambda c: report.time_line(c, machine, since, until, now)
        )
        return answer(request, found)

    @_serves("report", Report, query=ReportAsked)
    async def get_report(self, request: web.Request) -> web.Response:
        """Show numbers for each machine and type of event, in at most 400 days."""
        return answer(request, await self._report(request))

    @_serves("report.csv", query=ReportAsked, is_table=True)
    async def get_report_as_csv(self, request: web.Request) -> web.Response:
        """Show the rows of a report as a table; no cell is a formula."""
        found = await self._report(request)
        return table_of("report", found.rows, _OF_REPORT)

    async def _report(self, request: web.Request) -> Report:
        """Return a report; one is made at a time."""
        now = self.situation().now
        since, until = period_of(query_in(ReportAsked, request.query), now)
        async with self.reporting:
            return await self.store.read(
                lambda c: report.report_of(c, since, until, now)
            )

    @_serves(f"{_EVENT}/approval", Options)
    async def get_approval_options(self, request: web.Request) -> web.Response:
        """Show which decisions are possible for an event, and why others are not."""
        query_in(Asked, request.query)
        key, situation = key_of(request.match_info["id"]), self.situation()
        found = await self.store.read(
            lambda c: lists.options(c, key, self.config, situation)
        )
        if found is None:
            return fault(404, "nothing is known of this event")
        return answer(request, found)

    @_serves(
        f"{_EVENT}/approval",
        Decided,
        body=Approval,
        refusals=("409",),
        may_count=True,
    )
    async def decide(self, request: web.Request) -> web.Response:
        """Approve or refuse."""
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

    @_serves("keys", KeyList, query=KeysListed)
    async def list_keys(self, request: web.Request) -> web.Response:
        """List the keys that bridges have told and that are not in hub.keys."""
        asked = query_in(KeysListed, request.query)
        found = await self.store.read(lambda c: self.keys_of(c, asked))
        rest = [one for one in found.keys if one.id > asked.cursor]
        first = tuple(rest[: asked.limit])
        more = first[-1].id if len(rest) > len(first) else None
        return answer(request, replace(found, keys=first, next=more))

    def keys_of(self, connection: Connection, asked: KeysListed) -> KeyList:
        """Return all keys that wait, or that people have accepted."""
        pins = self.store.pinned.refresh(connection)
        return keys_of(connection, pins, self.situation(), asked)

    @_serves("keys", KeysDecided, body=KeysAsked, refusals=("409",), may_count=True)
    async def decide_keys(self, request: web.Request) -> web.Response:
        """Accept keys that wait, or withdraw accepted ones."""
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
        query_in(Asked, request.query)
        return asked_in(kind, await request.read())

    async def _now(self, key: str) -> EventRow | None:
        situation = self.situation()
        found = await self.store.read(lambda c: views.one_event(c, key, situation))
        return None if found is None else made(EventRow, found)

    @_serves("decisions", DecisionList, query=Listed)
    async def list_decisions(self, request: web.Request) -> web.Response:
        """List decisions, the newest first."""
        return answer(request, await self._decisions(request))

    @_serves("decisions.csv", query=Listed, is_table=True)
    async def list_decisions_as_csv(self, request: web.Request) -> web.Response:
        """List decisions as a table; no cell is a formula."""
        found = await self._decisions(request)
        return table_of("decisions", found.decisions, _OF_DECISIONS)

    async def _decisions(self, request: web.Request) -> DecisionList:
        asked = query_in(Listed, request.query)
        before = lists.place_of(asked.cursor)
        if asked.cursor and before is None:
            raise BadQueryError("cursor is not a cursor of this list")
        rows = await self.store.read(
            lambda c: lists.list_decisions(c, before=before, limit=asked.limit)
        )
        more = lists.cursor_of(rows[-1]) if len(rows) >= asked.limit else None
        return DecisionList(decisions=tuple(rows), next=more)


def period_of(
    asked: TimeLineAsked | ReportAsked, now: datetime
) -> tuple[datetime, datetime]:
    """Return the begin and the end of a period; by default the week before now.

    Raises:
        BadQueryError: it has no length, or more than 400 days.
    """
    until = asked.until or now
    since = asked.since or max(until, _FIRST_WEEK) - _WEEK
    if not since < until or until - since > _LONGEST_PERIOD:
        raise BadQueryError("a period must have a length, of at most 400 days")
    return since, until


def document() -> Json:
    """Return the description of the API, as it is served."""
    return openapi.document(_OPERATIONS.values())
