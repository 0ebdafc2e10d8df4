"""Serve the broker's page, and handle its buttons.

The buttons are forms, which a script may also post. The answer redirects to the page.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from aiohttp import web

from bridge.simulator.errors import BadInputError, NoSuchEntityError
from bridge.simulator.servicebus.broker import Broker
from bridge.simulator.servicebus.errors import Condition, RefusedError
from bridge.simulator.servicebus.page import HEADERS, PURGE, RESUBMIT, link_to, page

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
