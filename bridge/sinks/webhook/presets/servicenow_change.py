"""ServiceNow: a standard change, opened when an event is announced and closed after it.

The EventId is the change's ``correlation_id``. Each delivery searches for the change
first. So if the answer to an attempt was lost, the next attempt finds the change and
makes no second one. A change goes through its states one by one; none may be left out.

Source: https://www.servicenow.com/docs (Change Management API, ``sn_chg_rest``; state
        model of a standard change)
"""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from urllib.parse import quote

import orjson

from bridge.events.cloudevent import CloudEvent
from bridge.events.wording import table
from bridge.foundation.errors import DeliveryError, PermanentDeliveryError, Reason
from bridge.net.http_client import Answer
from bridge.sinks.webhook.auth import AuthDefaults
from bridge.sinks.webhook.presets.alert import Alert, AlertAction, alert, begins
from bridge.sinks.webhook.presets.fields import clipped
from bridge.sinks.webhook.presets.preset import (
    JSON,
    Call,
    Preset,
    Talk,
    Verdict,
    no_json,
)

_CHANGES = "/api/sn_chg_rest/change"
_HEADERS = {**JSON, "Accept": "application/json"}
_SCHEDULED, _IMPLEMENT, _REVIEW, _CLOSED, _CANCELED = -2, -1, 0, 3, 4
_WAY = (_SCHEDULED, _IMPLEMENT, _REVIEW, _CLOSED)
_OVER = frozenset({_CLOSED, _CANCELED})
_LONGEST_TITLE, _LONGEST_TEXT = 160, 4000
_PLANNED = timedelta(hours=1)  # from NotBefore, if the event's duration is not known


def talk(event: CloudEvent, verdict: Verdict, _: datetime) -> Talk:
    """Search for the change; then open it, or add a note to it, or close it."""
    found = alert(event)
    if found is None or found.about != "ScheduledEvent":
        return None
    answer = yield Call(method="GET", path=_query(found.key), headers=_HEADERS)
    error, changes = _read(answer, verdict)
    if error is not None:
        return error
    is_open = any(state not in _OVER for _, state in changes)
    if not is_open and found.action is AlertAction.OPEN:
        return verdict((yield _opened(event, found)))
    for sys_id, state in changes:
        for fields in _steps(found, state):
            error = verdict((yield _patched(sys_id, fields)))
            if error is not None:
                return error
    return None


def _query(key: str) -> str:
    query = quote(f"correlation_id={key}", safe="")
    return f"{_CHANGES}?sysparm_query={query}&sysparm_fields=sys_id,state"


def _read(
    answer: Answer, verdict: Verdict
) -> tuple[DeliveryError | None, list[tuple[str, int]]]:
    """Return the error of an answer, or the id and state of each change found."""
    if error := verdict(answer):
        return error, []
    try:
        result = table(orjson.loads(answer.body)).get("result")
    except orjson.JSONDecodeError:
        return no_json(answer), []
    found = [_change(table(one)) for one in result] if isinstance(result, list) else []
    if not isinstance(result, list) or not all(sys_id for sys_id, _ in found):
        text = "ServiceNow answered without the list of changes that was asked for"
        return PermanentDeliveryError(text, Reason.REJECTED), []
    return None, found


def _change(raw: Mapping[str, object]) -> tuple[str, int]:
    """Return id and state of a change; "" if it has no id."""
    sys_id, state = (_field(raw.get(name)) for name in ("sys_id", "state"))
    try:
        return sys_id, int(float(state))
    except (ValueError, OverflowError):
        return sys_id, _SCHEDULED


def _field(value: object) -> str:
    """Return a field as text; it is a value, or an object with ``value``."""
    found = table(value).get("value", value)
    return str(found) if isinstance(found, (str, int, float)) else ""


def _opened(event: CloudEvent, found: Alert) -> Call:
    start = begins(event)
    seconds = found.facts.raw.get("DurationInSeconds")
    is_known = isinstance(seconds, int) and 0 < seconds < 86400
    lasts = timedelta(seconds=int(str(seconds))) if is_known else _PLANNED
    return _call(
        "POST",
        "",
        {
            "short_description": clipped(found.headline, _LONGEST_TITLE),
            "description": found.body(_LONGEST_TEXT),
            "correlation_id": found.key,
            "correlation_display": "scheduled-events-bridge",
            "start_date": _written(start),
            "end_date": _written(start + lasts),
        },
    )


def _steps(found: Alert, state: int) -> Iterator[Mapping[str, object]]:
    """Yield the fields of each update that the change needs, state by state."""
    note = {"work_notes": found.body(_LONGEST_TEXT)}
    step = found.facts.step
    if state in _OVER:
        return
    if step == "cancelled":
        yield note | {"state": str(_CANCELED)}
        return
    goal = {"started": _IMPLEMENT, "completed": _CLOSED, "ended": _CLOSED}.get(step)
    ahead = [one for one in _WAY if goal is not None and state < one <= goal]
    if not ahead:
        yield note
    for one in ahead:
        is_last = one == ahead[-1]
        yield (note if is_last else {}) | {"state": str(one)} | _closing(found, one)


def _closing(found: Alert, state: int) -> dict[str, str]:
    if state != _CLOSED:
        return {}
    is_known = found.facts.step == "completed"
    return {
        "close_code": "successful" if is_known else "successful_issues",
        "close_notes": clipped(found.headline, _LONGEST_TEXT),
    }


def _patched(sys_id: str, fields: Mapping[str, object]) -> Call:
    return _call("PATCH", f"{_CHANGES}/{quote(sys_id, safe='')}", fields)


def _call(method: str, path: str, fields: Mapping[str, object]) -> Call:
    return Call(method=method, path=path, headers=_HEADERS, body=orjson.dumps(fields))


def _written(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S")


PRESET = Preset(
    gets="a standard change: opened, implemented, closed or cancelled",
    needs='`auth.username`, `auth.password`; `when.scope = "first"`',
    talk=talk,
    auth=AuthDefaults(type="basic"),
    repeats=False,  # two attempts at once would each find no change, and make one
    scope="first",
    assumed=b'{"result": []}',
)
