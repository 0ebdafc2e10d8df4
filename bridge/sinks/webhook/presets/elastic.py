"""Elasticsearch: one ``create`` in ``_bulk``, in Elastic Common Schema (ECS).

``_id`` is the event's id, so a repeated delivery is a conflict; it counts as success.
``sebridge`` holds the CloudEvent; of the IMDS data only ``data.event`` is searchable,
and ``event.original`` holds all of it unchanged.

Source: https://www.elastic.co/docs/api/doc/elasticsearch/operation/operation-bulk
        https://www.elastic.co/docs/reference/ecs
"""

import re
from collections.abc import Mapping, Sequence

import orjson

from bridge.events.cloudevent import CloudEvent
from bridge.events.vocabulary import APPROVED
from bridge.events.wording import table
from bridge.foundation.errors import DeliveryError
from bridge.net.http_client import Answer, failure
from bridge.sinks.webhook.auth import AuthDefaults
from bridge.sinks.webhook.presets.fields import Facts, facts, known, text
from bridge.sinks.webhook.presets.preset import (
    Many,
    Preset,
    Rendered,
    by_status,
    no_json,
)

_ECS_VERSION = "8.17.0"
_DATASET = "sebridge.events"
_MOST_NAMES = 100
_DEEPEST = 10  # levels; the mapping `flattened` refuses more than 20
_TYPES = {
    "scheduled": "info",
    "started": "start",
    "updated": "change",
    "completed": "end",
    "cancelled": "end",
    "ended": "end",
}
_KIND = re.compile(r"[a-z_]{1,50}_exception")  # a pattern that no API key matches
_NDJSON = {"Content-Type": "application/x-ndjson"}


def render(event: CloudEvent) -> Rendered:
    """Return the body for one event."""
    return dict(_NDJSON), lines(event)


def lines(event: CloudEvent) -> bytes:
    """Return two lines of NDJSON; the final line break is part of the format."""
    action = {"create": {"_id": event.id}}
    return b"\n".join((orjson.dumps(action), orjson.dumps(document(event)), b""))


def document(event: CloudEvent) -> dict[str, object]:
    """Return an event in ECS, with the CloudEvent under ``sebridge``."""
    seen = facts(event)
    vm_name, vm_id = (text(seen.reporter.get(k)) for k in ("vmName", "vmId"))
    return known(
        {
            "@timestamp": event.time,
            "message": seen.headline,
            "ecs": {"version": _ECS_VERSION},
            # The namespace is part of the stream's name, which is only in the URL.
            "data_stream": {"type": "logs", "dataset": _DATASET},
            "event": _event(event, seen),
            "log": known({"level": (event.text("severitytext") or "").lower()}),
            "host": known({"name": vm_name, "id": vm_id}),
            "cloud": _cloud(seen),
            "observer": known(
                {
                    "product": "scheduled-events-bridge",
                    "version": text(seen.reporter.get("version")),
                }
            ),
            "related": _related(seen),
            "user": known({"name": _approver(seen)}),
            "sebridge": _own(event),
        }
    )


def _event(event: CloudEvent, seen: Facts) -> dict[str, object]:
    is_transition = seen.family == "scheduledevent"
    reason = seen.raw.get("Description") if is_transition else event.data.get("reason")
    return known(
        {
            "kind": "event",
            "category": ["host"],
            "type": [_TYPES.get(seen.step, "info") if is_transition else "info"],
            "action": f"{seen.family}-{seen.step}",
            "id": event.id,
            "module": "sebridge",
            "dataset": _DATASET,
            "provider": "sebridge",
            "severity": event.extensions.get("severitynumber"),
            "outcome": _outcome(seen),
            "reason": text(reason),
            "start": event.time if is_transition and seen.step == "started" else None,
            "end": event.time if is_transition and seen.step == "completed" else None,
            "original": event.to_json().decode(),
        }
    )


