"""Parse the arguments of a Web API call, from JSON or a form. Pure.

Source:  docs.slack.dev/apis/web-api (POST bodies)
"""

from collections.abc import Mapping
from email.message import Message
from typing import Final
from urllib.parse import parse_qsl

from bridge.simulator.errors import BadInputError
from bridge.simulator.foreign import load
from bridge.simulator.slack.refusals import RefusedError

_JSON: Final = "application/json"
_FORM: Final = "application/x-www-form-urlencoded"
_CHARSETS: Final = frozenset({"utf-8", "utf8", "iso-8859-1"})
# Form fields that hold JSON as text.
_NESTED: Final = {
    "attachments": "invalid_attachments",
    "blocks": "invalid_blocks_format",
    "metadata": "invalid_metadata_format",
}


def parse(body: bytes, content_type: str | None) -> dict[str, object]:
    """Return the arguments of a call.

    Args:
        body: as sent.
        content_type: the value of the header Content-Type; None: there is no header.

    Raises:
        RefusedError: the body cannot be read.
    """
    if not body:
        return {}
    if not content_type:
        raise RefusedError("missing_post_type")
    kind, charset = _kind(content_type)
    if charset and charset.lower() not in _CHARSETS:
        raise RefusedError("invalid_charset")
    if kind == _JSON:
        return _unpacked(_from_json(body))
    if kind == _FORM:
        return _unpacked(_from_form(body))
    raise RefusedError("invalid_post_type")


def warning(body: bytes, content_type: str | None) -> str | None:
    """Return Slack's warning about a call that it accepts; None: no warning."""
    kind, charset = _kind(content_type or "")
    return "missing_charset" if body and kind == _JSON and not charset else None


def is_true(value: object) -> bool:
    """Return whether an argument is true."""
    return value in (True, 1, "true", "1")


def _kind(content_type: str) -> tuple[str, str | None]:
    header = Message()
    header["Content-Type"] = content_type
    charset = header.get_param("charset")
    return header.get_content_type(), charset if isinstance(charset, str) else None


def _from_json(body: bytes) -> dict[str, object]:
    try:
        value = load(body)
    except BadInputError as error:
        raise RefusedError("invalid_json") from error
    if not isinstance(value, dict):
        raise RefusedError("json_not_object")
    return value


def _from_form(body: bytes) -> dict[str, object]:
    try:
        return dict(
            parse_qsl(body.decode(), keep_blank_values=True, strict_parsing=True)
        )
    except ValueError as error:
        raise RefusedError("invalid_form_data") from error


def _unpacked(arguments: Mapping[str, object]) -> dict[str, object]:
    return {name: _value(name, value) for name, value in arguments.items()}


def _value(name: str, value: object) -> object:
    if name not in _NESTED or not isinstance(value, str) or not value:
        return value
    try:
        return load(value)
    except BadInputError as error:
        raise RefusedError(_NESTED[name]) from error
