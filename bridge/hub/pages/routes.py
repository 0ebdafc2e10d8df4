"""The pages ``/``, ``/events/{id}``, ``/bridges`` and ``/decisions``.

The form of an event is accepted only from the hub's own Origin, and only with a token
for the same person, event and content.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from aiohttp import web
from sqlalchemy import Connection

from bridge.foundation.clock import Clock
from bridge.hub import views
from bridge.hub.answers import BridgesAsked
from bridge.hub.api import Api
from bridge.hub.bridges import Liveness
from bridge.hub.choices import (
    KEY_STATES,
    NO_OPTIONS,
    Approval,
    KeyList,
    KeysAsked,
    KeysDecided,
    KeysListed,
)
from bridge.hub.decisions import ARM
from bridge.hub.facts import key_of, text
from bridge.hub.pages import shown
from bridge.hub.pages.frame import Frame, done, missing
from bridge.hub.pages.listing import ListQuery, overview_of
from bridge.hub.pages.machines import MachinePages
from bridge.hub.pages.rendering import Content, Look
from bridge.hub.server import ANY_ID, RefusedError, asked_in, fault, query_in
from bridge.hub.store import lists
from bridge.hub.store.accepting import MOST_OF_MACHINE
from bridge.hub.view_rows import PAGE, BridgeRow, Situation

_LONGEST = 256
_LONGEST_REASON = 1024


class Pages:
    """Shows the hub in a browser.

    Attributes:
        fault: makes the page of an error.

    Args:
        api: reads and decides.
        clock: the clock.
    """

    def __init__(self, api: Api, clock: Clock) -> None:
        self._api = api
        self._frame = Frame(api.store, clock, api.situation, api.config.public_url)
        self.fault = self._frame.fault
        self._machines = MachinePages(self._frame, api)

    def routes(self) -> list[web.RouteDef]:
        """Return the routes of the pages."""
        return [
            web.get("/", self.overview),
            web.get("/events", self.event),  # ?id=: browsers take "/events/.." for "/"
            web.post("/events", self.decide),
            web.get(f"/events/{ANY_ID}", self.event),
            web.post(f"/events/{ANY_ID}", self.decide),
            web.get(f"/events/{ANY_ID}/messages/{{seq}}", self.message),
            web.get("/bridges", self.bridges),
            web.post("/bridges", self.decide_keys),
            web.get("/decisions", self.decisions),
            *self._machines.routes(),
        ]

    async def overview(self, request: web.Request) -> web.StreamResponse:
        """List events; by default those that are announced or running."""
        wanted = ListQuery.of(request.query)
        look = Look(
            wanted.address(wanted.number),
            lambda c, situation: overview_of(c, wanted, situation),
        )
        return await self._frame.show(request, look)

    async def event(self, request: web.Request) -> web.StreamResponse:
        """Show one event, with the form to decide on it."""
        if "message" in request.query:
            return await self.message(request)
        return await self._frame.show(request, self._look(request))

    def _look(self, request: web.Request) -> Look:
        key, before = _key_in(request), request.query.get("before", "")[:_LONGEST]
        before = before if views.place_of_message(before) else ""

        def make(connection: Connection, situation: Situation) -> Content:
            return self._event(connection, situation, key, before)

        return Look(f"/events/{key}?before={before}", make, has_form=True)

    def _event(
        self, connection: Connection, situation: Situation, key: str, before: str
    ) -> Content:
        found = views.one_event(connection, key, situation, before)
        if found is None:
            return missing("Nothing is known of this event")
        possible = lists.options(connection, key, self._api.config, situation)
        return Content(
            "event.html",
            {
                "event": shown.page(found, situation.now, is_older=bool(before)),
                "options": shown.options(possible or NO_OPTIONS),
                "raised": found.approval.persons.raised_by,
                "set_aside": found.set_aside,
                "reason": "",
            },
        )

    async def message(self, request: web.Request) -> web.Response:
        """Return the bytes of one message, as they came."""
        given = request.match_info.get("seq") or request.query.get("message", "")
        is_number = given.isascii() and given.isdigit() and len(given) < 19
        key, seq = _key_in(request), int(given) if is_number else -1
        body = await self._api.store.read(lambda c: views.message_body(c, key, seq))
        if body is None:
            return fault(404, "the event has no such message")
        return web.Response(
            body=body,
            content_type="application/json",
            headers={"Cache-Control": "no-store"},
        )

    async def decide(self, request: web.Request) -> web.Response:
        """Handle the form of an event: a vote or a refusal."""
        key, look, frame = _key_in(request), self._look(request), self._frame
        form = await frame.form(request, look, lambda f: (key, f.get("content", "")))
        if isinstance(form, web.Response):
            return form
        given = asked_in(Approval, form)
        if given.via == ARM and form.get("confirmed") != "yes":
            words = "this way has to be confirmed"
            return await frame.again(request, look, form, 400, words)
        found = await self._api.submit(request, key, given)
        if found.status in {200, 202}:
            return done(request)
        now = ". This is how it stands now" if found.is_changed else ""
        words = f"{found.words}{now}"
        return await frame.again(request, look, form, found.status, words)

    async def bridges(self, request: web.Request) -> web.StreamResponse:
        """List the bridges, with whether each is alive, and keys that wait."""
        return await self._frame.show(request, self._fleet(request))

    def _fleet(self, request: web.Request) -> Look:
        state, after, name = (
            text(request.query.get(key, "")[:_LONGEST])
            for key in ("state", "after", "q")
        )
        glob = text(request.query.get("keys", "")[:_LONGEST_REASON]).strip()
        asked = {"state": state if state in {*Liveness} else "", "q": name.strip()}
        query = {key: value for key, value in asked.items() if value}
        wanted = query_in(BridgesAsked, {**query, "cursor": after})
        address = shown.with_query("/bridges", **asked, after=after, keys=glob)

        def make(connection: Connection, situation: Situation) -> Content:
            found, more = lists.fleet(connection, situation, wanted)
            total = lists.count_bridges(connection, asked["q"])
            further = (
                shown.with_query("/bridges", **query, after=more) if more else None
            )
            waiting, accepted = (
                self._api.keys_of(connection, KeysListed(state=kind, match=glob))
                for kind in KEY_STATES
            )
            return Content(
                "bridges.html",
                {
                    "keys": _shown_keys(waiting, accepted),
                    "glob": glob,
                    "address": address,
                    "here": "/bridges",
                    "title": _fleet_title(found, total, is_whole=not (more or after)),
                    "rows": shown.bridges(found),
                    "further": further,
                    "asked": asked,
                    "states": tuple(Liveness),
                    "is_narrow": bool(query),
                },
            )

        return Look(address, make, has_form=True)

    async def decide_keys(self, request: web.Request) -> web.Response:
        """Accept or withdraw keys, by the forms of the list of bridges."""
        look, frame = self._fleet(request), self._frame
        form = await frame.form(
            request, look, lambda f: (f.get("decision", ""), f.get("keys", ""))
        )
        if isinstance(form, web.Response):
            return form
        asked = _asked_keys(form)
        try:
            found = await self._api.settle_keys(request, asked)
        except RefusedError as error:
            return await frame.again(request, look, form, error.status, str(error))
        if words := _refusals(found):
            return await frame.again(request, look, form, 200, words)
        return done(request)

    async def decisions(self, request: web.Request) -> web.StreamResponse:
        """List decisions, the newest first."""
        cursor = request.query.get("before", "")[:_LONGEST]
        before = lists.place_of(cursor)

        def make(connection: Connection, _: Situation) -> Content:
            found = lists.list_decisions(connection, before=before)
            further = None
            if len(found) == PAGE:
                further = f"/decisions?before={lists.cursor_of(found[-1])}"
            given = {"here": "/decisions", "rows": found, "further": further}
            return Content("decisions.html", given)

        look = Look(f"/decisions?before={cursor if before else ''}", make)
        return await self._frame.show(request, look)


def _fleet_title(found: Sequence[BridgeRow], total: int, *, is_whole: bool) -> str:
    """Return the heading of the list of bridges: the silent ones, or how many."""
    silent = sum(1 for row in found if row.liveness is Liveness.SILENT)
    bridges = "1 bridge" if total == 1 else f"{total} bridges"
    if not silent:
        return bridges if total else "Bridges"
    where = "" if is_whole else " on this page"
    return f"{bridges}, {silent} of them silent{where}"


def _key_in(request: web.Request) -> str:
    return key_of(request.match_info.get("id") or request.query.get("id", ""))


# -- the keys on ``/bridges`` ----------------------------------------------------------


def _shown_keys(waiting: KeyList, accepted: KeyList) -> shown.Shown:
    """Return the values of keys, by resource id: the first 200 of each kind."""
    rows, known = (
        sorted(found.keys, key=lambda one: (one.resource_id, one.id))
        for found in (waiting, accepted)
    )
    counts = Counter(one.resource_id for one in rows)
    return {
        "rows": rows[:PAGE],
        "more": max(len(rows) - PAGE, 0),
        "crowded": [name for name, n in counts.items() if n >= MOST_OF_MACHINE],
        "is_full": waiting.is_full,
        "wanted": waiting.wanted,
        "accepted": known[:PAGE],
        "more_accepted": max(len(known) - PAGE, 0),
    }


def _asked_keys(form: Mapping[str, str]) -> KeysAsked:
    """Return which keys a form accepts or withdraws.

    Raises:
        BadQueryError: a field is missing or invalid.
    """
    pairs = [one.partition(":") for one in form.get("keys", "").split()]
    keys = [{"id": id_, "why": why} for id_, _, why in pairs]
    return asked_in(KeysAsked, {"decision": form.get("decision"), "keys": keys})


def _refusals(found: KeysDecided) -> str:
    """Return which keys of a form were refused; "" = none."""
    count = len(found.refused)
    if not count:
        return ""
    keys = "1 key was" if count == 1 else f"{count} keys were"
    others = f"{len(found.done) + len(found.counted)} others were taken"
    return f"{keys} refused: {found.refused[0].why}; {others}"
