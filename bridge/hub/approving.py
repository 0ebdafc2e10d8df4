"""Answers ``POST /api/v1/events/{id}/approval``, ``/api/v1/decisions`` and ``/keys``.

A page of another site must not be able to approve in a person's name. So a POST must be
JSON, must have the header X-Sebridge, and must come from the hub's own Origin. These
are checked before the body is read.
"""

import logging
import uuid
from collections.abc import Callable, Sequence
from datetime import datetime

from aiohttp import web
from msgspec.structs import replace
from sqlalchemy import Connection

from bridge.events.build import clean
from bridge.hub import arm_rules, views
from bridge.hub.access import Refusal, origin_fault
from bridge.hub.answers import LONGEST_CURSOR, DecisionList, DecisionRow, EventRow
from bridge.hub.api import (
    ANY_ID,
    PERSON,
    BadQueryError,
    answer,
    asked_in,
    fault,
    limit_of,
    table_of,
    word_in,
)
from bridge.hub.choices import (
    KEY_STATES,
    NO_OPTIONS,
    WAITING,
    AddressRow,
    Approval,
    ArmOptions,
    BridgeOptions,
    Decided,
    KeyList,
    KeysAsked,
    KeysDecided,
    OfferRow,
    Options,
)
from bridge.hub.config import HubConfig
from bridge.hub.facts import key_of
from bridge.hub.store import lists
from bridge.hub.store.accepting import Decider, decide_keys, keys_of
from bridge.hub.store.current import current_event, event_bridges
from bridge.hub.store.deciding import (
    VoteRequest,
    VoteResult,
    arm_objection,
    handle_vote,
)
from bridge.hub.store.store import Store
from bridge.hub.targets import EventBridges, Target, Wishes, expected_answer, refusal_of
from bridge.hub.view_rows import BridgeRow, Situation
from bridge.hub.voting import DROP_OFFER, SET_ASIDE, CurrentEvent

log = logging.getLogger(__name__)

_COLUMNS = ("time", "eventId", "decision", "via", "state", "by", "rule", "reason")
_MORE = ("outcome", "outcomeReason", "id")


class Approving:
    """Takes votes, and lists decisions.

    Args:
        store: the store.
        config: who may decide, and where approvals may be sent.
        situation: returns the current Situation.
    """

    def __init__(
        self, store: Store, config: HubConfig, situation: Callable[[], Situation]
    ) -> None:
        self._store = store
        self._config = config
        self._situation = situation

    def routes(self) -> list[web.RouteDef]:
        """Return the routes of this class."""
        return [
            web.get(f"/api/v1/events/{ANY_ID}/approval", self.options),
            web.post(f"/api/v1/events/{ANY_ID}/approval", self.approval),
            web.get("/api/v1/decisions", self.decisions),
            web.get("/api/v1/decisions.csv", self.table),
            web.get("/api/v1/keys", self.keys),
            web.post("/api/v1/keys", self.decide_keys),
        ]

    async def options(self, request: web.Request) -> web.Response:
        """Show which decisions are possible for an event, and why others are not."""
        key, situation = key_of(request.match_info["id"]), self._situation()
        found = await self._store.read(
            lambda c: options(c, key, self._config, situation)
        )
        if found is None:
            return fault(404, "nothing is known of this event")
        return answer(request, found)

    async def approval(self, request: web.Request) -> web.Response:
        """Take a vote or a refusal."""
        if refused := self._refusal(request):
            return refused
        given = asked_in(Approval, await request.read())
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
        person, situation = request[PERSON], self._situation()
        if given.decision in {SET_ASIDE, DROP_OFFER} and not given.about:
            raise BadQueryError("about is missing: whom or what it is about")
        if not person.may_decide:
            return VoteResult(status=403, words="you may look, but not decide")
        vote = VoteRequest(
            key=key,
            action=given.decision,
            via=given.via,
            reason=clean(" ".join(given.reason.split())),
            content=given.content,
            person=person,
            id=uuid.uuid4().hex,
            address=clean(given.address),
            is_overridden=given.override,
            about=clean(given.about),
        )
        return await self._store.write(
            lambda c: handle_vote(c, vote, self._config, situation)
        )

    async def keys(self, request: web.Request) -> web.Response:
        """List the keys that wait, or those that people have accepted."""
        state = request.query.get("state", WAITING)
        if state not in KEY_STATES:
            raise BadQueryError('state must be "waiting" or "accepted"')
        glob, cursor = (word_in(request.query, name) for name in ("match", "cursor"))
        limit = limit_of(request.query)
        found = await self._store.read(
            lambda c: self.keys_of(c, state=state, glob=glob)
        )
        rest = [one for one in found.keys if one.id > cursor]
        more = rest[limit - 1].id if len(rest) > limit else None
        return answer(request, replace(found, keys=tuple(rest[:limit]), next=more))

    def keys_of(self, connection: Connection, *, state: str, glob: str) -> KeyList:
        """Return the keys that wait, or those that people have accepted."""
        pins = self._store.pinned.refresh(connection)
        return keys_of(connection, pins, self._situation(), state=state, glob=glob)

    async def decide_keys(self, request: web.Request) -> web.Response:
        """Accept or withdraw keys."""
        if refused := self._refusal(request):
            return refused
        asked = asked_in(KeysAsked, await request.read())
        found = await self.settle_keys(request, asked)
        if isinstance(found, Refusal):
            return fault(found.status, found.words)
        return answer(request, found, 200 if found.done else 202)

    async def settle_keys(
        self, request: web.Request, asked: KeysAsked
    ) -> KeysDecided | Refusal:
        """Accept or withdraw keys for the person who sent a request."""
        person, pinned = request[PERSON], self._store.pinned
        now, access = self._situation().now, self._config.access
        by = Decider(person=person, access=access, now=now)
        found = await self._store.write(
            lambda c: decide_keys(c, asked, by, pinned.refresh)
        )
        if isinstance(found, KeysDecided):
            log.info(
                "keys decided",
                extra={
                    "decision": asked.decision,
                    "keys": found.done,
                    "person": person.id,
                },
            )
        return found

    def _refusal(self, request: web.Request) -> web.Response | None:
        """Return the answer to a request that another site may have caused."""
        if request.content_type != "application/json":
            return fault(415, "the Content-Type must be application/json")
        headers = request.headers
        if headers.getall("X-Sebridge", []) != ["1"]:
            return fault(403, 'the header X-Sebridge must be "1"')
        origins, host = headers.getall("Origin", []), headers.get("Host")
        what = origin_fault(origins, self._config.public_url, host)
        return None if what is None else fault(403, what)

    async def _now(self, key: str) -> EventRow | None:
        situation = self._situation()
        found = await self._store.read(lambda c: views.one_event(c, key, situation))
        return None if found is None else found.only(EventRow)

    async def decisions(self, request: web.Request) -> web.Response:
        """List decisions, the newest first."""
        rows = await self._rows(request)
        limit = limit_of(request.query)
        more = lists.cursor_of(rows[-1]) if len(rows) >= limit else None
        return answer(request, DecisionList(decisions=tuple(rows), next=more))

    async def table(self, request: web.Request) -> web.Response:
        """List decisions as CSV; a spreadsheet runs no cell of it as a formula."""
        return table_of("decisions", await self._rows(request), (*_COLUMNS, *_MORE))

    async def _rows(self, request: web.Request) -> list[DecisionRow]:
        cursor = request.query.get("cursor", "")[:LONGEST_CURSOR]
        before = lists.place_of(cursor)
        if cursor and before is None:
            raise BadQueryError("cursor is not a cursor of this list")
        limit = limit_of(request.query)
        return await self._store.read(
            lambda c: lists.list_decisions(c, before=before, limit=limit)
        )


