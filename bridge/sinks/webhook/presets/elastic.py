"""Elasticsearch: one ``create`` in ``_bulk``, in Elastic Common Schema (ECS).

``_id`` is the event's id, so that a repeat is a conflict, which is a success. What
stands in ``sebridge`` is the CloudEvent; of what IMDS said only ``data.event`` is
searchable, and ``event.original`` holds all of it as it was.

Source: https://www.elastic.co/docs/api/doc/elasticsearch/operation/operation-bulk
        https://www.elastic.co/docs/reference/ecs
"""

import re
from collections.abc import Mapping

import orjson

from bridge.events.cloudevent import CloudEvent
from bridge.foundation.errors import DeliveryError
from bridge.net.http_client import Answer, failure
from bridge.sinks.webhook.content_mode import Rendered
from bridge.sinks.webhook.presets.fields import Facts, facts, known, table, text
from bridge.sinks.webhook.response import by_status, no_json

_ECS_VERSION = "8.17.0"
_MOST_NAMES = 100
_DEEPEST = 10  # the mapping `flattened` refuses more than 20
_TYPES = {
    "scheduled": "info",
    "started": "start",
    "updated": "change",
    "completed": "end",
    "cancelled": "end",
    "ended": "end",
}
_KIND = re.compile(r"[a-z_]{1,50}_exception")  # such as mapper_parsing_: never a key
_SUCCESS = {"relayed", "already-started"}


def render(event: CloudEvent) -> Rendered:
    """Return two lines of NDJSON; the last line break is part of the format."""
    action = {"create": {"_id": event.id}}
    lines = orjson.dumps(action), orjson.dumps(document(event)), b""
    return {"Content-Type": "application/x-ndjson"}, b"\n".join(lines)


def document(event: CloudEvent) -> dict[str, object]:
    """Return an event in ECS, and itself below ``sebridge``."""
    seen = facts(event)
    vm_name, vm_id = (text(seen.reporter.get(k)) for k in ("vmName", "vmId"))
    return known(
        {
            "@timestamp": event.time,
            "message": seen.headline,
            "ecs": {"version": _ECS_VERSION},
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
            "related": known({"hosts": list(seen.resources[:_MOST_NAMES])}),
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
            "dataset": "sebridge.events",
            "provider": text(seen.raw.get("EventSource")),
            "severity": event.extensions.get("severitynumber"),
            "outcome": _outcome(seen),
            "reason": text(reason),
            "start": event.time if is_transition and seen.step == "started" else None,
            "end": event.time if is_transition and seen.step == "completed" else None,
            "original": event.to_json().decode(),
        }
    )


def _outcome(seen: Facts) -> str | None:
    if seen.family == "command":
        outcomes = {"succeeded": "success", "failed": "failure"}
        return outcomes.get(seen.step, "unknown")
    if seen.family == "startrequest":
        return "success" if seen.step in _SUCCESS else "failure"
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
    return {**event.attributes(), "data": data}


def _searchable(value: object, depth: int) -> object:
    """Return what ``flattened`` can index: no NUL in a name, and not too deep."""
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


def judge(answer: Answer, target: str) -> DeliveryError | None:
    """Return what an answer of ``_bulk`` means for its one item; None is success."""
    if error := by_status(answer, target):
        return error
    try:
        said = table(orjson.loads(answer.body))
    except orjson.JSONDecodeError:
        return no_json(answer, target)
    if said.get("errors") is False:
        return None
    item = _item(said)
    status = item.get("status")
    if not isinstance(status, int):
        return no_json(answer, target)
    if status == 409:
        return None  # it is there already, under its own id
    kind = text(table(item.get("error")).get("type")) or ""
    detail = f"the item: {kind}" if _KIND.fullmatch(kind) else "the item"
    return failure(status, target=target, detail=detail)


def _item(said: Mapping[str, object]) -> Mapping[str, object]:
    """Return what became of the only item."""
    items = said.get("items")
    first = items[0] if isinstance(items, list) and items else None
    return table(table(first).get("create"))
