"""A preset: body, answers and authentication of a known service."""

from collections.abc import Callable, Generator, Mapping
from datetime import datetime

from msgspec import Struct, field

from bridge.events.cloudevent import CloudEvent
from bridge.events.routing import Scope
from bridge.foundation.errors import DeliveryError
from bridge.net.http_client import MAX_ANSWER_BYTES, Answer
from bridge.sinks.webhook.auth import AuthDefaults
from bridge.sinks.webhook.content_mode import Rendered
from bridge.sinks.webhook.many import Many
from bridge.sinks.webhook.response import Judge, by_status

NO_AUTH = AuthDefaults()
OWN_BODY = frozenset({"template"})
CLOUDEVENTS = frozenset({"structured", "binary", "batch", "array"}) | OWN_BODY


class Call(Struct, frozen=True, kw_only=True):
    """One request of a delivery.

    Attributes:
        path: "" is the URL of the configuration; one with a slash in front takes the
            place of its path and query; any other is added to its path.
        body: b"" for a request that asks.
        most: bytes of the answer that are read.
    """

    method: str = "POST"
    path: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    most: int = MAX_ANSWER_BYTES


# The requests of one delivery, one after the other: each is answered before the next
# is made, and the last word is what became of the delivery. No request at all means
# that the service has no place for the event, which then counts as delivered.
Talk = Generator[Call, Answer, DeliveryError | None]
Verdict = Callable[[Answer], DeliveryError | None]


def advanced(talk: Talk, answer: Answer | None) -> Call | DeliveryError | None:
    """Return the next request, or what became of the delivery: None is success.

    Args:
        talk: the requests.
        answer: to the last one; None before the first.
    """
    try:
        return next(talk) if answer is None else talk.send(answer)
    except StopIteration as end:
        error: DeliveryError | None = end.value
        return error


class Preset(Struct, frozen=True, kw_only=True):
    """The behaviour of a webhook sink, unless its own keys override it.

    Attributes:
        gets: what the service gets, for the table in ``config/sinks/webhook.md``.
        needs: the keys that are required besides ``url``, for the same table.
        render: makes headers and body of an event; a preset has this or ``talk``.
        talk: makes the requests for an event, one after the other.
        many: how it takes several events in one request; None: it takes one.
        headers: headers that are sent with every body, also with a template's.
        judge: returns what an answer means for a delivery.
        modes: values of ``content_mode`` that may replace ``render``.
        auth: defaults of ``[sinks.auth]``.
        is_open: whether ``[sinks.auth]`` may be missing: the service needs none, or the
            URL holds the secret.
        is_signed: whether ``[sinks.signature]`` is required.
        takes_gzip: whether the service is known to accept compressed bodies.
        repeats: whether an event may be sent again while its first delivery hangs: the
            service recognises it.
        scope: what ``when.scope`` must be; None: anything.
        assumed: the body of each answer that a preview supposes.
    """

    gets: str
    needs: str = ""
    render: Callable[[CloudEvent], Rendered] | None = None
    talk: Callable[[CloudEvent, Verdict, datetime], Talk] | None = None
    many: Many | None = None
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
