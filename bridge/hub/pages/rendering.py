"""Renders the templates; they escape every value."""

import base64
import hashlib
import html
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec
import orjson
from msgspec import Struct, field
from sqlalchemy import Connection

from bridge import __version__
from bridge.events.cloudevent import rfc3339
from bridge.hub.pages import shown
from bridge.hub.pages.words import When
from bridge.hub.server import visible
from bridge.hub.view_rows import Situation

_PLACE: Final = Path(__file__).parent
_PRODUCT = f"scheduled-events-bridge {__version__}"
_STALE_AFTER = 35  # seconds without a sign of the hub, until a page is "not live"
_ICON = (
    "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'>"
    "<circle cx='8' cy='8' r='5.5' fill='none' stroke='#2f5fd0' stroke-width='4'/>"
    "</svg>"
)
_ICON_URL = f"data:image/svg+xml;base64,{base64.b64encode(_ICON.encode()).decode()}"


class Content(Struct):
    """What a page shows, the same for everybody who may look.

    Attributes:
        template: the name of the template.
        values: the values for the template.
        status: the HTTP status of the page.
        mark: the fingerprint of the values; the passing of time does not change it.
    """

    template: str
    values: Mapping[str, Any]
    status: int = 200
    mark: str = ""
    _parts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        named = [self.template, self.values]
        plain = orjson.dumps(named, _plain, orjson.OPT_NON_STR_KEYS)
        self.mark = hashlib.sha256(plain).hexdigest()[:16]

    def part(self, name: str, environment: Any, now: datetime) -> Any:
        """Render a part of the page that is the same for everybody; only once."""
        from markupsafe import Markup  # noqa: PLC0415 - in an extra

        if name not in self._parts:
            text = environment.get_template(name).render(**self.values, at=now)
            self._parts[name] = Markup(text)  # noqa: S704 - rendered, escaped  # nosec B704
        return self._parts[name]


def _plain(value: object) -> object:
    if isinstance(value, When):
        return value.iso
    return msgspec.to_builtins(value) if isinstance(value, Struct) else str(value)


class Look(Struct, frozen=True):
    """A page, as an address asks for it.

    Attributes:
        key: the address in its normal form: pages with one key show the same.
        make: reads what the page shows.
        has_form: whether the page may have a form.
    """

    key: str
    make: Callable[[Connection, Situation], Content]
    has_form: bool = False


def _shown(value: object) -> object:
    """Mark what cannot be seen in a text from outside; our own markup stays."""
    return visible(value) if type(value) is str else value


def _exactly(value: str) -> Any:
    """Return a text that a form sends back as it is, escaped."""
    from markupsafe import escape  # noqa: PLC0415 - in an extra

    return escape(value)


def _preformatted(value: str) -> Any:
    """Return a long text for <pre>; quotation marks stay as they are."""
    from markupsafe import Markup  # noqa: PLC0415 - in an extra

    text = html.escape(visible(value), quote=False)
    return Markup(text)  # noqa: S704 - escaped  # nosec B704


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _headers(style: str, script: str) -> Mapping[str, str]:
    policy = (
        "default-src 'none'",
        f"style-src {_hash(style)}",
        f"script-src {_hash(script)}",
        "connect-src 'self'",
        "img-src data:",  # the icon: browsers would request /favicon.ico
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
    return {
        "Cache-Control": "no-store",
        "Content-Security-Policy": "; ".join(policy),
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
        # our own forms must send Origin; other sites must not get our addresses
        "Referrer-Policy": "same-origin",
        "Vary": "Accept",  # the same address answers with a stream of its changes
    }


class Templates(Struct, frozen=True):
    """The templates, with the style and the script that all pages share.

    Attributes:
        headers: the headers of every page: nothing is loaded from other sites, and only
            the script with the known hash may run.
    """

    style: str
    script: str
    environment: Any
    headers: Mapping[str, str]

    @classmethod
    @cache
    def load(cls) -> "Templates":
        """Return the templates, the style and the script, loaded once in a process."""
        from jinja2 import (  # noqa: PLC0415 - in an extra
            Environment,
            FileSystemLoader,
            StrictUndefined,
            pass_context,
        )

        environment = Environment(
            loader=FileSystemLoader(_PLACE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=_shown,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment.globals["show"] = shown
        environment.filters |= {
            "exactly": _exactly,
            "preformatted": _preformatted,
            "moment": pass_context(lambda of, time: shown.time(time, of["at"])),
            "name": shown.name_of,
            "short": shown.short,
            "long": shown.long,
        }
        style, script = (
            (_PLACE / name).read_text(encoding="utf-8")
            for name in ("style.css", "live.js")
        )
        return cls(style, script, environment, _headers(style, script))

    def page(self, content: Content, now: datetime, **given: Any) -> str:
        """Render a whole page."""
        from markupsafe import Markup  # noqa: PLC0415 - as above

        known: dict[str, Any] = {"here": "", "notices": [], "notice": ""}
        known["mark"] = content.mark
        text: str = self.environment.get_template(content.template).render(
            style=Markup(self.style),  # noqa: S704 - our own file  # nosec B704
            script=Markup(self.script),  # noqa: S704 - as above  # nosec B704
            icon=Markup(_ICON_URL),  # noqa: S704 - as above  # nosec B704
            product=_PRODUCT,
            at=now,
            now=rfc3339(now),
            now_words=now.strftime("Made at %H:%M:%S."),
            stale_after=_STALE_AFTER,
            part=lambda name: content.part(name, self.environment, now),
            **{**known, **content.values, **given},
        )
        return text
