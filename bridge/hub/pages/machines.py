"""``/machines``: the bridge, the events and the time line of a machine; ``/report``.

``/machines?name=`` redirects to the machine of that name, or lists several.
"""

from collections.abc import Sequence
from datetime import datetime
from urllib.parse import urlencode

from aiohttp import web
from msgspec.structs import asdict, replace
from sqlalchemy import Connection

from bridge.hub import report, views
from bridge.hub.answers import EventRow
from bridge.hub.api import Api, period_of
from bridge.hub.facts import Machine, kept_name, text
from bridge.hub.pages import shown, words
from bridge.hub.pages.frame import Frame, done, missing
from bridge.hub.pages.rendering import Content, Look
from bridge.hub.report import Report, ReportAsked
from bridge.hub.server import RefusedError, query_in
from bridge.hub.store import lists
from bridge.hub.store.lists import machines_named
from bridge.hub.timeline import Outage, TimeLine, TimeLineAsked, TimeLineEntry
from bridge.hub.view_rows import PAGE, BridgeRow, Situation

_LONGEST = 256
_FORGET = "forget"


class MachinePages:
    """Shows machines, and forgets bridges.

    Args:
        frame: renders the pages.
        api: decides, and makes one report at a time.
    """

    def __init__(self, frame: Frame, api: Api) -> None:
        self._frame = frame
        self._situation = frame.situation
        self._api = api

    def routes(self) -> list[web.RouteDef]:
        """Return the routes of this class."""
        path = "/machines/{subscription:[^/]+}/{group:[^/]+}/{name:[^/]+}"
        return [
            web.get("/machines", self.named),
            web.post("/machines", self.forget),
            web.get(path, self.machine),
            web.post(path, self.forget),
            web.get("/report", self.report),
        ]

    async def named(self, request: web.Request) -> web.StreamResponse:
        """Redirect to the machine of a name, or list the machines of that name."""
        if "group" in request.query:
            return await self.machine(request)
        name = kept_name(text(request.query.get("name", "")[:_LONGEST]))

        def make(connection: Connection, _: Situation) -> Content:
            found = machines_named(connection, name)
            if not found:
                return missing("Nothing is known of a machine of this name")
            rows = [{"href": shown.address_of(one), **asdict(one)} for one in found]
            return Content("machines.html", {"rows": rows, "wanted": name})

        found = await self._frame.store.read(lambda c: machines_named(c, name))
        if len(found) == 1:
            return web.Response(
                status=302, headers={"Location": shown.address_of(found[0])}
            )
        look = Look(shown.with_query("/machines", name=name), make)
        return await self._frame.show(request, look)

    async def machine(self, request: web.Request) -> web.StreamResponse:
        """Show one machine."""
        return await self._frame.show(request, self._look(request))

    async def report(self, request: web.Request) -> web.StreamResponse:
        """Report on a period; a page that is not live, and one at a time."""
        asked = _asked(request, ("from", "to"))
        period = query_in(ReportAsked, asked)
        period_of(period, self._situation().now)

        def make(connection: Connection, situation: Situation) -> Content:
            now = situation.now
            since, until = period_of(period, now)
            found = report.report_of(connection, since, until, now)
            given: dict[str, object] = {
                "asked": asked,
                "query": urlencode(asked),
                "here": "/report",
            }
            given |= {"since": shown.time(since, now), "until": shown.time(until, now)}
            return Content("report.html", {**_report(found), **given})

        async with self._api.reporting:
            return await self._frame.page(request, Look("/report", make), mark="")

    def _look(self, request: web.Request) -> Look:
        machine, asked = _machine_in(request), _asked(request, ("since", "until"))
        period = query_in(TimeLineAsked, asked)
        period_of(period, self._situation().now)

        def make(connection: Connection, situation: Situation) -> Content:
            since, until = period_of(period, situation.now)
            found = report.time_line(connection, machine, since, until, situation.now)
            return self._machine(connection, machine, situation, found, asked)

        key = shown.address_of(machine)
        return Look(f"{key}?{urlencode(asked)}", make, has_form=True)

    def _machine(
        self,
        connection: Connection,
        machine: Machine,
        situation: Situation,
        found: TimeLine,
        asked: dict[str, str],
    ) -> Content:
        bridges = lists.bridges_of(connection, machine, situation)
        events = views.of_machine(connection, machine, situation)
        if not bridges and not events and not found.entries:
            return missing("Nothing is known of this machine")
        now = situation.now
        return Content(
            "machine.html",
            {
                "title": _spelt(machine, bridges, events) or "A machine without a name",
                "group": machine.group,
                "subscription": machine.subscription,
                "bridges": [replace(row, offers=()) for row in bridges],
                "rows": [shown.event(row, now) for row in events],
                "is_cut": len(events) == PAGE,
                "story": _story(found, now),
                "asked": asked,
                "where": _fields_of(machine),
                "empty": "No maintenance is known",
                "empty_more": "No stored event names this machine.",
            },
        )

    async def forget(self, request: web.Request) -> web.Response:
        """Declare a bridge gone, by the form on its page."""
        look, frame = self._look(request), self._frame
        form = await frame.form(request, look, lambda f: (_FORGET, f.get("vm_id", "")))
        if isinstance(form, web.Response):
            return form
        try:
            await self._api.forget(request, form.get("vm_id", ""))
        except RefusedError as error:
            return await frame.again(request, look, form, error.status, str(error))
        return done(request)