# -- Reads which decisions are possible for an event, and why others are not -----------


def options(
    connection: Connection, key: str, config: HubConfig, situation: Situation
) -> Options | None:
    """Return which decisions are possible for an event; None = it is not known."""
    current = current_event(connection, key)
    if current is None:
        return None
    if what := current.lacks():
        return replace(NO_OPTIONS, closed=f"Nothing can be decided: {what}.")
    bridges = event_bridges(connection, current, situation)
    found = bridges.choose_target(config, current, situation)
    objection = arm_objection(config, current, bridges, situation)
    is_local = config.access.mode == "loopback"
    more = 0 if is_local else arm_rules.more_persons(bridges.fleet, situation.now)
    return Options(
        closed=None,
        bridge=BridgeOptions(
            why=None if found.is_open else found.why or None,
            contested=found.is_contested,
            refused=found.is_denied,
        ),
        addresses=_addresses(config, current, bridges, situation),
        arm=ArmOptions(
            why=objection,
            more_persons=more,
            offers=_offers(current, bridges.fleet, situation.now) if config.arm else (),
        ),
    )


def _addresses(
    config: HubConfig,
    current: CurrentEvent,
    bridges: EventBridges,
    situation: Situation,
) -> tuple[AddressRow, ...]:
    wishes = Wishes(is_overridden=True)
    best = bridges.choose_target(config, current, situation, wishes).best
    return tuple(
        _address(target, current, situation.now, is_best=target.address == best)
        for target in bridges.allowed(config)
    )


def _address(
    target: Target, current: CurrentEvent, now: datetime, *, is_best: bool
) -> AddressRow:
    return AddressRow(
        id=target.address.id,
        entity=target.address.entity,
        session=target.address.session or None,
        prefix=target.address.prefix,
        machines=tuple(sorted(bridge.name for bridge in target.bridges)),
        answers=target.answers,
        in_resources=target.rank == 0,
        older=target.is_older,
        contested=target.contested or None,
        refusal=refusal_of(target, current, now),
        best=is_best,
    )


def _offers(
    current: CurrentEvent, fleet: Sequence[BridgeRow], now: datetime
) -> tuple[OfferRow, ...]:
    found = []
    for bridge in fleet:
        for offer in arm_rules.recent_offers(bridge, now):
            answer = expected_answer(offer.data, current, bridge.name, now)
            found.append(
                OfferRow(
                    id=offer.id,
                    vm_name=bridge.name,
                    vm_id=offer.vm_id,
                    first_heard=offer.first_heard,
                    last_heard=offer.heard,
                    answer=answer.verdict,
                    why=answer.why or None,
                )
            )
    return tuple(found)
