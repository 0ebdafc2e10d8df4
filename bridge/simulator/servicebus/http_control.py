"""The HTTP API of /simulator/servicebus: the broker's state and its faults.

For tests in other languages and for people; tests in the same process use
Broker.faults. Errors are one sentence: 400 for an invalid request, 404 for an entity
that does not exist.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Annotated, Protocol, get_args

import msgspec
from aiohttp import web
from msgspec.structs import asdict

from bridge.simulator.errors import BadInputError, NoSuchEntityError
from bridge.simulator.foreign import Input, parse
from bridge.simulator.http_server import as_json
from bridge.simulator.servicebus.broker import Broker
from bridge.simulator.servicebus.faults import Faults
from bridge.simulator.servicebus.page import HEADERS, PURGE, RESUBMIT, link_to, page
from bridge.simulator.servicebus.values import Condition, RefusedError

_Seconds = Annotated[float, msgspec.Meta(gt=0, le=3600)]


class _Fault(Input, frozen=True, kw_only=True, tag_field="fault"):
    """A request to begin a fault; the field ``fault`` names it."""


class _DropConnections(_Fault, frozen=True, tag="drop-connections"):
    def begin(self, faults: Faults) -> None:
        faults.drop_connections()


class _DetachLinks(_Fault, frozen=True, kw_only=True, tag="detach-links"):
    entity: str | None = None

    def begin(self, faults: Faults) -> None:
        faults.detach_links(self.entity)


class _ExpireLocks(_Fault, frozen=True, kw_only=True, tag="expire-locks"):
    entity: str

    def begin(self, faults: Faults) -> None:
        faults.expire_locks(self.entity)


class _RefuseAttach(_Fault, frozen=True, kw_only=True, tag="refuse-attach"):
    entity: str
    condition: Condition = Condition.ENTITY_DISABLED

    def begin(self, faults: Faults) -> None:
        faults.refuse_attach(self.entity, self.condition)


class _ServerBusy(_Fault, frozen=True, kw_only=True, tag="server-busy"):
    sends: Annotated[int, msgspec.Meta(ge=1)] = 1

    def begin(self, faults: Faults) -> None:
        faults.busy_for_sends(self.sends)


class _Full(_Fault, frozen=True, kw_only=True, tag="full"):
    entity: str

    def begin(self, faults: Faults) -> None:
        faults.fill(self.entity)


class _Delay(_Fault, frozen=True, kw_only=True, tag="delay"):
    seconds: _Seconds

    def begin(self, faults: Faults) -> None:
        faults.delay_replies(timedelta(seconds=self.seconds))


class _Freeze(_Fault, frozen=True, tag="freeze"):
    def begin(self, faults: Faults) -> None:
        faults.freeze()


class _HoldSessionLocks(_Fault, frozen=True, tag="hold-session-locks"):
    def begin(self, faults: Faults) -> None:
        faults.hold_session_locks = True


_AnyFault = (
    _DropConnections
    | _DetachLinks
    | _ExpireLocks
    | _RefuseAttach
    | _ServerBusy
    | _Full
    | _Delay
    | _Freeze
    | _HoldSessionLocks
)


class _FaultRequest(Protocol):
    """A decoded request to begin a fault."""

    def begin(self, faults: Faults) -> None:
        """Begin the fault."""


_NAMES = ", ".join(str(shape.__struct_config__.tag) for shape in get_args(_AnyFault))
# The allowed values that an error lists, by a part of its text.
_ALLOWED = {"$.fault": _NAMES, "`fault`": _NAMES, "$.condition": ", ".join(Condition)}


def broker_routes(broker: Broker) -> Sequence[web.RouteDef]:
    """Return the page at /, and the routes under /simulator/servicebus."""

    async def show(_request: web.Request) -> web.Response:
        return as_json(_view(broker))

    async def begin(request: web.Request) -> web.Response:
        fault = _parse_fault(await request.read())
        with refusals_as_http_errors():
            fault.begin(broker.faults)
        return as_json(_view(broker))

    async def clear(_request: web.Request) -> web.Response:
        broker.faults.clear()
        return as_json(_view(broker))

    return [
        *page_routes(broker),
        web.get("/simulator/servicebus", show, allow_head=False),
        web.post("/simulator/servicebus/faults", begin),
        web.delete("/simulator/servicebus/faults", clear),
    ]


def _parse_fault(body: bytes) -> _FaultRequest:
    try:
        fault: _FaultRequest = parse(body, _AnyFault)  # type: ignore[arg-type]  # a union is no type
    except BadInputError as error:
        for place, allowed in _ALLOWED.items():
            if place in str(error):
                raise BadInputError(f"{error}; allowed: {allowed}") from error
        raise
    return fault


def _view(broker: Broker) -> object:
    entities = {path: asdict(counts) for path, counts in broker.snapshot().items()}
    return {"entities": entities, "faults": broker.faults.in_force()}


# -- Serve the broker's page, and handle its buttons -----------------------------------
#
# The buttons are forms, which a script may also post. The answer redirects to the page.


_MOST_DIGITS = 18


def page_routes(broker: Broker) -> Sequence[web.RouteDef]:
    """Return the page at ``/`` and its two actions."""
    actions = broker.actions

    async def show(request: web.Request) -> web.Response:
        seen = actions.overview(request.query.get("entity"))
        text = page(seen, actions.now(), refreshes="refresh" in request.query)
        return web.Response(text=text, content_type="text/html", headers=HEADERS)

    async def resubmit(request: web.Request) -> web.Response:
        form = await request.post()
        entity, number = _text(form.get("entity")), _text(form.get("number"))
        with refusals_as_http_errors():
            actions.resubmit(entity, _number(number))
        return _back_to(entity)

    async def purge(request: web.Request) -> web.Response:
        form = await request.post()
        entity = _text(form.get("entity"))
        with refusals_as_http_errors():
            actions.purge(entity, dead_letters=bool(form.get("dead")))
        return _back_to(entity)

    return [
        web.get("/", show, allow_head=False),
        web.post(RESUBMIT, resubmit),
        web.post(PURGE, purge),
    ]


@contextmanager
def refusals_as_http_errors() -> Iterator[None]:
    """Convert a refusal of the broker to an error that becomes an HTTP response.

    Raises:
        NoSuchEntityError: the entity does not exist.
        BadInputError: the broker refuses the action for another reason.
    """
    try:
        yield
    except RefusedError as error:
        if error.condition is Condition.NOT_FOUND:
            raise NoSuchEntityError(error.description) from error
        raise BadInputError(error.description) from error


def _back_to(entity: str) -> web.Response:
    return web.Response(status=303, headers={"Location": link_to(entity)})


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _number(text: str) -> int | None:
    """Return the number in a form field; None: the field is empty.

    Raises:
        BadInputError: the field is not a sequence number.
    """
    if not text:
        return None
    if not text.isdecimal() or len(text) > _MOST_DIGITS:
        raise BadInputError("number has to be a sequence number, in digits")
    return int(text)
