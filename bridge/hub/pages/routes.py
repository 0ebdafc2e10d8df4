"""``/``, ``/events/{id}``, ``/bridges``, ``/decisions`` and ``/live``; forms decide.

A form is taken from our own Origin alone, and with the token of the very event and
content that were shown to this person.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from sqlalchemy import Connection, func, select

from bridge.foundation.clock import Clock
from bridge.hub import arm_rules, decision_view, views
from bridge.hub.api import PERSON, fault
from bridge.hub.approving import Approving, parse_fields
from bridge.hub.config import HubConfig
from bridge.hub.facts import key_of
from bridge.hub.pages import shown
from bridge.hub.pages.faults import FaultPages
from bridge.hub.pages.frame import FORM, Frame
from bridge.hub.pages.listing import ListQuery, list_frame, list_rows
from bridge.hub.pages.live import Live
from bridge.hub.pages.machines import MachinePages
from bridge.hub.pages.tokens import is_token, token
from bridge.hub.store import fleet_view
from bridge.hub.store.current_event import current_event, event_bridges
from bridge.hub.store.deciding import VoteResult
from bridge.hub.store.store import Store
from bridge.hub.store.tables import events
from bridge.hub.view_rows import PAGE, EventPage, Situation
from bridge.hub.voting import ARM, CurrentEvent

_LONGEST = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What can be decided about an event.

    Attributes:
        closed: why nothing can be; "" = something can.
        bridge_why: why no bridge can be asked; "" = one can.
        is_arm: whether ARM may be asked.
    """

    closed: str = ""
    bridge_why: str = ""
    is_arm: bool = False


