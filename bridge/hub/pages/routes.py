"""The pages ``/``, ``/events/{id}``, ``/bridges`` and ``/decisions``, and ``/live``.

The form of an event is accepted only from the hub's own Origin, and only with a token
for the same person, event and content.
"""

from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web
from sqlalchemy import func, select

from bridge.foundation.clock import Clock
from bridge.hub import decision_view, views
from bridge.hub.api import ANY_ID, PERSON, fault
from bridge.hub.approving import Approving, parse_fields
from bridge.hub.config import HubConfig
from bridge.hub.facts import key_of, text
from bridge.hub.pages import shown
from bridge.hub.pages.faults import FaultPages
from bridge.hub.pages.frame import FORM, Frame, read_form
from bridge.hub.pages.listing import ListQuery, list_frame, list_rows
from bridge.hub.pages.live import Live
from bridge.hub.pages.machines import MachinePages
from bridge.hub.pages.tokens import is_token, token
from bridge.hub.store import fleet_view
from bridge.hub.store.deciding import VoteResult
from bridge.hub.store.options import options
from bridge.hub.store.store import Store
from bridge.hub.store.tables import events
from bridge.hub.view_rows import PAGE, EventPage, Options, Situation
from bridge.hub.voting import ARM

_LONGEST = 256


class Pages:
    """Shows the hub in a browser.

    Attributes:
        error_pages: the middleware that shows errors as pages.

    Args:
        store: the store.
        config: who may decide, and where approvals may be sent.
        clock: the clock.
        situation: returns the current Situation.
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
        """Return the routes of the pages."""
        return [
            web.get("/", self.overview),
            web.get("/live", self._live.stream),
            web.get("/events", self.event),  # ?id=: browsers take "/events/.." for "/"
            web.post("/events", self.decide),
            web.get(f"/events/{ANY_ID}", self.event),
            web.post(f"/events/{ANY_ID}", self.decide),
            web.get("/bridges", self.bridges),
            web.get("/decisions", self.decisions),
            *self._machines.routes(),
        ]

    async def overview(self, request: web.Request) -> web.Response:
        """List events; by default those that are announced or running."""
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
        """Show one event, with the form to decide on it."""
        return await self._event(request)

    async def _event(
        self, request: web.Request, status: int = 200, notice: str = ""
    ) -> web.Response:
        key, situation = _key_in(request), self._situation()
        found = await self._store.read(lambda c: views.one_event(c, key, situation))
        if found is None:
            title = "Nothing is known of this event"
            return self._frame.missing(request, situation, title)
        person = request[PERSON]
        possible = await self._store.read(
            lambda c: options(c, key, self._config, situation)
        )
        made = token(await self._frame.form_key(), person.id, key, found.row.content)
        return self._frame.page(
            request,
            "event.html",
            situation,
            status,
            event=self._shown(found, situation),
            token=made,
            options=possible or Options(closed="nothing is known of it"),
            raised=shown.raised(found.row),
            set_aside=found.aside,
            notice=notice,
            notice_kind="bad" if status >= 400 else "good",
        )

    def _shown(self, found: EventPage, situation: Situation) -> Mapping[str, Any]:
        return shown.page(found, self._config.access, situation.now)

    async def decide(self, request: web.Request) -> web.Response:
        """Handle the form of an event: a vote or a refusal."""
        if request.content_type != FORM:
            return fault(415, f"the Content-Type must be {FORM}")
        if what := self._approving.origin_fault(request):
            return fault(403, what)
        form = await read_form(request)
        key, person = _key_in(request), request[PERSON]
        form_of = (person.id, key, form.get("content", ""))
        if not is_token(form.get("token", ""), await self._frame.form_key(), *form_of):
            return await self._event(request, 403, "This form is not for this event.")
        given = parse_fields(form)
        if given.via == ARM and form.get("confirmed") != "yes":
            return await self._event(request, 400, "This way has to be confirmed.")
        found = await self._approving.submit(request, key, given)
        if found.status in {200, 202}:
            place = {"Location": request.rel_url.raw_path_qs}
            return web.Response(status=303, headers=place)
        return await self._event(request, found.status, _sentence(found))

    async def bridges(self, request: web.Request) -> web.Response:
        """List the bridges, with whether each is alive."""
        after = text(request.query.get("after", "")[:_LONGEST])
        situation = self._situation()
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


def _key_in(request: web.Request) -> str:
    return key_of(request.match_info.get("id") or request.query.get("id", ""))


def _sentence(found: VoteResult) -> str:
    """Return why a vote was refused, as a sentence."""
    words = f"{found.words[:1].upper()}{found.words[1:]}."
    return f"{words} This is how it stands now." if found.is_changed else words
