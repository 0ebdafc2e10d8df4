"""Bodies from a template of the user, in Jinja2's sandbox.

A template gets ``event``, the CloudEvent in structured JSON, and inserts values with
``tojson``. An undefined value is an error, never an empty text. The sandbox keeps a
template from Python and from files, and the size of a body is limited. It is no
protection against an attacker who can write the configuration. Jinja2 is loaded only if
a template is configured.

Source: https://jinja.palletsprojects.com/en/stable/sandbox/
"""

import re
import traceback
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from msgspec import Struct

from bridge.events.cloudevent import SIGNATURE, CloudEvent
from bridge.foundation.errors import MissingExtraError, PermanentDeliveryError, Reason
from bridge.sinks.webhook.presets.preset import Rendered

if TYPE_CHECKING:
    import jinja2

LONGEST = 1024 * 1024  # bytes of a rendered body
_LONG = 200  # characters of a fault, which may quote the event
_FILE = "file:"
_JSON = re.compile(r"application/(?:[\w.+-]+\+)?json\b", re.IGNORECASE)


class TemplateFaultError(ValueError):
    """A template cannot be read or rendered; the text names the line and the fault."""


class Template(Struct, frozen=True, kw_only=True):
    """A compiled template, and the media type of its result."""

    content_type: str
    compiled: "jinja2.Template"

    def render(self, event: CloudEvent) -> Rendered:
        """Return headers and body of an event.

        Raises:
            PermanentDeliveryError: the template cannot render this event.
        """
        try:
            return {"Content-Type": self.content_type}, self.body(event)
        except TemplateFaultError as error:
            text = f"template: {error}"
            raise PermanentDeliveryError(text, Reason.REJECTED) from None

    def body(self, event: CloudEvent) -> bytes:
        """Return the body of an event.

        Raises:
            TemplateFaultError: rendering fails, or the body is empty, longer than
                ``LONGEST``, or not the JSON that ``content_type`` promises.
        """
        whole = orjson.loads(event.to_json())
        whole.pop(SIGNATURE, None)  # what a template writes are not the signed bytes
        body = self._rendered(whole)
        if not body.strip():
            raise TemplateFaultError("it renders to nothing")
        if _JSON.match(self.content_type):
            _check_json(body)
        return body

    def _rendered(self, event: object) -> bytes:
        body = bytearray()
        try:
            for piece in self.compiled.generate(event=event):
                body += piece.encode()
                if len(body) > LONGEST:
                    break
        except _rendering_errors() as error:
            raise TemplateFaultError(_fault_text(error)) from None
        if len(body) > LONGEST:
            raise TemplateFaultError("it renders to more than 1 MiB")
        return bytes(body)


def source(text: str) -> str:
    """Return the text of a template, read from ``file:PATH`` if it is such a reference.

    Raises:
        TemplateFaultError: the file cannot be read.
    """
    if not text.startswith(_FILE):
        return text
    path = Path(text.removeprefix(_FILE))
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        cause = getattr(error, "strerror", None) or "not UTF-8 text"
        raise TemplateFaultError(f"{path} cannot be read: {cause}") from None


def load(text: str, content_type: str) -> Template:
    """Compile a template.

    Args:
        text: as in the configuration.
        content_type: the media type of the result.

    Raises:
        MissingExtraError: Jinja2 is not installed.
        TemplateFaultError: the template cannot be read or compiled.
    """
    return _compiled(source(text), content_type)


@lru_cache(maxsize=16)  # the same template is checked, opened and previewed
def _compiled(text: str, content_type: str) -> Template:
    environment = _environment()
    try:
        compiled = environment.from_string(text)
    except _rendering_errors() as error:
        raise TemplateFaultError(_fault_text(error)) from None
    return Template(content_type=content_type, compiled=compiled)


def _environment() -> "jinja2.Environment":
    try:
        from jinja2 import StrictUndefined, Undefined  # noqa: PLC0415 - optional
        from jinja2.sandbox import (  # noqa: PLC0415 - optional
            ImmutableSandboxedEnvironment,
        )
    except ImportError as error:
        raise MissingExtraError('content_mode = "template"', "template") from error

    def tojson(value: object) -> str:
        """Return plain JSON; the built-in filter escapes it for HTML."""
        if isinstance(value, Undefined):
            str(value)  # raises, and names what is undefined
        return orjson.dumps(value).decode()

    class Sandbox(ImmutableSandboxedEnvironment):
        """The sandbox, without the operators that make large values from small ones."""

        intercepted_binops = frozenset({"*", "**"})

        def call_binop(self, _: object, operator: str, left: Any, right: Any) -> Any:
            if operator == "*" and {type(left), type(right)} <= {int, float}:
                return left * right
            raise TypeError("* is for numbers only, and ** is not allowed")

    environment = Sandbox(
        undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True
    )
    environment.filters["tojson"] = tojson
    return environment


def _rendering_errors() -> tuple[type[Exception], ...]:
    """Return what a template's expressions may raise: errors of Jinja2 and Python."""
    from jinja2 import TemplateError  # noqa: PLC0415 - loaded only when needed

    own = (ArithmeticError, AttributeError, LookupError, MemoryError)
    return (TemplateError, *own, RuntimeError, TypeError, ValueError)


def _fault_text(error: Exception) -> str:
    """Return what is wrong, with the line."""
    line = getattr(error, "lineno", None) or _line(error)
    what = str(error)[:_LONG] or type(error).__name__
    return f"line {line}: {what}" if line else what


def _line(error: Exception) -> int | None:
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == "<template>"]
    return lines[-1] if lines else None


def _check_json(body: bytes) -> None:
    try:
        orjson.loads(body)
    except orjson.JSONDecodeError as error:
        what = f"it does not render to JSON: {error}; put values in with | tojson"
        raise TemplateFaultError(what) from None
