"""Renders the templates; they escape every value."""

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from bridge.events.build import rfc3339
from bridge.hub.view_rows import visible

_PLACE: Final = Path(__file__).parent


def _shown(value: object) -> object:
    """Mark what cannot be seen in a text from outside; our own markup stays."""
    return visible(value) if type(value) is str else value


def _exactly(value: str) -> Any:
    """Return a text that a form sends back as it is, escaped."""
    from markupsafe import escape  # noqa: PLC0415 - in an extra

    return escape(value)


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


@dataclass(frozen=True, slots=True)
class Templates:
    """The templates, with the style and the script that all pages share.

    Attributes:
        headers: the headers of every page: nothing is loaded from other sites, and only
            the script with the known hash may run.
    """

    style: str
    script: str
    environment: Any
    headers: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        policy = (
            "default-src 'none'",
            f"style-src {_hash(self.style)}",
            f"script-src {_hash(self.script)}",
            "connect-src 'self'",
            "img-src data:",  # an empty icon: browsers would request /favicon.ico
            "form-action 'self'",
            "base-uri 'none'",
            "frame-ancestors 'none'",
        )
        headers = {
            "Cache-Control": "no-store",
            "Content-Security-Policy": "; ".join(policy),
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
            # our own forms must send Origin; other sites must not get our addresses
            "Referrer-Policy": "same-origin",
        }
        object.__setattr__(self, "headers", headers)

    @classmethod
    def load(cls) -> "Templates":
        """Load the templates, the style and the script."""
        from jinja2 import (  # noqa: PLC0415 - in an extra
            Environment,
            FileSystemLoader,
            StrictUndefined,
        )

        environment = Environment(
            loader=FileSystemLoader(_PLACE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=_shown,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment.filters["exactly"] = _exactly
        style, script = (
            (_PLACE / name).read_text(encoding="utf-8")
            for name in ("style.css", "live.js")
        )
        return cls(style, script, environment)

    def page(self, name: str, now: datetime, **given: Any) -> str:
        """Render a whole page."""
        from markupsafe import Markup  # noqa: PLC0415 - as above

        text: str = self.environment.get_template(name).render(
            style=Markup(self.style),  # noqa: S704 - our own file  # nosec B704
            script=Markup(self.script),  # noqa: S704 - as above  # nosec B704
            now=rfc3339(now),
            now_words=now.strftime("Made at %H:%M:%S."),
            **{"notices": [], **given},
        )
        return text

    def part(self, name: str, **given: Any) -> str:
        """Render a part of a page."""
        text: str = self.environment.get_template(name).render(**given)
        return text
