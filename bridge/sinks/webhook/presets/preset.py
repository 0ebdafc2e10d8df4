"""A preset: body, answers and authentication of a known service. Pure.

Source: https://github.com/cloudevents/spec/tree/ce@v1.0.2
        (http-protocol-binding.md section 3), for the content modes
"""

import html
import json
import re
from collections.abc import (
    Callable,
    Collection,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from datetime import datetime
from typing import Literal
from urllib.parse import parse_qsl, quote, urlsplit

import orjson
from msgspec import Struct, field

from bridge.events.cloudevent import BATCH_TYPE, STRUCTURED_TYPE, CloudEvent
from bridge.events.routing import Scope
from bridge.foundation.errors import (
    DeliveryError,
    PermanentDeliveryError,
    Reason,
    TransientDeliveryError,
)
from bridge.foundation.printable import printable
from bridge.foundation.sections import Section
from bridge.net.http_client import MAX_ANSWER_BYTES, Answer, failure
from bridge.sinks.webhook.auth import AuthDefaults

# -- One event in a request, as the HTTP binding of CloudEvents defines it -------------

ContentMode = Literal["structured", "binary", "batch", "array", "template"]
Rendered = tuple[dict[str, str], bytes]
JSON: Mapping[str, str] = {"Content-Type": "application/json"}

# All characters that need no encoding: U+0021 to U+007E except double quote, percent.
_UNENCODED = "".join(chr(c) for c in range(0x21, 0x7F) if chr(c) not in '"%')


def render_structured(event: CloudEvent) -> Rendered:
    """Return headers and body of an event in structured mode."""
    return {"Content-Type": f"{STRUCTURED_TYPE}; charset=utf-8"}, event.to_json()


def render_batch(event: CloudEvent) -> Rendered:
    """Return headers and body of a batch of one event."""
    kind = f"{BATCH_TYPE}; charset=utf-8"
    return {"Content-Type": kind}, b"[" + event.to_json() + b"]"


def render_array(event: CloudEvent) -> Rendered:
    """Return headers and body of a plain JSON array of one event."""
    return dict(JSON), b"[" + event.to_json() + b"]"


def render_binary(event: CloudEvent) -> Rendered:
    """Return headers and body of an event in binary mode."""
    attributes = event.attributes()
    content_type = str(attributes.pop("datacontenttype"))
    named = {f"ce-{k}": header_value(str(v)) for k, v in attributes.items()}
    return {**named, "Content-Type": content_type}, orjson.dumps(event.data)


def header_value(text: str) -> str:
    """Percent-encode an attribute for a header, as the HTTP binding requires."""
    return quote(text, safe=_UNENCODED)


RENDER: Mapping[ContentMode, Callable[[CloudEvent], Rendered]] = {
    "structured": render_structured,
    "binary": render_binary,
    "batch": render_batch,
    "array": render_array,
}


# -- Several events in one request: how they are joined, and what the answer means -----

# Returns what an answer means for each event; the last argument is their number. It
# raises errors that are about all events, as ``BatchSink.deliver_many`` does.
JudgeMany = Callable[[Answer, int], Sequence[DeliveryError | None]]


class Many(Struct, frozen=True, kw_only=True):
    """How a service takes several events in one request.

    Attributes:
        piece: the part of the body that is about one event.
        start, between, end: the bytes around the pieces; by default the pieces are the
            items of a JSON array.
        headers: the headers of a request.
        judge: what an answer means for each event; None: it means the same for all.
        group: events whose values differ never go in one request.
        group_headers: headers for a group.
    """

    piece: Callable[[CloudEvent], bytes]
    start: bytes = b"["
    between: bytes = b","
    end: bytes = b"]"
    headers: Mapping[str, str] = field(default_factory=lambda: JSON)
    judge: JudgeMany | None = None
    group: Callable[[CloudEvent], str] = lambda _: ""
    group_headers: Callable[[str], Mapping[str, str]] = lambda _: {}

    def render(self, event: CloudEvent) -> Rendered:
        """Return headers and body of a request with one event."""
        headers, body, _ = self.first([event], 0)
        return headers, body

    def first(
        self, events: Sequence[CloudEvent], size: int
    ) -> tuple[dict[str, str], bytes, int]:
        """Return the headers and the body of a request, and how many events it holds.

        Args:
            events: at least one; the first of them go in the request.
            size: the most bytes of a body with more than one event.
        """
        group, pieces = self.group(events[0]), list[bytes]()
        total = len(self.start) + len(self.end)
        for event in events:
            piece = self.piece(event)
            total += len(piece) + (len(self.between) if pieces else 0)
            if pieces and (total > size or self.group(event) != group):
                break
            pieces.append(piece)
        body = self.start + self.between.join(pieces) + self.end
        return {**self.headers, **self.group_headers(group)}, body, len(pieces)


MANY: Mapping[ContentMode, Many] = {
    "batch": Many(
        piece=CloudEvent.to_json,
        headers={"Content-Type": f"{BATCH_TYPE}; charset=utf-8"},
    ),
    "array": Many(piece=CloudEvent.to_json),
}


# -- What an answer means: by its status, and by the rule of ``[sinks.success]`` -------
#
# A 2xx that the rule does not accept is permanent: the other side has read this event
# and refused it. A 2xx without JSON is transient: the answer came from a proxy or a
# login page in front of the service.
#
# A refusal is shown with the beginning of the answer, because only the receiver knows
# why it refuses. What the request has of secrets is hidden in it: receivers repeat
# requests.

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


def by_status(answer: Answer) -> DeliveryError | None:
    """Return what the status alone means; None is success."""
    return failure(
        answer.status,
        target=answer.target,
        retry_after=answer.retry_after,
        detail=answer.said,
    )


def by_rule(rule: SuccessConfig, answer: Answer) -> DeliveryError | None:
    """Return what an answer means by the configured rule; None is success."""
    if not _is_accepted(rule, answer.status):
        what = f"{answer.summary}, which is not in success.status"
        unexpected = PermanentDeliveryError(_with(what, answer), Reason.REJECTED)
        return by_status(answer) or unexpected
    if not rule.json_path:
        return None
    return _by_value(rule, answer)


def _is_accepted(rule: SuccessConfig, status: int) -> bool:
    return status in rule.status if rule.status else 200 <= status < 300


def _by_value(rule: SuccessConfig, answer: Answer) -> DeliveryError | None:
    try:
        value = orjson.loads(answer.body)
    except orjson.JSONDecodeError:
        return no_json(answer)
    found = _value_at(rule.json_path, value)
    if found == rule.json_equals and type(found) is type(rule.json_equals):
        return None
    what = f"{answer.summary} but success.json_path does not hold"
    return PermanentDeliveryError(_with(what, answer), Reason.REJECTED)


def _with(what: str, answer: Answer) -> str:
    return f"{what}: {answer.said}" if answer.said else what


def no_json(answer: Answer) -> DeliveryError:
    """Return the error for an answer that should be JSON and is not."""
    if len(answer.body) >= MAX_ANSWER_BYTES:
        what = f"{answer.target} answered more than {MAX_ANSWER_BYTES} bytes"
        return PermanentDeliveryError(what, Reason.REJECTED)
    what = f"{answer.summary} without JSON: is a proxy in between?"
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


# -- A preset: body, answers and authentication of a known service ---------------------

NO_AUTH = AuthDefaults()
OWN_BODY = frozenset({"template"})
CLOUDEVENTS = frozenset({"structured", "binary", "batch", "array"}) | OWN_BODY


class Call(Struct, frozen=True, kw_only=True):
    """One request of a delivery.

    Attributes:
        path: "" = the configured URL as it is. A path that begins with a slash replaces
            the path and query of the URL; any other path is appended to it.
        body: b"" for a request without a body, such as a GET.
        most: the most bytes of the answer that are read.
    """

    method: str = "POST"
    path: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    most: int = MAX_ANSWER_BYTES


# The requests of one delivery. The generator yields a request, is sent the answer, and
# at the end returns the result of the delivery. A generator without any request means
# that the service has no use for the event, which then counts as delivered.
Talk = Generator[Call, Answer, DeliveryError | None]
Verdict = Callable[[Answer], DeliveryError | None]
Talker = Callable[[CloudEvent, Verdict, datetime], Talk]


def advanced(talk: Talk, answer: Answer | None) -> Call | DeliveryError | None:
    """Return the next request, or the result of the delivery: None is success.

    Args:
        talk: the requests.
        answer: the answer to the last request; None before the first request.
    """
    try:
        return next(talk) if answer is None else talk.send(answer)
    except StopIteration as end:
        error: DeliveryError | None = end.value
        return error


class Standing(Struct, frozen=True, kw_only=True):
    """How a service is reminded of its open alerts, which it keeps in memory only.

    Attributes:
        every: seconds between two reminders.
        changed: returns the key of the alert that an event changes, and what fires
            under it from then on, b"" = nothing; None = it changes none.
        again: makes the requests with what fires, and with the ends of what may have
            been sent again although it was over.
    """

    every: float
    changed: Callable[[CloudEvent], tuple[str, bytes] | None]
    again: Callable[[Sequence[bytes], Sequence[bytes], datetime], Iterable[Call]]


class Preset(Struct, frozen=True, kw_only=True):
    """The behaviour of a webhook sink, unless its own keys override it.

    Attributes:
        gets: what the service gets, for the table in ``config/sinks/webhook.md``.
        needs: the keys that are required besides ``url``, for the same table.
        render: makes headers and body of an event; a preset has this or ``talk``.
        talk: makes the requests for an event, one after the other.
        many: how the service takes several events in one request; None: it cannot.
        standing: how it is reminded of open alerts; None: it stores them itself.
        headers: headers that are sent with every body, also with a template's.
        judge: returns what an answer means for a delivery.
        modes: values of ``content_mode`` that may replace ``render``.
        auth: defaults of ``[sinks.auth]``.
        is_open: whether ``[sinks.auth]`` may be missing: the service needs none, or the
            URL holds the secret.
        is_signed: whether ``[sinks.signature]`` is required.
        takes_gzip: whether the service is known to accept compressed bodies.
        repeats: whether an urgent event may be sent again while its first delivery
            hangs: the service recognises the repeat.
        scope: the required value of ``when.scope``; None: any value.
        assumed: the body that a preview assumes for each answer.
    """

    gets: str
    needs: str = ""
    render: Callable[[CloudEvent], Rendered] | None = None
    talk: Talker | None = None
    many: Many | None = None
    standing: Standing | None = None
    headers: Callable[[CloudEvent], Mapping[str, str]] = lambda _: {}
    judge: Verdict = by_status
    modes: frozenset[str] = OWN_BODY
    auth: AuthDefaults = NO_AUTH
    is_open: bool = False
    is_signed: bool = False
    takes_gzip: bool = False
    repeats: bool = True
    scope: Scope | None = None
    assumed: bytes = b"{}"


def once(
    render: Callable[[CloudEvent], Rendered],
    known: Preset | None,
    event: CloudEvent,
    verdict: Verdict,
    _: datetime,
) -> Talk:
    """POST an event once, which is all that most services need."""
    headers, body = render(event)
    more = dict(known.headers(event)) if known else {}
    return verdict((yield Call(headers=headers | more, body=body)))


# -- The requests of an event for display, without their secrets -----------------------

NOTHING = "nothing is sent: the service has no place for this event"


def assumed(
    talk: Talker, known: Preset | None, event: CloudEvent, now: datetime
) -> Iterator[Call]:
    """Yield the requests for an event, if each gets the answer the preset assumes."""
    body = known.assumed if known else b""
    supposed = Answer(status=200, body=body, retry_after=None)
    requests = talk(event, lambda _: None, now)
    answer: Answer | None = None
    while isinstance(call := advanced(requests, answer), Call):
        yield call
        answer = supposed


def line(call: Call, target: str) -> str:
    """Return the line of a request; of the URL only ``target`` is shown."""
    return f"{call.method} {target}" + (f" {call.path}" if call.path else "")