def _spelt(
    machine: Machine, bridges: Sequence[BridgeRow], events: Sequence[EventRow]
) -> str:
    """Return the name of a machine as its bridge spells it, or an event."""
    told = [row.name for row in bridges]
    told += [name for row in events for name in row.machines]
    alike = (name for name in told if kept_name(name) == machine.name)
    return next(alike, machine.name)


def _fields_of(machine: Machine) -> dict[str, str]:
    """Return the fields by which a form names a machine."""
    fields = {key: value or shown.NOT_KNOWN for key, value in asdict(machine).items()}
    return {**fields, "name": machine.name}


def _asked(request: web.Request, names: tuple[str, str]) -> dict[str, str]:
    """Return the parameters of a period that are given."""
    given = {name: request.query.get(name, "")[:_LONGEST] for name in names}
    return {name: value for name, value in given.items() if value}


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


# -- time lines and reports ------------------------------------------------------------


_MOST_LINES = 300  # of a time line or a report on a page
_HOW = {"unavailable": "not available", "stopped": "down"}
_LINES = {
    "annotation": "Azure says",
    "window": "Maintenance window",
    "stopped": "Bridge stopped",
    "unavailable": "Not available",
}
_LINE_KINDS = {"back": "good", "available": "good", "silent": "bad"}
_LINE_KINDS |= {"unavailable": "bad", "started": "run", "approved": "good"}


def _story(found: TimeLine, now: datetime) -> shown.Shown:
    """Return the time line of a machine, and its outages; the newest first."""
    return {
        "outages": [_outage(one, now) for one in reversed(found.outages)],
        "lines": [_line(one, now) for one in found.entries[::-1][:_MOST_LINES]],
        "is_cut": found.cut or len(found.entries) > _MOST_LINES,
    }


def _outage(one: Outage, now: datetime) -> shown.Shown:
    how = _HOW.get(one.how, one.how)
    long = words.plain_span(one.seconds) if one.until else "until now"
    return {
        "words": f"{how} {long}",
        "why": shown.short(one.why),
        "kind": {True: "good", False: "bad", None: "wait"}[one.planned],
        "time": shown.time(one.time, now),
        "href": shown.page_of(one.event_id) if one.event_id else None,
        "type": one.event_type or "",
    }


def _line(one: TimeLineEntry, now: datetime) -> shown.Shown:
    long = "" if one.seconds is None else words.plain_span(one.seconds)
    if one.what == "announced" and long:
        long = f"{long} of notice"
    return {
        "time": shown.time(one.time, now),
        "what": _LINES.get(one.what) or words.status(one.what),
        "kind": _LINE_KINDS.get(one.what, ""),
        "words": shown.short(one.words),
        "long": long,
        "href": shown.page_of(one.event_id) if one.event_id else None,
    }


def _report(found: Report) -> shown.Shown:
    """Return the values of a report."""
    totals = found.totals
    return {
        "tiles": [
            {
                "count": totals.events,
                "words": "event" if totals.events == 1 else "events",
                "kind": "",
            },
            *(
                {"count": shown.long(seconds), "words": what, "kind": kind}
                for seconds, what, kind in (
                    (totals.down_seconds, "down", "bad"),
                    (totals.paused_seconds, "paused", "run"),
                    (totals.unplanned_seconds, "of it unplanned", "wait"),
                )
            ),
        ],
        "summary": [
            f"{totals.approved} of {totals.events} events were approved",
            *(
                f"{what} {shown.long(seconds)}"
                for what, seconds in (
                    ("the usual notice was", totals.notice_seconds),
                    ("the usual decision took", totals.decision_seconds),
                )
                if seconds is not None
            ),
        ],
        "rows": found.rows[:_MOST_LINES],
        "more": max(len(found.rows) - _MOST_LINES, 0),
        "is_cut": found.cut,
    }
