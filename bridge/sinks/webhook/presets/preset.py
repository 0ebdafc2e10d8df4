"""A preset: body, answers and authentication of a known service."""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
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
    talk: Callable[[CloudEvent, Verdict, datetime], Talk] | None = None
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
