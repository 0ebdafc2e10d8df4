"""A preset: body, answers and authentication of a known service. Pure.

Source: https://github.com/cloudevents/spec/tree/ce@v1.0.2
        (http-protocol-binding.md section 3), for the content modes
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Literal
from urllib.parse import quote

import orjson
from msgspec import Struct, field

from bridge.events.cloudevent import BATCH_TYPE, STRUCTURED_TYPE, CloudEvent
from bridge.events.routing import Scope
from bridge.foundation.errors import DeliveryError
from bridge.net.http_client import MAX_ANSWER_BYTES, Answer
from bridge.sinks.webhook.auth import AuthDefaults
from bridge.sinks.webhook.response import Judge, by_status

# -- One event in a request, as the HTTP binding of CloudEvents defines it -------------

ContentMode = Literal["structured", "binary", "batch", "array", "template"]
Rendered = tuple[dict[str, str], bytes]

# All characters that need no encoding: U+0021 to U+007E except double quote, percent.
_UNENCODED = "".join(chr(c) for c in range(0x21, 0x7F) if chr(c) not in '"%')


def render_structured(event: CloudEvent) -> Rendered:
    """Return headers and body of an event in structured mode."""
    return _content(STRUCTURED_TYPE), event.to_json()


def render_batch(event: CloudEvent) -> Rendered:
    """Return headers and body of a batch of one event."""
    return _content(BATCH_TYPE), b"[" + event.to_json() + b"]"


def render_array(event: CloudEvent) -> Rendered:
    """Return headers and body of a plain JSON array of one event."""
    return {"Content-Type": "application/json"}, b"[" + event.to_json() + b"]"


def render_binary(event: CloudEvent) -> Rendered:
    """Return headers and body of an event in binary mode."""
    attributes = event.attributes()
    content_type = str(attributes.pop("datacontenttype"))
    named = {f"ce-{k}": header_value(str(v)) for k, v in attributes.items()}
    return {**named, "Content-Type": content_type}, orjson.dumps(event.data)


def header_value(text: str) -> str:
    """Percent-encode an attribute for a header, as the HTTP binding requires."""
    return quote(text, safe=_UNENCODED)


def _content(kind: str) -> dict[str, str]:
    return {"Content-Type": f"{kind}; charset=utf-8"}


RENDER: Mapping[ContentMode, Callable[[CloudEvent], Rendered]] = {
    "structured": render_structured,
    "binary": render_binary,
    "batch": render_batch,
    "array": render_array,
}


# -- Several events in one request: how they are joined, and what the answer means -----

# Returns what an answer means for each event; the last argument is their number. It
# raises errors that are about all events, as ``BatchSink.deliver_many`` does.
JudgeMany = Callable[[Answer, str, int], Sequence[DeliveryError | None]]


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
    headers: Mapping[str, str] = field(
        default_factory=lambda: {"Content-Type": "application/json"}
    )
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
    judge: Judge = by_status
    modes: frozenset[str] = OWN_BODY
    auth: AuthDefaults = NO_AUTH
    is_open: bool = False
    is_signed: bool = False
    takes_gzip: bool = False
    repeats: bool = True
    scope: Scope | None = None
    assumed: bytes = b"{}"


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
