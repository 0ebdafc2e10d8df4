"""Renders whole pages: the frame that all share, and the key of their forms."""

from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from bridge.hub.api import PERSON, BadQueryError
from bridge.hub.pages.rendering import Templates
from bridge.hub.pages.tokens import created_key, stored_key
from bridge.hub.store.store import Store
from bridge.hub.view_rows import Situation

FORM = "application/x-www-form-urlencoded"
_UNSTORED = "The hub can store nothing now, and receives nothing"
_OLD = "Not all sources are connected: what is shown may be old."


@dataclass(slots=True)
class Frame:
    """Renders whole pages."""

    store: Store
    templates: Templates = field(default_factory=Templates.load)
    _key: bytes = b""

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

    def page(
        self,
        request: web.Request,
        name: str,
        situation: Situation,
        status: int = 200,
        **given: Any,
    ) -> web.Response:
        """Render a page for the person who sent a request."""
        notices = [_OLD] if situation.drained is None else []
        if situation.store_fault is not None:
            notices.insert(0, f"{_UNSTORED}: {situation.store_fault}.")
        known = {"here": "", "person": request[PERSON], "notices": notices}
        text = self.templates.page(name, situation.now, **{**known, **given})
        headers = dict(self.templates.headers)
        return web.Response(
            text=text, status=status, content_type="text/html", headers=headers
        )

    def missing(
        self, request: web.Request, situation: Situation, title: str, status: int = 404
    ) -> web.Response:
        """Render the page for something that does not exist."""
        return self.page(
            request, "fault.html", situation, status, title=title, words=""
        )


async def read_form(request: web.Request) -> dict[str, str]:
    """Read the fields of a form; of several with one name, the last one counts.

    Raises:
        BadQueryError: the body is no text in the charset that the request names.
    """
    try:
        fields = await request.post()
    except (LookupError, ValueError) as error:
        raise BadQueryError("the form cannot be read") from error
    return {key: str(value) for key, value in fields.items()}
