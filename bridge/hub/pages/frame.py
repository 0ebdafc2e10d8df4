"""Answers with whole pages, takes their forms, brings open ones up to date.

A request for an address gets the page. One that accepts ``text/event-stream`` gets a
stream that tells when the page shows something else; the browser then asks for the page
again.
"""

import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web
from sqlalchemy import Connection, func, select

from bridge.foundation.clock import Clock
from bridge.hub.access import Person, origin_fault
from bridge.hub.answers import LONGEST_WORD
from bridge.hub.pages.live import Live
from bridge.hub.pages.rendering import Content, Look, Templates
from bridge.hub.server import PERSON, BadQueryError, fault
from bridge.hub.store.engine import insert, noted
from bridge.hub.store.store import Store
from bridge.hub.store.tables import events, meta, notes, trail
from bridge.hub.view_rows import Situation

_FORM = "application/x-www-form-urlencoded"
_STREAM = "text/event-stream"
_MARK = "X-Sebridge-Mark"
_UNSTORED = "The hub can store nothing now, and receives nothing"
_OLD = (
    "Messages that waited for this hub are still being read: what is shown may be old."
)


class Frame:
    """Answers with pages, and reads their forms.

    Args:
        store: the store.
        clock: the clock.
        situation: returns the current Situation.
        public_url: how people reach the hub; forms of another Origin are refused.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        situation: Callable[[], Situation],
        public_url: str,
    ) -> None:
        self.store, self.clock, self.situation = store, clock, situation
        self._public_url = public_url
        self.templates = Templates.load()
        self.live = Live(clock, self._version, self._content)
        self._key = b""

    async def show(self, request: web.Request, look: Look) -> web.StreamResponse:
        """Answer a GET: with the page, or with the stream of its changes."""
        if _STREAM in request.headers.get("Accept", ""):
            return await self.live.stream(request, request[PERSON].id, look)
        mark = request.headers.get(_MARK, "")
        return await self.page(request, look, self.live.known(look, mark))

    async def page(
        self,
        request: web.Request,
        look: Look,
        content: Content | None = None,
        status: int | None = None,
        **given: Any,
    ) -> web.Response:
        """Render a page for the person who sent a request.

        Args:
            request: the request.
            look: the page.
            content: what it shows; None = it is read now.
            status: the HTTP status; None = that of the content.
            given: more values for the template.
        """
        key = await self.form_key() if look.has_form else b""
        situation, person = self.situation(), request[PERSON]

        def work(connection: Connection) -> tuple[Content, str]:
            found = content or content_of(look, connection, situation)
            return found, self._text(found, person, key, situation, given)

        # in a thread of the store: a large page must not stop all others
        found, text = await self.store.read(work)
        return web.Response(
            text=text,
            status=status or found.status,
            content_type="text/html",
            headers=dict(self.templates.headers),
        )

    async def form(
        self,
        request: web.Request,
        look: Look,
        about: Callable[[Mapping[str, str]], tuple[str, str]],
    ) -> dict[str, str] | web.Response:
        """Return the fields of a form; a response = it is refused.

        Of several fields with one name, the last one counts.

        Args:
            request: the request.
            look: the page with the form.
            about: returns the event and the content of its token, from its fields.

        Raises:
            BadQueryError: the body is no text in the charset that the request names.
        """
        if request.content_type != _FORM:
            return fault(415, f"the Content-Type must be {_FORM}")
        headers = request.headers
        origins, host = headers.getall("Origin", []), headers.get("Host")
        if what := origin_fault(origins, self._public_url, host):
            return fault(403, what)
        try:
            fields = await request.post()
        except (LookupError, ValueError) as error:
            raise BadQueryError("the form cannot be read") from error
        form = {key: str(value) for key, value in fields.items()}
        given, person = form.get("token", ""), request[PERSON].id
        if is_token(given, await self.form_key(), person, *about(form)):
            return form
        return await self.again(request, look, form, 403, "it is of another page")

    async def again(
        self,
        request: web.Request,
        look: Look,
        form: Mapping[str, str],
        status: int,
        words: str,
    ) -> web.Response:
        """Show a page again, with why its form is refused, and the reason given."""
        return await self.page(
            request,
            look,
            status=status,
            notice=as_sentence(words),
            reason=form.get("reason", "")[:LONGEST_WORD],
        )

    def _text(
        self,
        content: Content,
        person: Person,
        key: bytes,
        situation: Situation,
        given: dict[str, Any],
    ) -> str:
        return self.templates.page(
            content,
            situation.now,
            person=person,
            token=lambda event, shown: token(key, person.id, event, shown),
            **given,
        )

    async def form_key(self) -> bytes:
        """Return the key that signs the tokens of forms.

        A page with a form is shown although the store can only be read: it is locked,
        full or read-only.
        """
        if not self._key:
            self._key = await self.store.read(stored_key)
        if not self._key:
            self._key = await self.store.write(created_key)
        return self._key

    def fault(
        self, request: web.Request, found: web.StreamResponse, words: str
    ) -> web.Response:
        """Return the page that a browser gets in place of an error in JSON."""
        headers = {key: found.headers[key] for key in _KEPT if key in found.headers}
        if found.status == 503 and request.method == "GET":
            headers["Refresh"] = _REFRESH
        told = {
            "title": _TITLES.get(found.status, "This cannot be shown"),
            "words": _words(request, found.status, words),
        }
        text = self.templates.page(
            Content("fault.html", told),
            self.clock.now(),
            person=request.get(PERSON),
            mark="",
        )
        return web.Response(
            text=text,
            status=found.status,
            content_type="text/html",
            headers={**self.templates.headers, **headers},
        )

    async def _content(self, look: Look) -> Content:
        situation = self.situation()
        return await self.store.read(lambda c: content_of(look, c, situation))

    async def _version(self) -> object:
        """Return a value that each change of an event or of a decision changes."""
        changes = select(func.max(events.c.version)).scalar_subquery()
        entries = select(func.max(trail.c.seq)).scalar_subquery()
        noted = select(func.max(notes.c.time)).scalar_subquery()
        query = select(changes, entries, noted)
        return await self.store.read(lambda c: tuple(c.execute(query).one()))


def content_of(look: Look, connection: Connection, situation: Situation) -> Content:
    """Read what a page shows, with what is wrong with the hub itself."""
    found = look.make(connection, situation)
    values = {"notices": notices(situation), **found.values}
    return Content(found.template, values, found.status)


def notices(situation: Situation) -> list[str]:
    """Return why what is shown may be old; [] = it is not."""
    if situation.store_fault is not None:
        return [f"{_UNSTORED}: {situation.store_fault}."]
    if situation.not_connected:
        return [
            f"The source {name} is not connected ({why}): its messages are not shown."
            for name, why in situation.not_connected.items()
        ]
    return [_OLD] if situation.drained is None else []


def missing(title: str) -> Content:
    """Return the page for something that does not exist."""
    return Content("fault.html", {"title": title, "words": ""}, 404)


def done(request: web.Request) -> web.Response:
    """Return the answer to a form that was taken: the page is loaded again."""
    place = {"Location": request.rel_url.raw_path_qs}
    return web.Response(status=303, headers=place)


def as_sentence(words: str) -> str:
    """Return the reason of an error as a sentence."""
    return f"{words[:1].upper()}{words[1:]}."


# -- Error pages -----------------------------------------------------------------------


_REFRESH = "10"
_TITLES = {
    400: "The request is invalid",
    401: "Nobody is signed in",
    403: "This is not allowed",
    404: "There is no such page",
    503: "The hub cannot reach its database",
}
_KEPT = ("Allow", "WWW-Authenticate")


def _words(request: web.Request, status: int, words: str) -> str:
    text = as_sentence(words)
    if status != 503:
        return text
    if request.method == "GET":
        return f"{text} The hub retries by itself; this page reloads every 10 seconds."
    return f"{text} Your decision may be stored or not: check before you decide again."


# -- Signs forms: the token of a form is valid for one person, event and content -------
#
# A page of another site does not know the token, so it cannot post the form in a
# person's name. A token for another event or another content is refused.


_NAME = "form-key"


def stored_key(connection: Connection) -> bytes:
    """Return the key that all hubs on this store share; empty = there is none yet."""
    return (noted(connection, _NAME) or "").encode()


def created_key(connection: Connection) -> bytes:
    """Return the key that all hubs on this store share; the first hub creates it."""
    made = insert(meta).values(name=_NAME, value=secrets.token_hex(32))
    connection.execute(made.on_conflict_do_nothing())
    return stored_key(connection)


def token(key: bytes, person: str, event: str, content: str) -> str:
    """Return the token of a form.

    Args:
        key: the key of the store, see ``stored_key``.
        person: the id of the person who sees the form.
        event: the EventId in capitals.
        content: the fingerprint of the event that the form shows.
    """
    text = f"{person}\0{event}\0{content}"
    signed = text.encode("utf-8", "replace")
    return hmac.new(key, signed, hashlib.sha256).hexdigest()


def is_token(given: str, key: bytes, person: str, event: str, content: str) -> bool:
    """Whether a token was made for this form."""
    wanted = token(key, person, event, content)
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode())
