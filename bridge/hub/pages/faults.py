"""Error pages: browsers get them in place of errors in JSON."""

from dataclasses import dataclass

from aiohttp import web

from bridge.foundation.clock import Clock
from bridge.hub.api import PERSON, WORDS, Handler
from bridge.hub.pages.rendering import Content, Templates

_REFRESH = "10"
_TITLES = {
    400: "The request is invalid",
    401: "Nobody is signed in",
    403: "This is not allowed",
    404: "There is no such page",
    503: "The hub cannot reach its database",
}
_KEPT = ("Allow", "WWW-Authenticate")


@dataclass(frozen=True, slots=True)
class FaultPages:
    """Turns errors in JSON into pages, for requests of browsers."""

    templates: Templates
    clock: Clock

    @web.middleware
    async def middleware(
        self, request: web.Request, handler: Handler
    ) -> web.StreamResponse:
        """Replace an error in JSON by a page, if a browser sent the request."""
        found = await handler(request)
        words = found.get(WORDS)
        if words is None or not _is_browser(request):
            return found
        headers = {key: found.headers[key] for key in _KEPT if key in found.headers}
        if found.status == 503 and request.method == "GET":
            headers["Refresh"] = _REFRESH
        return web.Response(
            text=self._text(request, found.status, words),
            status=found.status,
            content_type="text/html",
            headers={**self.templates.headers, **headers},
        )

    def _text(self, request: web.Request, status: int, words: str) -> str:
        told = {"title": _TITLES.get(status, "This cannot be shown")}
        content = Content(
            "fault.html", {**told, "words": _words(request, status, words)}
        )
        person = request.get(PERSON)
        now = self.clock.now()
        return self.templates.page(content, now, person=person, mark="")


def _is_browser(request: web.Request) -> bool:
    """Whether a browser sent the request, and not a program."""
    is_page = not request.path.startswith("/api/")
    return is_page and "text/html" in request.headers.get("Accept", "")


def _words(request: web.Request, status: int, words: str) -> str:
    text = f"{words[:1].upper()}{words[1:]}."
    if status != 503:
        return text
    if request.method == "GET":
        return f"{text} The hub retries by itself; this page reloads every 10 seconds."
    return f"{text} Your decision may be stored or not: check before you decide again."
