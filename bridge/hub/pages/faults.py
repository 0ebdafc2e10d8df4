"""What a browser is shown where a program would be told in JSON what is wrong."""

from dataclasses import dataclass

from aiohttp import web

from bridge.foundation.clock import Clock
from bridge.hub.api import PERSON, WORDS, Handler
from bridge.hub.pages.rendering import Templates

_REFRESH = "10"
_TITLES = {
    400: "This cannot be asked",
    401: "Nobody is signed in",
    403: "This is not allowed",
    404: "There is no such page",
    503: "The hub cannot reach its database",
}
_KEPT = ("Allow", "WWW-Authenticate")


@dataclass(frozen=True, slots=True)
class FaultPages:
    """Turns faults into pages, for whoever asks with a browser."""

    templates: Templates
    clock: Clock

    @web.middleware
    async def middleware(
        self, request: web.Request, handler: Handler
    ) -> web.StreamResponse:
        """Show a page in place of the JSON of a fault."""
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
        return self.templates.page(
            "fault.html",
            self.clock.now(),
            here="",
            person=request.get(PERSON),
            title=_TITLES.get(status, "This cannot be shown"),
            words=_words(request, status, words),
        )


def _is_browser(request: web.Request) -> bool:
    """Whether a person looks at it, and no program."""
    is_page = not request.path.startswith("/api/")
    return is_page and "text/html" in request.headers.get("Accept", "")


def _words(request: web.Request, status: int, words: str) -> str:
    text = f"{words[:1].upper()}{words[1:]}."
    if status != 503:
        return text
    if request.method == "GET":
        return f"{text} It goes on by itself; this page looks again every 10 seconds."
    return f"{text} Whether it was kept is not known: look before you decide again."