class Pages:
    """Shows the hub in a browser.

    Attributes:
        for_people: shows faults as pages.

    Args:
        store: what is kept.
        config: who may decide, and where to.
        clock: what time it is.
        situation: says how things are at this moment.
    """

    def __init__(
        self,
        store: Store,
        config: HubConfig,
        clock: Clock,
        situation: Callable[[], Situation],
    ) -> None:
        self._store = store
        self._config = config
        self._situation = situation
        self._approving = Approving(store, config, situation)
        self._frame = Frame(store)
        self.error_pages = FaultPages(self._frame.templates, clock).middleware
        self._live = Live(clock, self._version, self._rows)
        self._machines = MachinePages(
            self._frame, config.access, self._approving, situation
        )

    def routes(self) -> list[web.RouteDef]:
        """Return what is answered, and by whom."""
        return [
            web.get("/", self.overview),
            web.get("/live", self._live.stream),
            web.get("/events/{id}", self.event),
            web.post("/events/{id}", self.decide),
            web.get("/bridges", self.bridges),
            web.get("/decisions", self.decisions),
            *self._machines.routes(),
        ]

    async def overview(self, request: web.Request) -> web.Response:
        """List what is announced and running."""
        wanted, situation = ListQuery.of(request.query), self._situation()
        access = self._config.access
        found = await self._store.read(
            lambda c: list_rows(c, wanted, access, situation)
        )
        more = list_frame(found, wanted)
        return self._frame.page(request, "overview.html", situation, here="/", **more)

    async def _rows(self, wanted: ListQuery) -> str:
        situation, access = self._situation(), self._config.access
        found = await self._store.read(
            lambda c: list_rows(c, wanted, access, situation)
        )
        return self._frame.templates.part("rows.html", **found)

    async def _version(self) -> int:
        query = select(func.max(events.c.version))
        return await self._store.read(lambda c: c.scalar(query) or 0)

    async def event(self, request: web.Request) -> web.Response:
        """Show one event, with what can be decided about it."""
        return await self._event(request)

    async def _event(
        self, request: web.Request, status: int = 200, told: str = ""
    ) -> web.Response:
        key, situation = key_of(request.match_info["id"]), self._situation()
        found = await self._store.read(lambda c: views.one_event(c, key, situation))
        if found is None:
            title = "Nothing is known of this event"
            return self._frame.missing(request, situation, title)
        person = request[PERSON]
        offer = await self._offer(key, situation)
        made = token(await self._frame.form_key(), person.id, key, found.row.content)
        return self._frame.page(
            request,
            "event.html",
            situation,
            status,
            event=self._shown(found, situation),
            token=made,
            closed=offer.closed,
            bridge_why=offer.bridge_why,
            is_arm_offered=offer.is_arm,
            told=told,
            told_kind="bad" if status >= 400 else "good",
        )

    def _shown(self, found: EventPage, situation: Situation) -> Mapping[str, Any]:
        return shown.page(found, self._config.access, situation.now)

    async def _offer(self, key: str, situation: Situation) -> Offer:
        def look(connection: Connection) -> Offer:
            current = current_event(connection, key)
            if current is None:
                return Offer(closed="nothing is known of it")
            if what := current.lacks():
                return Offer(closed=f"Nothing can be decided: {what}.")
            return self._offered(connection, current, situation)

        return await self._store.read(look)

    def _offered(
        self, connection: Connection, current: CurrentEvent, situation: Situation
    ) -> Offer:
        bridges, config = event_bridges(connection, current, situation), self._config
        found = bridges.choose_target(config, current, situation)
        is_answered = bridges.is_answered(config)
        objection = arm_rules.objection(
            config.arm, current, bridges.fleet, situation.now, is_answered=is_answered
        )
        why = "" if found.is_open else found.why
        return Offer(bridge_why=why, is_arm=objection is None)

    async def decide(self, request: web.Request) -> web.Response:
        """Take the form of an event."""
        if request.content_type != FORM:
            return fault(415, f"the Content-Type must be {FORM}")
        if what := self._approving.origin_fault(request):
            return fault(403, what)
        form = {key: str(value) for key, value in (await request.post()).items()}
        key, person = key_of(request.match_info["id"]), request[PERSON]
        form_of = (person.id, key, form.get("content", ""))
        if not is_token(form.get("token", ""), await self._frame.form_key(), *form_of):
            return await self._event(request, 403, "This form is not for this event.")
        given = parse_fields(form)
        if given.via == ARM and form.get("confirmed") != "yes":
            return await self._event(request, 400, "This way has to be confirmed.")
        found = await self._approving.submit(request, key, given)
        if found.status in {200, 202}:
            place = {"Location": request.rel_url.raw_path}
            return web.Response(status=303, headers=place)
        return await self._event(request, found.status, _told(found))

    async def bridges(self, request: web.Request) -> web.Response:
        """List the bridges, and how each fares."""
        after, situation = request.query.get("after", "")[:_LONGEST], self._situation()
        found = await self._store.read(
            lambda c: fleet_view.fleet(c, situation, after=after)
        )
        silent = sum(1 for row in found if row.liveness.value == "silent")
        title = f"{silent} of these bridges are silent" if silent else "Bridges"
        if silent == 1:
            title = "One of these bridges is silent"
        further = f"/bridges?after={found[-1].vm_id}" if len(found) == PAGE else None
        rows = shown.bridges(found, situation.now)
        given: dict[str, Any] = {"title": title, "rows": rows, "further": further}
        return self._frame.page(
            request, "bridges.html", situation, here="/bridges", **given
        )

    async def decisions(self, request: web.Request) -> web.Response:
        """List decisions, the newest first."""
        before = decision_view.place_of(request.query.get("before", "")[:_LONGEST])
        situation = self._situation()
        found = await self._store.read(
            lambda c: decision_view.list_decisions(c, before=before)
        )
        further = None
        if len(found) == PAGE:
            further = f"/decisions?before={decision_view.cursor_of(found[-1])}"
        rows = [shown.decision(row, situation.now) for row in found]
        given: dict[str, Any] = {"rows": rows, "further": further}
        given["here"] = "/decisions"
        return self._frame.page(request, "decisions.html", situation, **given)


def _told(found: VoteResult) -> str:
    """Return why something was not done, as a sentence."""
    words = f"{found.words[:1].upper()}{found.words[1:]}."
    return f"{words} This is how it stands now." if found.is_changed else words
