"""Alertmanager: alerts through its API v2; its routes decide who is notified.

Alertmanager identifies an alert by its labels, so the labels hold nothing that changes
from step to step. If an update changes a label nevertheless, the earlier alert ends.

It keeps alerts in memory only, and expects each client to send those that fire again
and again. So a restarted Alertmanager knows all of them a few minutes later.

Source: https://github.com/prometheus/alertmanager/blob/main/api/v2/openapi.yaml
        https://prometheus.io/docs/alerting/latest/clients
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

from bridge.events.cloudevent import CloudEvent
from bridge.events.wording import table
from bridge.sinks.webhook.presets.alert import Alert, AlertAction, alert, begins, impact
from bridge.sinks.webhook.presets.fields import clipped, known, text
from bridge.sinks.webhook.presets.preset import (
    JSON,
    Call,
    Preset,
    Standing,
    Talk,
    Verdict,
)

_SEVERITIES = {"ERROR": "critical", "WARN": "warning", "INFO": "info"}
_LONGEST_LABEL, _LONGEST_TEXT = 200, 4000
# Alertmanager ends an alert that is not sent again, unless the client sets the end:
# this long after NotBefore an event is over.
_FIRES = timedelta(hours=24)
# Alertmanager resolves an alert only when its own clock has passed the end.
_MARGIN = timedelta(minutes=1)
_EVERY, _AT_ONCE = 240.0, 100


def talk(event: CloudEvent, verdict: Verdict, _: datetime) -> Talk:
    """Post the alert; its annotations name the approver."""
    found = list(_alerts(event))
    if not found:
        return None
    return verdict((yield Call(headers=JSON, body=orjson.dumps(found))))


def _changed(event: CloudEvent) -> tuple[str, bytes] | None:
    """Return the key of an event's alert, and what fires under it from now on."""
    found = list(_alerts(event))
    if not found:
        return None
    firing = [one for one in found if "startsAt" in one]
    return found[0]["labels"]["alert_key"], orjson.dumps(firing) if firing else b""


def _again(
    firing: Sequence[bytes], over: Sequence[bytes], now: datetime
) -> Iterator[Call]:
    """Make the requests with all alerts that fire, and the ends of those that do not.

    An update of an alert has its labels, so it replaces what was sent of it before.
    """
    alerts = [
        one
        for kept in firing
        for one in orjson.loads(kept)
        if datetime.fromisoformat(one["endsAt"]) > now
    ]
    named = [one["labels"] for one in alerts]
    alerts += [
        {"labels": one["labels"], "endsAt": _written(now - _MARGIN)}
        for kept in over
        for one in orjson.loads(kept)
        if one["labels"] not in named
    ]
    for start in range(0, len(alerts), _AT_ONCE):
        body = orjson.dumps(alerts[start : start + _AT_ONCE])
        yield Call(headers=JSON, body=body)


def _alerts(event: CloudEvent) -> Iterator[dict[str, Any]]:
    found = alert(event)
    if found is None or (
        found.action is AlertAction.ACKNOWLEDGE and not found.facts.raw
    ):
        return
    labels = _labels(found, found.facts.raw)
    if found.action is AlertAction.RESOLVE:
        yield _ended(event, labels)
        return
    published = datetime.fromisoformat(event.time)
    yield {
        "labels": labels,
        "annotations": _annotations(found),
        "startsAt": event.time,
        "endsAt": _written(max(published, begins(event)) + _FIRES),
    }
    before = table(event.data.get("previous"))
    if before and _labels(found, before) != labels:
        yield _ended(event, _labels(found, before))


def _ended(event: CloudEvent, labels: Mapping[str, str]) -> dict[str, Any]:
    published = datetime.fromisoformat(event.time)
    return {"labels": labels, "endsAt": _written(published - _MARGIN)}


def _labels(found: Alert, raw: Mapping[str, object]) -> dict[str, str]:
    is_event = found.about == "ScheduledEvent"
    labels = {
        "alertname": found.about,
        "job": "sebridge",
        "alert_key": found.key,
        "severity": _SEVERITIES[impact(raw) if is_event else found.severity],
        "event_type": text(raw.get("EventType")),
        "event_source": text(raw.get("EventSource")),
    }
    return {k: clipped(str(v), _LONGEST_LABEL) for k, v in known(labels).items()}


def _annotations(found: Alert) -> dict[str, str]:
    texts = {
        "summary": found.headline,
        "description": found.body(_LONGEST_TEXT),
        "machines": found.details.get("Machines"),
        "not_before": found.details.get("Not before"),
        "approved_by": found.details.get("Approved by"),
    }
    return {k: str(v) for k, v in known(texts).items()}


def _written(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


PRESET = Preset(
    gets="an alert of the API v2, for the routes of an existing Alertmanager",
    talk=talk,
    standing=Standing(every=_EVERY, changed=_changed, again=_again),
    is_open=True,  # without a proxy in front, Alertmanager asks for no credentials
)
