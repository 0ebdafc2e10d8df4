"""The status, of which ``/status``, the page and ``sebridge status`` are made.

``health.server`` makes that of a running forwarder, ``diagnostics.status_query`` for
that of one that does not run, from its state file.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import orjson
from msgspec import Struct, field

from bridge.events.cloudevent import rfc3339
from bridge.events.identity import Identity
from bridge.events.look import Withheld
from bridge.events.watch import Watch
from bridge.outbox.records import REPLIES, Tally
from bridge.outbox.store import Outbox

_RECENT = 10
_NOT_SHOWN = {"output", "reporter", "truncated"}  # of a command's result


class DocumentReport(Struct):
    """The known scheduled events, as IMDS wrote them."""

    incarnation: int | None
    events: list[Mapping[str, object]]


class ImdsReport(Struct, rename="camel"):
    """How IMDS answers; ``lastSuccess`` is RFC 3339."""

    last_success: str | None
    state: str


class SinkReport(Struct, rename="camel"):
    """The state of one sink."""

    name: str
    state: str
    pending: int = 0
    dead: int = 0
    oldest_seconds: int | None = None
    last_error: str | None = None


class RepliesReport(Struct, rename="camel"):
    """The state of the replies to approvals."""

    pending: int = 0
    dead: int = 0
    last_error: str | None = None


class ReceiverReport(Struct, rename="camel"):
    """The state of one receiver of approvals; ``lastReceive`` is RFC 3339."""

    entity: str
    attached: bool
    stands_by: bool = False
    link_seconds: int | None = None
    last_receive: str | None = None
    last_error: str | None = None


class ClockReport(Struct, rename="camel"):
    """How many seconds this VM's clock is ahead of IMDS's, once that is known."""

    offset_seconds: int


class StatusReport(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """The status, for ``/status``, the page and the shell.

    Attributes:
        vm: the members of this VM; a running forwarder adds its version and source.
        document: the known scheduled events.
        imds: how IMDS answers.
        sinks: the state of each sink.
        approvals: the last outcomes of approvals, as they were published.
        commands: the results of the last commands, without their output.
        replies: the state of the replies to approvals.
        receivers: where approvals come from; None (as in all that follow) if that is
            not known: only a running forwarder knows the receivers.
        clock: of a running forwarder.
        missing: why a running forwarder is not ready.
        notes: what needs attention, but does not affect readiness.
        withheld: the events that rules do not approve yet.
        traffic: the answer of the traffic probe, if there is one.
        state_path: the state file, so whose status this is; see ``place_of``.
    """

    vm: dict[str, str | None]
    document: DocumentReport
    imds: ImdsReport
    sinks: list[SinkReport]
    approvals: list[Mapping[str, object]]
    commands: list[Mapping[str, object]]
    replies: RepliesReport
    receivers: list[ReceiverReport] | None = None
    clock: ClockReport | None = None
    missing: list[str] | None = None
    notes: list[str] | None = None
    withheld: list[Withheld] | None = None
    traffic: Mapping[str, object] | None = None
    state_path: str = ""


class Stored(Struct, frozen=True, kw_only=True):
    """The part of the status that is in the state file.

    Attributes:
        tallies: by the name of the sink.
        outcomes: the last outcomes of approvals, newest first.
        commands: the results of the last commands, without their output.
    """

    tallies: Mapping[str, Tally] = field(default_factory=dict)
    outcomes: Sequence[Mapping[str, object]] = ()
    commands: Sequence[Mapping[str, object]] = ()


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
    replies = found.tallies.get(REPLIES, Tally())
    return StatusReport(
        vm=dict(vm),
        document=DocumentReport(
            watch.incarnation, [known.event.raw for known in watch.known.values()]
        ),
        imds=ImdsReport(rfc3339(watch.seen.at) if watch.seen else None, imds),
        sinks=list(sinks),
        approvals=list(found.outcomes),
        commands=list(found.commands),
        replies=RepliesReport(replies.pending, replies.dead, replies.last_error),
    )


def nothing_known(state: str) -> StatusReport:
    """Return a status without values."""
    return report(Identity().members, state, Watch())


def sink_of(
    name: str,
    state: str,
    tally: Tally | None,
    now: float,
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
    has_given_up = state == "retrying" and not tally.pending
    return SinkReport(
        name=name,
        state="failed" if has_given_up else state,
        pending=tally.pending,
        dead=tally.dead,
        oldest_seconds=None if state == "early" else tally.age(now),
        last_error=error or tally.last_error,
    )


def place_of(state: Path) -> str:
    """Return the path by which the status names a state file."""
    return str(state.absolute())


def _command(event: Mapping[str, object]) -> dict[str, object]:
    """Return the result of a command, without the command's output."""
    data, kind = event.get("data"), str(event.get("type"))
    shown = data if isinstance(data, dict) else {}
    kept = {key: value for key, value in shown.items() if key not in _NOT_SHOWN}
    return {"outcome": kind.removesuffix(".v1").rpartition(".")[2], **kept}
