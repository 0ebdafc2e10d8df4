"""``sebridge approve --hub`` and ``--via arm``: approving without the bus."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import click
import orjson

from bridge import __version__
from bridge.cli.common import echo_json
from bridge.cli.ending import fail
from bridge.cli.hub_client import HubClient, open_hub, url_of
from bridge.cli.running import run
from bridge.events.document import ScheduledEvent
from bridge.foundation.clock import Clock, SystemClock
from bridge.foundation.errors import BridgeError
from bridge.foundation.printable import printable
from bridge.hub.arm_config import ArmConfig
from bridge.net.http_client import open_session

ARM = "arm"
_SHORTEST = 4
_LAST = 99  # the only attempt: a refusal is an answer
_MOST_SHOWN = 5
_LOOK_EVERY = 1.0
_OVER = {"done", "failed", "void", "refused"}
_LIFETIME = timedelta(minutes=15)


@dataclass(frozen=True, slots=True, kw_only=True)
class Far:
    """What a person has typed, for a way that is not the bus.

    Attributes:
        hub: its address; None = ARM is asked without any hub.
        scope: of the token for the hub.
        via: bridge or arm.
        refuse: whether to refuse.
        is_sure: whether the question was answered on the command line.
        resource: of ARM without a hub: the id of the machine or scale set.
        seen: of ARM without a hub: the event as it was received; None = not given.
        endpoint: of ARM without a hub.
        timeout: seconds to wait for the outcome; None = do not.
    """

    event_id: str | None
    hub: str | None
    scope: str | None
    via: str
    refuse: bool
    is_sure: bool
    reason: str
    resource: str | None
    seen: bytes | None
    endpoint: str
    timeout: float | None


def approve(far: Far, *, as_json: bool) -> bool:
    """Do what is wanted, and print what became of it; False: it was not done.

    Raises:
        ValueError: an option is wrong.
        BridgeError: nobody answers, or refuses.
    """
    if far.hub is None:
        return run(_by_arm(far, as_json=as_json))
    url = url_of(far.hub, far.scope)
    if far.resource or far.seen:
        raise ValueError("--resource and --from-event are not for --hub: it knows them")
    return run(_by_hub(far, url, as_json=as_json))


# -- by a hub ----------------------------------------------------------------------


async def _by_hub(far: Far, url: str, *, as_json: bool) -> bool:
    async with open_hub(url, far.scope) as hub:
        event = await _event_of(hub, far.event_id)
        if far.via == ARM and not far.refuse:
            _confirm(far, event["machines"], _OF_A_HUB)
        wish = {
            "decision": "refuse" if far.refuse else "approve",
            "via": far.via,
            "reason": far.reason,
            "content": event["content"],
        }
        status, body = await hub.decide(event["eventId"], wish)
        if status not in {200, 202}:
            raise BridgeError(hub.words(status, body))
        told = {"eventId": event["eventId"], **body}
        if status == 200 and far.timeout is not None:
            told |= await _outcome(hub, event["eventId"], body["id"], far.timeout)
    if as_json:
        echo_json(told)
    else:
        click.echo(printable(_line(told, far)))
    return far.timeout is None or status == 202 or told["state"] in {"done", "refused"}


async def _event_of(hub: HubClient, given: str | None) -> dict[str, Any]:
    """Return the one event that is meant.

    Raises:
        ValueError: it is none, or several.
    """
    if not given:
        raise ValueError("EVENT_ID must be given")
    status, found = await hub.get(f"/api/v1/events/{quote(given, safe='')}")
    if status == 200:
        return dict(found)
    rows = await hub.pages("/api/v1/events", "events", open="true", q=given)
    mine = [one for one in rows if one["eventId"].upper().startswith(given.upper())]
    if len(mine) == 1 and len(given) >= _SHORTEST:
        return dict(mine[0])
    if len(mine) > 1:
        several = ", ".join(one["eventId"] for one in mine[:_MOST_SHOWN])
        raise ValueError(f"EVENT_ID {given!r} begins several EventIds: {several}")
    raise ValueError(
        f"EVENT_ID {given!r} is not known to the hub, nor are these the first "
        f"{_SHORTEST} or more characters of an event that is open"
    )


async def _outcome(
    hub: HubClient, event_id: str, decision: str, patience: float
) -> dict[str, Any]:
    """Return what became of a decision, as far as it is known in time."""
    clock: Clock = SystemClock()
    never, end = asyncio.Event(), clock.monotonic() + patience
    while True:
        found: dict[str, Any] = {}
        with suppress(BridgeError):  # a hub that starts anew: the decision is kept
            _, found = await hub.get(f"/api/v1/events/{quote(event_id, safe='')}")
        mine = [one for one in found.get("decisions", ()) if one["id"] == decision]
        state = mine[0]["state"] if mine else "unknown"
        if state in _OVER or clock.monotonic() >= end:
            known = mine[0] if mine else {}
            outcome, reason = known.get("outcome"), known.get("outcomeReason")
            return {"state": state, "outcome": outcome, "outcomeReason": reason}
        await clock.wait(never, _LOOK_EVERY)


def _line(told: Mapping[str, Any], far: Far) -> str:
    event_id = told["eventId"]
    if told["state"] == "counted":
        people = "person" if told["missing"] == 1 else "people"
        return f"{event_id}: counted, {told['missing']} more {people} must approve"
    if told["state"] == "decided":
        word = "refused" if far.refuse else "approved"
        return f"{event_id}: {word}, decision {told['id']}"
    why = ": ".join(str(told[k]) for k in ("outcome", "outcomeReason") if told.get(k))
    return f"{event_id}: {told['state']}" + (f", {why}" if why else "")


# -- by ARM, without a hub ---------------------------------------------------------


async def _by_arm(far: Far, *, as_json: bool) -> bool:
    from bridge.hub import arm  # noqa: PLC0415 - for whoever asks ARM
    from bridge.hub.attempts import Claimed  # noqa: PLC0415 - as above

    event, resource = _seen(far)
    path = _path(event.event_id, resource)
    config = _arm_config(far.endpoint)
    if far.refuse:
        raise ValueError("--refuse needs --hub: Azure can only be asked to start it")
    _confirm(far, list(event.resources), _OF_NOBODY)
    now = SystemClock().now()
    claimed = Claimed(
        id="",
        event_key=event.key,
        event_id=event.event_id,
        via=ARM,
        address=None,
        message=orjson.dumps({"path": path}),
        expires=now + _LIFETIME,
        attempt=_LAST,
        until=now + _LIFETIME,
    )
    agent = f"scheduled-events-bridge/{__version__}"
    async with (
        open_session(user_agent=agent) as http,
        arm.open_arm(config, http) as transport,
    ):
        result = await transport.send(claimed)
    if result.end is None:
        fail(f"{event.event_id}: {result.fault}")
    end = result.end
    told = {
        "eventId": event.event_id,
        "state": end.state.value,
        "outcome": end.outcome,
        "outcomeReason": end.reason or None,
    }
    if as_json:
        echo_json(told)
    else:
        click.echo(printable(_line(told, far)))
    return end.state.value == "done"


def _seen(far: Far) -> tuple[ScheduledEvent, str]:
    """Return the event, and the id of what ARM knows it by.

    Raises:
        ValueError: one of them is not given.
    """
    from bridge.app.approve_request import SeenEvent  # noqa: PLC0415 - as above

    event = ScheduledEvent(event_id=far.event_id or "", raw={})
    resource = far.resource or ""
    if far.seen is not None:
        try:
            found = SeenEvent.parse(far.seen)
        except ValueError as error:
            raise ValueError(f"--from-event {error}") from error
        if far.event_id and far.event_id.upper() != found.event_id.upper():
            raise ValueError(f"EVENT_ID is not that of --from-event, {found.event_id}")
        event = ScheduledEvent(event_id=found.event_id, raw=found.event)
        resource = resource or found.reporter.resource_id or ""
    if not event.event_id:
        raise ValueError("EVENT_ID or --from-event must be given")
    if not resource:
        raise ValueError("--via arm needs --hub, --resource or --from-event")
    return event, resource


def _path(event_id: str, resource: str) -> str:
    from bridge.hub.arm_rules import path_to  # noqa: PLC0415 - as above

    path = path_to(resource, event_id)
    if path is None:
        raise ValueError(
            "ARM knows an event by a GUID below the id of a virtual machine, a scale "
            f"set or an availability set: {resource!r} with {event_id!r} is none"
        )
    return path


def _arm_config(endpoint: str) -> ArmConfig:
    found = ArmConfig(endpoint=endpoint, credential="default")
    if found.is_local:
        found = ArmConfig(endpoint=endpoint, credential="none")
    for _, what, *_ in found.faults():
        raise ValueError(f"--arm-endpoint {what}")
    return found


_OF_A_HUB = "no bridge answers for the event, and none prepares its machines"
_OF_NOBODY = "no bridge prepares the machines, and no rule of a bridge is asked"


def _confirm(far: Far, machines: list[str], what: str) -> None:
    """Ask whether Azure may start an event that no bridge prepares machines for.

    Raises:
        ValueError: nobody is there to be asked.
    """
    if far.is_sure:
        return
    named = ", ".join(machines) if machines else "all machines of the event"
    question = printable(f"Azure is asked: {what} ({named}). Start it nevertheless?")
    try:
        if click.confirm(question, err=True):
            return
    except click.Abort:
        raise ValueError("--via arm asks a question: answer it, or add --yes") from None
    raise ValueError("nothing was approved")
