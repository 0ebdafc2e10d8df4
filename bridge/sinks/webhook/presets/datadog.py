"""Datadog: an event in the stream; events of one EventId are grouped.

Source: https://docs.datadoghq.com/api/latest/events/post-an-event/
        https://docs.datadoghq.com/getting_started/tagging/ (what a tag may hold)
"""

import re
from datetime import datetime, timedelta

import orjson

from bridge.events.cloudevent import CloudEvent, hash32
from bridge.sinks.webhook.auth import AuthDefaults
from bridge.sinks.webhook.presets.alert import AlertAction, alert, details
from bridge.sinks.webhook.presets.fields import Facts, clipped, facts, known, text
from bridge.sinks.webhook.presets.preset import JSON, Call, Preset, Talk, Verdict

_TYPES = {"ERROR": "error", "WARN": "warning", "INFO": "info"}
_LONGEST_KEY, _LONGEST_TITLE, _LONGEST_TEXT, _LONGEST_TAG = 100, 100, 4000, 200
_MOST_MACHINES = 50
_OLDEST = timedelta(hours=17)  # older than 18 hours is refused
_NO_TAG = re.compile(r"[^\w\-./\\]+")


def talk(event: CloudEvent, verdict: Verdict, now: datetime) -> Talk:
    """Post an event; leave out its time if Datadog would refuse it as too old."""
    seen, found = facts(event), alert(event)
    key = found.key if found else event.subject or event.id
    is_over = found is not None and found.action is AlertAction.RESOLVE
    lines = (f"{name}: {value}" for name, value in details(event, seen).items())
    moment = datetime.fromisoformat(event.time)
    body = {
        "title": _plain(seen.headline, _LONGEST_TITLE),
        "text": _plain("\n".join(lines), _LONGEST_TEXT),
        "date_happened": int(moment.timestamp()) if now - moment < _OLDEST else None,
        "host": text(seen.reporter.get("vmName")),
        "alert_type": "success" if is_over else _type(event),
        "aggregation_key": key if len(key) <= _LONGEST_KEY else hash32(key),
        "source_type_name": "azure",
        "tags": _tags(event, seen),
    }
    return verdict((yield Call(headers=JSON, body=orjson.dumps(known(body)))))


def _type(event: CloudEvent) -> str:
    return _TYPES.get(event.text("severitytext") or "", "info")


def _plain(value: str, limit: int) -> str:
    """Return a text without mentions: Datadog notifies people named after an @."""
    return clipped(clipped(value, limit).replace("@", "@\u200a"), limit)


def _tags(event: CloudEvent, seen: Facts) -> list[str]:
    pairs = [
        ("event_id", event.text("correlationid")),
        ("event_type", seen.raw.get("EventType")),
        ("event_source", seen.raw.get("EventSource")),
        ("step", f"{seen.family}.{seen.step}"),
        *(("vm", name) for name in seen.resources[:_MOST_MACHINES]),
    ]
    tags = [
        f"{name}:{_NO_TAG.sub('_', value.lower())}"
        for name, given in pairs
        if (value := text(given))
    ]
    return ["service:sebridge", *(tag[:_LONGEST_TAG] for tag in tags)]


PRESET = Preset(
    gets="an event in the stream; events of one EventId are grouped",
    needs="`auth.value`, an API key",
    talk=talk,
    auth=AuthDefaults(type="header", name="DD-API-KEY"),
)
