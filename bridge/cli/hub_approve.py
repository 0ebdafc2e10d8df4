"""``sebridge approve --hub`` and ``--via arm``: approve without Service Bus."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import click
import orjson

from bridge import __version__
from bridge.cli.approve_view import Options, Subject
from bridge.cli.common import echo_json
from bridge.cli.ending import fail
from bridge.cli.hub_client import HubClient, checked, open_hub, url_of
from bridge.cli.long_running import run
from bridge.events.cloudevent import rfc3339
from bridge.events.document import ScheduledEvent
from bridge.foundation.clock import Clock, SystemClock
from bridge.foundation.errors import BridgeError
from bridge.foundation.printable import printable
from bridge.hub.answers import DecisionRow, EventPage, EventRow
from bridge.hub.choices import Decided
from bridge.hub.config import ArmConfig
from bridge.net.http_client import open_session

ARM = "arm"
_SHORTEST = 4
_LAST = 99  # a high number of the attempt, so that a refusal counts as final
_MOST_SHOWN = 5
_LOOK_EVERY = 1.0
_OVER = {"done", "failed", "void", "refused"}
_GOOD = {"relayed", "already-started", "acknowledged"}  # not event-ended
_LIFETIME = timedelta(minutes=15)


def approve(options: Options, seen: bytes | None, *, as_json: bool) -> bool:
    """Approve or refuse an event, and print the result; return whether it succeeded.

    Args:
        options: those of the command; without a hub, ARM is asked.
        seen: the event as it was received; None = not given. Only without a hub.
        as_json: whether to print JSON.

    Raises:
        ValueError: an option is wrong.
        BridgeError: the hub or ARM does not answer, or refuses the request.
    """
    if options.hub is None:
        return run(_through_arm(options, seen, as_json=as_json))
    url = url_of(options.hub, options.hub_scope)
    if options.resource or seen:
        raise ValueError("--resource and --from-event are not for --hub")
    return run(_through_hub(options, url, as_json=as_json))


# -- through a hub -----------------------------------------------------------------


async def _through_hub(options: Options, url: str, *, as_json: bool) -> bool:
    async with open_hub(url, options.hub_scope) as hub:
        event = await _event_of(hub, options.event_id)
        subject = _subject(event, options)
        if options.is_rehearsal:
            subject.rehearse(f"the hub at {url}", as_json=as_json)
            return True
        if options.via == ARM and not options.refuse:
            subject.show()
            _confirm(options, event.machines, _NO_BRIDGE_ANSWERS)
        else:
            subject.confirm(is_sure=options.is_sure)
        decision = {
            "decision": "refuse" if options.refuse else "approve",
            "via": options.via,
            "reason": options.reason or "",
            "content": event.content,
        }
        status, body = await hub.decide(event.event_id, decision)
        if status not in {200, 202}:
            raise BridgeError(hub.refusal(status, body))
        vote = checked(body, Decided)
        result = {"eventId": event.event_id, **body}
        if vote.id is not None and options.wait:
            result |= await _outcome(hub, event.event_id, vote.id, options.timeout)
    if as_json:
        echo_json(result)
    else:
        click.echo(printable(_line(result, options)))
    return not options.wait or _is_good(result, options)


def _subject(event: EventRow, options: Options) -> Subject:
    return Subject(
        event_id=event.event_id,
        event_type=event.event_type or "",
        machines=event.machines,
        not_before=rfc3339(event.not_before) if event.not_before else "",
        is_refusal=options.refuse,
    )


def _is_good(result: Mapping[str, Any], options: Options) -> bool:
    """Whether the event starts or has started; or it is refused, if that was asked."""
    state: str = result["state"]
    if options.refuse:
        return state == "refused"
    return state == "done" and result["outcome"] in _GOOD


async def _event_of(hub: HubClient, given: str | None) -> EventRow:
    """Return the event with an EventId, or the one open event that begins with it.

    Raises:
        ValueError: no event fits, or more than one does.
    """
    if not given:
        raise ValueError("EVENT_ID must be given")
    status, found = await hub.get(f"/api/v1/events/{quote(given, safe='')}")
    if status == 200:
        return checked(found, EventPage)
    rows = await hub.open_events(q=given)
    mine = [one for one in rows if one.event_id.upper().startswith(given.upper())]
    if len(mine) == 1 and len(given) >= _SHORTEST:
        return mine[0]
    if len(mine) > 1:
        several = ", ".join(one.event_id for one in mine[:_MOST_SHOWN])
        raise ValueError(
            f"EVENT_ID {given!r} is the beginning of several EventIds: {several}"
        )
    raise ValueError(
        f"EVENT_ID {given!r} is not known to the hub, and is not the beginning "
        f"({_SHORTEST} or more characters) of an open event's EventId"
    )


async def _outcome(
    hub: HubClient, event_id: str, decision: str, patience: float
) -> dict[str, Any]:
    """Wait until a decision has ended, but not longer than ``patience`` seconds."""
    clock: Clock = SystemClock()
    never, end = asyncio.Event(), clock.monotonic() + patience
    while True:
        found: DecisionRow | None = None
        with suppress(BridgeError):  # the hub may be restarting; it keeps the decision
            found = await _decision_of(hub, event_id, decision)
        state = found.state.value if found else "unknown"
        if state in _OVER or clock.monotonic() >= end:
            outcome = found.outcome if found else None
            reason = found.outcome_reason if found else None
            return {"state": state, "outcome": outcome, "outcomeReason": reason}
        await clock.wait(never, _LOOK_EVERY)


async def _decision_of(
    hub: HubClient, event_id: str, decision: str
) -> DecisionRow | None:
    status, found = await hub.get(f"/api/v1/events/{quote(event_id, safe='')}")
    if status != 200:
        return None
    known = checked(found, EventPage).decisions
    return next((one for one in known if one.id == decision), None)


def _line(result: Mapping[str, Any], options: Options) -> str:
    event_id = result["eventId"]
    if result["state"] == "counted":
        people = "person" if result["missing"] == 1 else "people"
        return f"{event_id}: counted, {result['missing']} more {people} must approve"
    if result["state"] == "decided":
        word = "refused" if options.refuse else "approved"
        return f"{event_id}: {word}, decision {result['id']}"
    why = ": ".join(
        str(result[k]) for k in ("outcome", "outcomeReason") if result.get(k)
    )
    return f"{event_id}: {result['state']}" + (f", {why}" if why else "")


# -- through ARM, without a hub ----------------------------------------------------


async def _through_arm(options: Options, given: bytes | None, *, as_json: bool) -> bool:
    from bridge.hub import arm  # noqa: PLC0415 - only if ARM is asked
    from bridge.hub.decisions import Claimed  # noqa: PLC0415 - as above

    event, resource = _seen(options, given)
    path = _path(event.event_id, resource)
    config = _arm_config(options.endpoint)
    if options.refuse:
        raise ValueError("--refuse needs --hub: Azure can only start an event")
    if options.is_rehearsal:
        Subject(event_id=event.event_id, machines=event.resources).rehearse(
            f"Azure Resource Manager for {resource}", as_json=as_json
        )
        return True
    _confirm(options, event.resources, _NO_BRIDGE_ASKED)
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
        attempt = await transport.send(claimed)
    if attempt.end is None:
        fail(f"{event.event_id}: {attempt.fault}")
    end = attempt.end
    result = {
        "eventId": event.event_id,
        "state": end.state.value,
        "outcome": end.outcome,
        "outcomeReason": end.reason or None,
    }
    if as_json:
        echo_json(result)
    else:
        click.echo(printable(_line(result, options)))
    return end.state.value == "done"


def _seen(options: Options, given: bytes | None) -> tuple[ScheduledEvent, str]:
    """Return the event, and the resource id under which ARM has it.

    Raises:
        ValueError: the event or the resource is not given.
    """
    from bridge.app.approve_request import SeenEvent  # noqa: PLC0415 - as above

    event = ScheduledEvent(event_id=options.event_id or "", raw={})
    resource = options.resource or ""
    if given is not None:
        try:
            found = SeenEvent.parse(given)
        except ValueError as error:
            raise ValueError(f"--from-event {error}") from error
        if options.event_id and options.event_id.upper() != found.event_id.upper():
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
            "ARM needs the GUID of an event, and the resource id of a virtual machine, "
            f"scale set or availability set; given: {event_id!r} and {resource!r}"
        )
    return path


def _arm_config(endpoint: str) -> ArmConfig:
    found = ArmConfig(endpoint=endpoint, credential="default")
    if found.is_local:
        found = ArmConfig(endpoint=endpoint, credential="none")
    for _, what, *_ in found.faults():
        raise ValueError(f"--arm-endpoint {what}")
    return found


_NO_BRIDGE_ANSWERS = "No bridge answers for the event, and none prepares its machines"
_NO_BRIDGE_ASKED = "No bridge prepares the machines, and no bridge checks its rules"


def _confirm(options: Options, machines: Sequence[str], risk: str) -> None:
    """Ask whether Azure shall start an event although no bridge prepares machines.

    Raises:
        ValueError: the answer is no, or there is no terminal for an answer.
    """
    if options.is_sure:
        return
    named = ", ".join(machines) if machines else "all machines of the event"
    question = printable(f"{risk} ({named}). Ask Azure to start the event anyway?")
    try:
        if click.confirm(question, err=True):
            return
    except click.Abort:
        raise ValueError("--via arm asks a question: answer it, or add --yes") from None
    raise ValueError("nothing was approved")
