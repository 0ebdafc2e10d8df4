"""Splunk: the HTTP Event Collector.

Source: https://help.splunk.com/en/splunk-enterprise/get-data-in/collect-http-event-data
        (format events; troubleshoot: status codes)
"""

from collections.abc import Sequence
from datetime import datetime

import orjson

from bridge.events.cloudevent import CloudEvent
from bridge.events.wording import table
from bridge.foundation.errors import (
    DeliveryError,
    PermanentDeliveryError,
    Reason,
    RefusedDeliveryError,
    RefusedEventError,
    TransientDeliveryError,
)
from bridge.net.http_client import Answer
from bridge.sinks.webhook.auth import AuthDefaults
from bridge.sinks.webhook.presets.fields import facts, known, text
from bridge.sinks.webhook.presets.preset import (
    JSON,
    Many,
    Preset,
    Rendered,
    by_status,
    no_json,
)

SOURCETYPE = "sebridge:cloudevent"

# The meaning of HEC's `code`. A wrong token or setting refuses every event. A code
# that is not listed means the same as its status.
_REFUSED = {
    1: "the token is disabled",
    2: "a token is required",
    3: "the authorization is invalid",
    4: "the token is invalid",
    7: "the token may not write to its index",
    10: "the token requires a channel: set the header x-splunk-request-channel",
    11: "the channel is invalid",
    14: "acknowledgement is disabled",
    16: "a token in the query is not allowed",
}
_PERMANENT = {
    5: "no data",
    6: "invalid data format",
    12: "event is missing",
    13: "event is blank",
    15: "indexed fields cannot be handled",
}


def render(event: CloudEvent) -> Rendered:
    """Return the body for ``/services/collector/event``."""
    return dict(JSON), envelope(event)


def envelope(event: CloudEvent) -> bytes:
    """Return the event in an envelope; a request may hold several of them."""
    seen = facts(event)
    fields = {
        "event_id": event.text("correlationid"),
        "event_type": event.text("eventtype"),
        "severity": event.text("severitytext"),
        "step": seen.step,
    }
    around = known(
        {
            "time": _epoch(event.time),
            "host": text(seen.reporter.get("vmName")),
            "source": "sebridge",
            "sourcetype": SOURCETYPE,
            "fields": known(fields),
        }
    )
    return orjson.dumps(around | {"event": orjson.Fragment(event.to_json())})


def _epoch(time: str) -> float:
    """Return seconds since 1970 with milliseconds; HEC cannot read an exponent."""
    return round(datetime.fromisoformat(time).timestamp(), 3)


def judge(answer: Answer) -> DeliveryError | None:
    """Return what an answer of HEC means for a delivery; None is success."""
    code = _code(answer.body)
    is_success = 200 <= answer.status < 300
    if is_success and code is None:
        return no_json(answer)
    if code in _REFUSED:
        what = f"{answer.summary}: {_REFUSED[code]} (code {code})"
        return RefusedDeliveryError(what, Reason.UNAUTHORIZED)
    if code in _PERMANENT:
        what = f"{answer.summary}: {_PERMANENT[code]} (code {code})"
        return PermanentDeliveryError(what, Reason.REJECTED)
    if is_success and code != 0:
        what = f"{answer.summary} with code {code}"
        return TransientDeliveryError(what, Reason.SERVER)
    return by_status(answer)


def judge_many(answer: Answer, count: int) -> Sequence[DeliveryError | None]:
    """Return what an answer of HEC means for several events: all succeed, or none.

    Raises:
        RefusedEventError: HEC names the event that it could not read. HEC may have
            indexed the events before it, but does not say so: they are sent again.
        DeliveryError: as ``judge``.
    """
    error = judge(answer)
    if error is None:
        return [None] * count
    place = _number(answer.body, "invalid-event-number")
    if isinstance(error, PermanentDeliveryError) and place is not None:
        raise RefusedEventError(str(error), error.reason, place)
    raise error


def _code(body: bytes) -> int | None:
    return _number(body, "code")


def _number(body: bytes, name: str) -> int | None:
    try:
        found = table(orjson.loads(body)).get(name)
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, int) else None


PRESET = Preset(
    gets="an envelope of the HTTP Event Collector around the CloudEvent",
    needs="`auth.token`",
    render=render,
    many=Many(piece=envelope, start=b"", between=b"\n", end=b"", judge=judge_many),
    judge=judge,
    auth=AuthDefaults(type="bearer", scheme="Splunk"),
    takes_gzip=True,
)
