"""The HTTP API of /simulator: a test or a person controls the simulated IMDS.

It needs no Metadata header. Errors are one sentence: 400 for an invalid request, 404
for an event that does not exist, 403 for a page of another site, 409 for a change of
events while given documents are shown.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, TypeVar

import msgspec
from aiohttp import web
from msgspec import UNSET, UnsetType
from msgspec.structs import asdict, replace

from bridge.simulator.errors import BadInputError, NoSuchEventError
from bridge.simulator.faults import Fault, parse_fault
from bridge.simulator.foreign import Input, load, load_object, load_or_text, parse
from bridge.simulator.http_server import as_json
from bridge.simulator.imds.document import ScheduledEvent, Status
from bridge.simulator.imds.lifecycle import Approval, EventLife, StartOn
from bridge.simulator.imds.state import ImdsOptions, ImdsState

_Seconds = Annotated[float, msgspec.Meta(ge=0)]
T = TypeVar("T")
_Action = Callable[[ImdsState, web.Request], Awaitable[object]]


class _NewEvent(Input, frozen=True, kw_only=True):
    type: str
    resources: list[str] | None = None
    event_id: str | None = None
    status: Status = Status.SCHEDULED
    not_before: _Seconds = 900.0
    duration: int = -1
    source: str = "Platform"
    description: str = ""
    started_seconds: _Seconds | None = None


class _EventChange(Input, frozen=True, kw_only=True):
    type: str | UnsetType = UNSET
    resources: list[str] | UnsetType = UNSET
    not_before: float | UnsetType = UNSET
    duration: int | UnsetType = UNSET
    source: str | UnsetType = UNSET
    description: str | UnsetType = UNSET


class _Approver(Input, frozen=True, kw_only=True):
    by: str


class _Incarnation(Input, frozen=True, kw_only=True):
    incarnation: int


class _Options(Input, frozen=True, kw_only=True):
    etag: bool | UnsetType = UNSET
    first_call_delay: _Seconds | UnsetType = UNSET
    start_on: StartOn | UnsetType = UNSET
    rate_limit: bool | UnsetType = UNSET


def control_routes(state: ImdsState) -> Sequence[web.RouteDef]:
    """Return the routes under /simulator."""

    def route(method: str, path: str, action: _Action) -> web.RouteDef:
        async def handler(request: web.Request) -> web.Response:
            return as_json(await action(state, request))

        return web.route(method, "/simulator/" + path, handler)

    return [
        route("GET", "state", _state),
        route("PUT", "document", _show),
        route("DELETE", "document", _show_events),
        route("POST", "events", _schedule),
        route("PATCH", "events/{id}", _change),
        route("DELETE", "events/{id}", _remove),
        route("POST", "events/{id}/start", _start),
        route("POST", "events/{id}/approve", _approve),
        route("POST", "incarnation", _set_incarnation),
        route("PUT", "instance", _replace_instance),
        route("PATCH", "instance", _patch_instance),
        route("DELETE", "instance", _hide_instance),
        route("POST", "faults", _add_fault),
        route("DELETE", "faults", _clear_faults),
        route("GET", "requests", _requests),
        route("DELETE", "requests", _forget_requests),
        route("PUT", "options", _configure),
    ]


async def _state(state: ImdsState, _request: web.Request) -> object:
    return state_view(state)


async def _show(state: ImdsState, request: web.Request) -> object:
    body = await request.read()
    if request.query.get("raw") != "1":
        try:
            load(body)
        except BadInputError as error:
            raise BadInputError(f"{error}; ?raw=1 shows any bytes") from error
    state.show(body)
    return state_view(state)


async def _show_events(state: ImdsState, _request: web.Request) -> object:
    state.show_events()
    return state_view(state)


async def _schedule(state: ImdsState, request: web.Request) -> object:
    given = parse(await request.read(), _NewEvent)
    resources = [state.vm_name] if given.resources is None else given.resources
    event = state.schedule(
        EventLife(
            event_type=given.type,
            resources=tuple(resources),
            event_id=given.event_id,
            status=given.status,
            source=given.source,
            description=given.description,
            duration_seconds=given.duration,
            notice_seconds=given.not_before,
            started_seconds=given.started_seconds,
        )
    )
    return event_view(event)


async def _change(state: ImdsState, request: web.Request) -> object:
    event = state.find(request.match_info["id"])
    given = parse(await request.read(), _EventChange)
    changed = _changed(event, given, state.clock.now())
    state.change(changed)
    return event_view(changed)


def _new(value: T | UnsetType, old: T) -> T:
    return old if isinstance(value, UnsetType) else value


def _changed(event: ScheduledEvent, given: _EventChange, now: float) -> ScheduledEvent:
    before = given.not_before
    return replace(
        event,
        event_type=_new(given.type, event.event_type),
        resources=tuple(_new(given.resources, list(event.resources))),
        not_before=event.not_before if before is UNSET else now + before,
        duration_seconds=_new(given.duration, event.duration_seconds),
        source=_new(given.source, event.source),
        description=_new(given.description, event.description),
    )


async def _remove(state: ImdsState, request: web.Request) -> object:
    state.remove(request.match_info["id"])
    return state_view(state)


async def _start(state: ImdsState, request: web.Request) -> object:
    return event_view(state.start(request.match_info["id"]))


async def _approve(state: ImdsState, request: web.Request) -> object:
    approver = parse(await request.read(), _Approver)
    event_id = request.match_info["id"]
    if not state.approve(event_id, approver.by):
        raise NoSuchEventError(f"there is no event {event_id} in the document")
    return state_view(state)


async def _set_incarnation(state: ImdsState, request: web.Request) -> object:
    state.set_incarnation(parse(await request.read(), _Incarnation).incarnation)
    return state_view(state)


async def _replace_instance(state: ImdsState, request: web.Request) -> object:
    body = await request.read()
    # null: IMDS answers 404, so that clients do not learn the VM's identity
    state.compute = None if body == b"null" else load_object(body)
    return state.compute


async def _patch_instance(state: ImdsState, request: web.Request) -> object:
    given = load_object(await request.read())
    state.compute = {**(state.compute or {}), **given}
    return state.compute


async def _hide_instance(state: ImdsState, _request: web.Request) -> object:
    state.compute = None
    return state.compute


async def _add_fault(state: ImdsState, request: web.Request) -> object:
    state.faults.add(parse_fault(await request.read()))
    return state_view(state)


async def _clear_faults(state: ImdsState, _request: web.Request) -> object:
    state.faults.clear()
    return state_view(state)


async def _requests(state: ImdsState, _request: web.Request) -> object:
    return [asdict(request) for request in state.requests]


async def _forget_requests(state: ImdsState, _request: web.Request) -> object:
    state.requests.clear()
    return []


async def _configure(state: ImdsState, request: web.Request) -> object:
    given = parse(await request.read(), _Options)
    wanted = {
        name: value
        for name in given.__struct_fields__
        if (value := getattr(given, name)) is not UNSET
    }
    state.configure(replace(state.options, **wanted))
    return as_camel(state.options)


# -- The simulated IMDS as plain JSON values with camelCase names ----------------------


def state_view(state: ImdsState) -> dict[str, object]:
    """Return the whole state, with the document as a VM would get it now."""
    return {
        "document": load_or_text(state.peek().body),
        "showsEvents": state.is_live,
        "events": [event_view(event) for event in state.events()],
        "approvals": [_approval_view(approval) for approval in state.approvals],
        "compute": state.compute,
        "options": as_camel(state.options),
        "faults": [_fault_view(fault) for fault in state.faults.waiting()],
        "requests": len(state.requests),
    }


def event_view(event: ScheduledEvent) -> dict[str, object]:
    """Return an event with its approvals and its end, which the document hides."""
    is_scheduled = event.status is Status.SCHEDULED
    return {
        "eventId": event.event_id,
        "type": event.event_type,
        "resources": list(event.resources),
        "status": event.status,
        "startsAt": event.not_before if is_scheduled else None,
        "endsAt": event.ends_at,
        "approvedBy": sorted(event.approved_by),
        "source": event.source,
        "description": event.description,
        "duration": event.duration_seconds,
    }


def as_camel(options: ImdsOptions) -> dict[str, object]:
    """Return options under the names of the control API."""
    return {_camel(name): value for name, value in asdict(options).items()}


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def _approval_view(approval: Approval) -> dict[str, object]:
    return {
        "eventIds": list(approval.event_ids),
        "by": approval.by,
        "at": approval.at,
    }


def _fault_view(fault: Fault) -> dict[str, object]:
    return {
        "fault": type(fault.strike).__name__.lower(),
        "method": fault.method,
        "path": fault.path,
        "times": fault.times,
        "takesEffect": fault.takes_effect,
    }