def _approver(seen: Facts) -> str | None:
    """Return who approved, as the sender of the approval says."""
    return text(seen.request.get("approvedBy"))


def _related(seen: Facts) -> dict[str, object]:
    """Return machines and people, for searches in other indexes."""
    approver = _approver(seen)
    people = [approver] if approver else []
    return known({"hosts": list(seen.resources[:_MOST_NAMES]), "user": people})


def _outcome(seen: Facts) -> str | None:
    if seen.family == "command":
        outcomes = {"succeeded": "success", "failed": "failure"}
        return outcomes.get(seen.step, "unknown")
    if seen.family == "startrequest":
        return "success" if seen.step in APPROVED else "failure"
    return (
        "unknown" if (seen.family, seen.step) == ("scheduledevent", "ended") else None
    )


def _cloud(seen: Facts) -> dict[str, object]:
    reporter = seen.reporter
    parts = (text(reporter.get("resourceId")) or "").split("/")
    is_whole = len(parts) > 2 and parts[1].lower() == "subscriptions"
    vm = {"id": text(reporter.get("vmId")), "name": text(reporter.get("vmName"))}
    return known(
        {
            "provider": "azure",
            "region": text(reporter.get("location")),
            "account": known({"id": parts[2] if is_whole else None}),
            "instance": known(vm),
        }
    )


def _own(event: CloudEvent) -> dict[str, object]:
    foreign = {"previous", "document"}
    data = {k: v for k, v in event.data.items() if k not in foreign}
    if "event" in data:
        data["event"] = _searchable(data["event"], _DEEPEST)
    return {**event.unsigned().attributes(), "data": data}


def _searchable(value: object, depth: int) -> object:
    """Return a value that ``flattened`` can index: no NUL in a name, not too deep."""
    if not depth and isinstance(value, (dict, list)):
        return orjson.dumps(value).decode()
    if isinstance(value, dict):
        return {
            name.replace("\0", "\ufffd"): _searchable(inner, depth - 1)
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [_searchable(inner, depth - 1) for inner in value]
    return value


def judge(answer: Answer) -> DeliveryError | None:
    """Return what an answer of ``_bulk`` means for its only item; None is success."""
    try:
        (found,) = judge_many(answer, 1)
    except DeliveryError as error:
        return error
    return found


def judge_many(answer: Answer, count: int) -> Sequence[DeliveryError | None]:
    """Return what an answer of ``_bulk`` means for each of its items.

    Raises:
        DeliveryError: the answer is about the whole request.
    """
    if error := by_status(answer):
        raise error
    try:
        said = table(orjson.loads(answer.body))
    except orjson.JSONDecodeError:
        raise no_json(answer) from None
    if said.get("errors") is False:
        return [None] * count
    items = said.get("items")
    if not isinstance(items, list) or len(items) != count:
        raise no_json(answer)
    return [_meaning(table(table(one).get("create")), answer) for one in items]


def _meaning(item: Mapping[str, object], answer: Answer) -> DeliveryError | None:
    """Return what the result of one item means; None is success."""
    status = item.get("status")
    if not isinstance(status, int):
        return no_json(answer)
    if status == 409:
        return None  # a repeated delivery: the id exists already
    kind = text(table(item.get("error")).get("type")) or ""
    detail = f"the item: {kind}" if _KIND.fullmatch(kind) else "the item"
    return failure(status, target=answer.target, detail=detail)


PRESET = Preset(
    gets="one `create` in `_bulk`, in ECS, with the event's id: a repeated "
    "delivery counts as success, and an error inside a 200 answer is found",
    needs="`auth.token`, an API key",
    render=render,
    many=Many(
        piece=lines, start=b"", between=b"", end=b"", headers=_NDJSON, judge=judge_many
    ),
    judge=judge,
    auth=AuthDefaults(type="bearer", scheme="ApiKey"),
    is_open=True,  # a cluster may have no security, or a proxy may add it
    takes_gzip=True,
)
