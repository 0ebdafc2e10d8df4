"""``/machines``: the bridge and the events of a machine, and a form to forget a bridge.

``/machines?name=`` redirects to the machine of that name, or lists several.
"""

import logging
from collections.abc import Callable
from typing import Any

from aiohttp import web
from sqlalchemy import Connection

from bridge.hub import views
from bridge.hub.access_config import AccessConfig
from bridge.hub.api import PERSON, fault
from bridge.hub.approving import Approving
from bridge.hub.bridges import Liveness
from bridge.hub.facts import kept_name, text
from bridge.hub.fold import Machine
from bridge.hub.pages import shown
from bridge.hub.pages.frame import FORM, Frame, read_form
from bridge.hub.pages.tokens import is_token, token
from bridge.hub.store import fleet_view
from bridge.hub.view_rows import PAGE, BridgeRow, EventRow, Situation

log = logging.getLogger(__name__)

_LONGEST = 256
_FORGET = "forget"
_QUIET = {Liveness.SILENT, Liveness.STOPPED, Liveness.UNKNOWN}


class MachinePages:
    """Shows machines, and forgets bridges.

    Args:
        frame: renders the pages.
        access: who may decide.
        approving: checks the Origin of forms.
        situation: returns the current Situation.
    """

    def __init__(
        self,
        frame: Frame,
        access: AccessConfig,
        approving: Approving,
        situation: Callable[[], Situation],
    ) -> None:
        self._frame = frame
        self._access = access
        self._approving = approving
        self._situation = situation

    def routes(self) -> list[web.RouteDef]:
        """Return the routes of this class."""
        path = "/machines/{subscription:[^/]+}/{group:[^/]+}/{name:[^/]+}"
        return [
            web.get("/machines", self.named),
            web.post("/machines", self.forget),
            web.get(path, self.machine),
            web.post(path, self.forget),
        ]

    async def named(self, request: web.Request) -> web.Response:
        """Redirect to the machine of a name, or list the machines of that name."""
        if "group" in request.query:
            return await self._machine(request)
        name = kept_name(text(request.query.get("name", "")[:_LONGEST]))
        situation = self._situation()
        found = await self._frame.store.read(lambda c: views.machines_named(c, name))
        if len(found) == 1:
            return web.Response(
                status=302, headers={"Location": shown.address_of(found[0])}
            )
        if not found:
            title = "Nothing is known of a machine of this name"
            return self._frame.missing(request, situation, title)
        rows = [{"href": shown.address_of(one), "machine": one} for one in found]
        given: dict[str, Any] = {"rows": rows, "wanted": name}
        return self._frame.page(request, "machines.html", situation, **given)

    async def machine(self, request: web.Request) -> web.Response:
        """Show one machine."""
        return await self._machine(request)

    async def _machine(
        self, request: web.Request, status: int = 200, notice: str = ""
    ) -> web.Response:
        machine, situation = _machine_in(request), self._situation()

        def look(c: Connection) -> tuple[list[BridgeRow], list[EventRow]]:
            bridges = fleet_view.bridges_of(c, machine, situation)
            return bridges, views.of_machine(c, machine, situation)

        bridges, events = await self._frame.store.read(look)
        if not bridges and not events:
            title = "Nothing is known of this machine"
            return self._frame.missing(request, situation, title)
        key, person = await self._frame.form_key(), request[PERSON]
        now = situation.now
        return self._frame.page(
            request,
            "machine.html",
            situation,
            status,
            machine=machine,
            title=machine.name or "A machine without a name",
            bridges=[
                {
                    **shown.bridge(row, now),
                    "vm_id": row.vm_id,
                    "token": token(key, person.id, _FORGET, row.vm_id),
                    "may_forget": person.may_decide and row.liveness in _QUIET,
                }
                for row in bridges
            ],
            rows=[shown.event(row, self._access, now) for row in events],
            is_cut=len(events) == PAGE,
            empty="No maintenance is known",
            empty_more="No stored event names this machine.",
            notice=notice,
        )

    async def forget(self, request: web.Request) -> web.Response:
        """Declare a bridge gone, by the form on its page."""
        if request.content_type != FORM:
            return fault(415, f"the Content-Type must be {FORM}")
        if what := self._approving.origin_fault(request):
            return fault(403, what)
        form = await read_form(request)
        person, vm_id = request[PERSON], form.get("vm_id", "")
        key = await self._frame.form_key()
        if not is_token(form.get("token", ""), key, person.id, _FORGET, vm_id):
            return await self._machine(
                request, 403, "This form is not for this bridge."
            )
        if not person.may_decide:
            return await self._machine(request, 403, "You may look, but not decide.")
        now = self._situation().now
        await self._frame.store.write(lambda c: fleet_view.forget_bridge(c, vm_id, now))
        log.info("bridge forgotten", extra={"vmId": vm_id, "person": person.id})
        return web.Response(
            status=303, headers={"Location": request.rel_url.raw_path_qs}
        )


def _machine_in(request: web.Request) -> Machine:
    names = ("subscription", "group", "name")
    given = {**request.query, **request.match_info}
    found = (text(given.get(name, "")[:_LONGEST]) for name in names)
    subscription, group, name = (
        "" if part == shown.NOT_KNOWN else part for part in found
    )
    return Machine(
        subscription=subscription.lower(), group=group.lower(), name=kept_name(name)
    )
