"""Splunk: the HTTP Event Collector.

Source: https://help.splunk.com/en/splunk-enterprise/get-data-in/collect-http-event-data
        (format events; troubleshoot: status codes)
"""

from datetime import datetime

import orjson

from bridge.events.cloudevent import CloudEvent
from bridge.foundation.errors import (
    DeliveryError,
    PermanentDeliveryError,
    Reason,
    RefusedDeliveryError,
    TransientDeliveryError,
)
from bridge.net.http_client import Answer
from bridge.sinks.webhook.content_mode import Rendered
from bridge.sinks.webhook.presets.fields import facts, known, text
from bridge.sinks.webhook.response import by_status, no_json

SOURCETYPE = "sebridge:cloudevent"

# What HEC says in `code` beyond its status: a token or setting that is wrong refuses
# whatever is sent; all that has no entry means what its status means.
_REFUSED = {
    1: "the token is disabled",
    2: "a token is required",
    3: "the authorization is invalid",
    4: "the token is invalid",
    7: "the token may not write to its index",
    10: "the token wants a channel: set the header x-splunk-request-channel",
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
    """Return what ``/services/collector/event`` takes: the event in an envelope."""
    seen = facts(event)
    fields = {
        "event_id": event.text("correlationid"),
        "event_type": event.text("eventtype"),
        "severity": event.text("severitytext"),
        "step": seen.step,
    }
    envelope = known(
        {
            "time": _epoch(event.time),
            "host": text(seen.reporter.get("vmName")),
            "source": "sebridge",
            "sourcetype": SOURCETYPE,
            "fields": known(fields),
        }
    )
    body = orjson.dumps(envelope | {"event": orjson.Fragment(event.to_json())})
    return {"Content-Type": "application/json"}, body


def _epoch(time: str) -> float:
    """Return seconds since 1970 with milliseconds; HEC cannot read an exponent."""
    return round(datetime.fromisoformat(time).timestamp(), 3)


def judge(answer: Answer, target: str) -> DeliveryError | None:
    """Return what an answer of HEC means for a delivery; None is success."""
    code = _code(answer.body)
    is_success = 200 <= answer.status < 300
    if is_success and code is None:
        return no_json(answer, target)
    if code in _REFUSED:
        what = f"{target} answered {answer.status}: {_REFUSED[code]} (code {code})"
        return RefusedDeliveryError(what, Reason.UNAUTHORIZED)
    if code in _PERMANENT:
        what = f"{target} answered {answer.status}: {_PERMANENT[code]} (code {code})"
        return PermanentDeliveryError(what, Reason.REJECTED)
    if is_success and code != 0:
        what = f"{target} answered {answer.status} with code {code}"
        return TransientDeliveryError(what, Reason.SERVER)
    return by_status(answer, target)


def _code(body: bytes) -> int | None:
    try:
        said = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    code = said.get("code") if isinstance(said, dict) else None
    return code if isinstance(code, int) else None
