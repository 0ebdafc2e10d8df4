"""Serve the broker's page, and do what its buttons say.

The buttons are forms; a script may post them, too. The answer is the page again.
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
    desk = broker.desk

    async def show(request: web.Request) -> web.Response:
        seen = desk.overview(request.query.get("entity"))
        text = page(seen, desk.now(), refreshes="refresh" in request.query)
        return web.Response(text=text, content_type="text/html", headers=HEADERS)

    async def resubmit(request: web.Request) -> web.Response:
        form = await request.post()
        entity, number = _text(form.get("entity")), _text(form.get("number"))
        with refused_in_words():
            desk.resubmit(entity, _number(number))
        return _back_to(entity)

    async def purge(request: web.Request) -> web.Response:
        form = await request.post()
        entity = _text(form.get("entity"))
        with refused_in_words():
            desk.purge(entity, dead_letters=bool(form.get("dead")))
        return _back_to(entity)

    return [
        web.get("/", show, allow_head=False),
        web.post(RESUBMIT, resubmit),
        web.post(PURGE, purge),
    ]


@contextmanager
def refused_in_words() -> Iterator[None]:
    """Turn what the broker refuses into an answer over HTTP.

    Raises:
        NoSuchEntityError: the entity does not exist.
        BadInputError: it cannot be done.
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
    """Return the number of a form's field; None: it is left out.

    Raises:
        BadInputError: it is no number.
    """
    if not text:
        return None
    if not text.isdecimal() or len(text) > _MOST_DIGITS:
        raise BadInputError("number is a sequence number, in digits")
    return int(text)
