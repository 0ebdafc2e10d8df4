"""What an answer means: by its status, and by the rule of ``[sinks.success]``.

A 2xx that the rule does not accept is permanent: the other side has read this event and
refused it. A 2xx without JSON is transient: the answer came from a proxy or a login
page in front of the service.

A refusal is shown with the beginning of the answer, because only the receiver knows why
it refuses. What the request has of secrets is hidden in it: receivers repeat requests.
"""

import html
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from urllib.parse import parse_qsl, quote, urlsplit

import orjson

from bridge.foundation.errors import (
    DeliveryError,
    PermanentDeliveryError,
    Reason,
    TransientDeliveryError,
)
from bridge.foundation.printable import printable
from bridge.foundation.sections import Section
from bridge.net.http_client import MAX_ANSWER_BYTES, Answer, failure

Judge = Callable[[Answer, str], DeliveryError | None]

_NOTHING = object()
_SHOWN = 200  # characters of an answer
_HIDDEN = "<secret>"
_TAG = re.compile(r"<(?:script|style)\b.*?</|<[^>]*>", re.DOTALL | re.IGNORECASE)
_LEAST = 8  # characters of a part of a path that may be a secret


class SuccessConfig(Section, frozen=True, kw_only=True):
    """``[sinks.success]``: which answers count as a delivery.

    Attributes:
        status: the status codes of a success; [] is any 2xx. Another 2xx makes a dead
            letter. Example: ``[200, 202]``.
        json_path: names with dots that lead to a value in the answer; that value must
            be json_equals. Example: ``"errors"``.
        json_equals: the value at json_path; with another value the delivery becomes a
            dead letter. Example: ``false``.
    """

    status: tuple[int, ...] = ()
    json_path: str = ""
    json_equals: bool | int | float | str | None = None

    def faults(self) -> Iterator[tuple[str, ...]]:
        """Check the statuses, and that path and value are set together."""
        for status in self.status:
            if not 200 <= status < 600 or 300 <= status < 400:
                yield "status", f"{status}: must be from 200 to 299 or 400 to 599"
        if bool(self.json_path) != (self.json_equals is not None):
            key = "json_path" if self.json_path else "json_equals"
            yield key, "json_path and json_equals must be set together"
        if self.json_path and not all(self.json_path.split(".")):
            yield "json_path", 'must be names with dots in between, such as "a.b.0"'


def by_status(answer: Answer, target: str) -> DeliveryError | None:
    """Return what the status alone means; None is success."""
    return failure(
        answer.status,
        target=target,
        retry_after=answer.retry_after,
        detail=answer.said,
    )


def by_rule(rule: SuccessConfig, answer: Answer, target: str) -> DeliveryError | None:
    """Return what an answer means by the configured rule; None is success."""
    if not _is_accepted(rule, answer.status):
        what = f"{target} answered {answer.status}, which is not in success.status"
        unexpected = PermanentDeliveryError(_with(what, answer), Reason.REJECTED)
        return by_status(answer, target) or unexpected
    if not rule.json_path:
        return None
    return _by_value(rule, answer, target)


def _is_accepted(rule: SuccessConfig, status: int) -> bool:
    return status in rule.status if rule.status else 200 <= status < 300


def _by_value(rule: SuccessConfig, answer: Answer, target: str) -> DeliveryError | None:
    try:
        value = orjson.loads(answer.body)
    except orjson.JSONDecodeError:
        return no_json(answer, target)
    found = _value_at(rule.json_path, value)
    if found == rule.json_equals and type(found) is type(rule.json_equals):
        return None
    what = f"{target} answered {answer.status} but success.json_path does not hold"
    return PermanentDeliveryError(_with(what, answer), Reason.REJECTED)


def _with(what: str, answer: Answer) -> str:
    return f"{what}: {answer.said}" if answer.said else what


def no_json(answer: Answer, target: str) -> DeliveryError:
    """Return the error for an answer that should be JSON and is not."""
    if len(answer.body) >= MAX_ANSWER_BYTES:
        what = f"{target} answered more than {MAX_ANSWER_BYTES} bytes"
        return PermanentDeliveryError(what, Reason.REJECTED)
    what = f"{target} answered {answer.status} without JSON: is a proxy in between?"
    return TransientDeliveryError(what, Reason.SERVER)


def _value_at(path: str, value: object) -> object:
    """Return the value at a dotted path; a number is an index of an array."""
    for name in path.split("."):
        if isinstance(value, dict):
            value = value.get(name, _NOTHING)
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return _NOTHING
    return value


# -- What of an answer may be shown ----------------------------------------------------


def excerpt(body: bytes, secrets: Collection[str]) -> str:
    """Return the beginning of an answer on one line, safe for a log and a terminal.

    Args:
        body: the answer. Of a page, the text is taken.
        secrets: texts that are hidden, also where they are quoted; "" is none.
    """
    text = body.decode("utf-8", "replace")
    forms = {form for secret in secrets if secret for form in _forms(secret)}
    if forms:  # the longest first: one may be a part of another
        found = "|".join(map(re.escape, sorted(forms, key=len, reverse=True)))
        text = re.sub(found, lambda _: _HIDDEN, text, flags=re.IGNORECASE)
    if text.lstrip().startswith("<") and not text.lstrip().startswith(_HIDDEN):
        text = html.unescape(_TAG.sub(" ", text))
    text = printable(" ".join(text.split()))
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _forms(secret: str) -> Iterable[str]:
    """Return the ways in which an answer may repeat a text."""
    quoted = json.dumps(secret)[1:-1], secret.replace("/", "\\/")
    return secret, *quoted, quote(secret), quote(secret, safe=""), html.escape(secret)


def secrets_of(url: str) -> Iterator[str]:
    """Yield what of a URL may be a secret: all of it but its host, whole and in parts.

    Args:
        url: a valid URL.
    """
    parts = urlsplit(url)
    user, is_there, _ = parts.netloc.rpartition("@")
    yield from (url, parts.query, *user.split(":")) if is_there else (url, parts.query)
    if len(parts.path) > 1:
        yield parts.path
    yield from (one for one in parts.path.split("/") if len(one) >= _LEAST)
    yield from (value for _, value in parse_qsl(parts.query))
