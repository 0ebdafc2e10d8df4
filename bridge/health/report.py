"""Writes the status: the JSON of ``/status`` and of ``sebridge status --json``.

A running forwarder (``health.status``) and ``sebridge status`` on the state file of one
that does not run (``diagnostics.status_query``) write it here. Whoever reads a status
takes any mapping: another version of the bridge may have written it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NotRequired, TypedDict

import orjson
from msgspec import Struct, field

from bridge.events.build import rfc3339
from bridge.events.identity import Identity
from bridge.events.watch import Watch
from bridge.outbox.records import REPLIES, Tally
from bridge.outbox.store import Outbox

_RECENT = 10
_NOT_SHOWN = {"output", "reporter", "truncated"}  # of a command's result


class DocumentReport(TypedDict):
    """The known scheduled events."""

    incarnation: int | None
    events: list[Mapping[str, object]]


class ImdsReport(TypedDict):
    """How IMDS answers; ``lastSuccess`` is RFC 3339."""

    lastSuccess: str | None
    state: str


class SinkReport(TypedDict):
    """The state of one sink."""

    name: str
    state: str
    pending: int
    dead: int
    oldestSeconds: int | None
    lastError: str | None


class RepliesReport(TypedDict):
    """The state of the replies to approvals."""

    pending: int
    dead: int
    lastError: str | None


class ReceiverReport(TypedDict):
    """The state of one receiver of approvals; ``lastReceive`` is RFC 3339."""

    entity: str
    attached: bool
    standsBy: bool
    linkSeconds: int | None
    lastReceive: str | None
    lastError: str | None


class HoldReport(TypedDict):
    """An event that a rule does not approve yet."""

    eventId: str
    rule: str
    reason: str


class ClockReport(TypedDict):
    """How many seconds this VM's clock is ahead of IMDS's, once that is known."""

    offsetSeconds: int


class StatusReport(TypedDict):
    """The status. Only a running forwarder adds the members that are not required.

    ``traffic`` is also added for a stopped forwarder, if there is a probe.
    """

    vm: dict[str, str | None]
    document: DocumentReport
    imds: ImdsReport
    sinks: list[SinkReport]
    approvals: list[Any]
    commands: list[dict[str, object]]
    replies: RepliesReport
    clock: NotRequired[ClockReport]
    receivers: NotRequired[list[ReceiverReport]]
    missing: NotRequired[list[str]]
    notes: NotRequired[list[str]]
    withheld: NotRequired[list[HoldReport]]
    traffic: NotRequired[dict[str, object]]


class Stored(Struct, frozen=True, kw_only=True):
    """The part of the status that is in the state file.

    Attributes:
        tallies: by the name of the sink.
        outcomes: the last outcomes of approvals, newest first.
        commands: the results of the last commands, without their output.
    """

    tallies: Mapping[str, Tally] = field(default_factory=dict)
    outcomes: Sequence[Any] = ()
    commands: Sequence[dict[str, object]] = ()


async def stored(outbox: Outbox) -> Stored:
    """Read what the status shows from the state file."""
    tallies = await outbox.deliveries.tallies()
    outcomes = await outbox.approvals.recent_outcomes(_RECENT)
    results = await outbox.commands.recent_results(_RECENT)
    return Stored(
        tallies=tallies,
        outcomes=[orjson.loads(body) for body in outcomes],
        commands=[_command(event) for event in results],
    )


def report(
    vm: Mapping[str, str | None],
    imds: str,
    watch: Watch,
    *,
    sinks: Iterable[SinkReport] = (),
    found: Stored | None = None,
) -> StatusReport:
    """Return the status, with the members that each status has.

    Args:
        vm: the members of this VM, see ``Identity.members``.
        imds: how IMDS answers, in a word.
        watch: the known scheduled events.
        sinks: the state of each sink, see ``sink_of``.
        found: what the state file holds; None = nothing is known of it.
    """
    found = found or Stored()
    return {
        "vm": dict(vm),
        "document": {
            "incarnation": watch.incarnation,
            "events": [known.event.raw for known in watch.known.values()],
        },
        "imds": {
            "lastSuccess": rfc3339(watch.seen.at) if watch.seen else None,
            "state": imds,
        },
        "sinks": list(sinks),
        "approvals": list(found.outcomes),
        "commands": list(found.commands),
        "replies": _replies(found.tallies.get(REPLIES)),
    }


def nothing_known(state: str) -> StatusReport:
    """Return a status without values."""
    return report(Identity().members, state, Watch())


def sink_of(
    name: str,
    state: str,
    tally: Tally | None,
    now: float,
    *,
    error: str | None = None,
) -> SinkReport:
    """Return the state of a sink.

    Args:
        name: the name of the sink.
        state: how it answers, in a word.
        tally: its deliveries in the state file; None = there are none.
        now: seconds since the epoch.
        error: why the last attempt of this process failed.
    """
    tally = tally or Tally()
    is_idle = state == "retrying" and not tally.pending  # nothing is left to retry
    return {
        "name": name,
        "state": "ok" if is_idle else state,
        "pending": tally.pending,
        "dead": tally.dead,
        "oldestSeconds": tally.age(now),
        "lastError": error or tally.last_error,
    }


def _command(event: Mapping[str, object]) -> dict[str, object]:
    """Return the result of a command, without the command's output."""
    data, kind = event.get("data"), str(event.get("type"))
    shown = data if isinstance(data, dict) else {}
    kept = {key: value for key, value in shown.items() if key not in _NOT_SHOWN}
    return {"outcome": kind.removesuffix(".v1").rpartition(".")[2], **kept}


def _replies(tally: Tally | None) -> RepliesReport:
    tally = tally or Tally()
    return {
        "pending": tally.pending,
        "dead": tally.dead,
        "lastError": tally.last_error,
    }
