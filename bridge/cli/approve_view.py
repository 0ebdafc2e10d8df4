"""Finds and shows the event that an approval is about, and asks on a terminal."""

import getpass
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import UTC
from pathlib import Path
from typing import TypeVar

import click
from msgspec import Struct

from bridge.app.approve_request import SeenEvent
from bridge.cli import door
from bridge.cli.common import echo_json
from bridge.cli.ending import fail
from bridge.cli.long_running import run
from bridge.configuration import load as configuration
from bridge.configuration.config import Config
from bridge.diagnostics.outbox_access import access
from bridge.events.document import ScheduledEvent, parse_time
from bridge.foundation.clock import SystemClock
from bridge.foundation.errors import BridgeError, ConfigError
from bridge.foundation.printable import printable
from bridge.foundation.values import Duration
from bridge.outbox.admin import Ledger
from bridge.outbox.questions import Wanted
from bridge.outbox.statefile import is_there
from bridge.sinks.base import ApprovalAddress

TIMEOUT = Duration(60)
_MOST_NAMES = 10
_APPROVE = "Azure starts the event now, on all its machines."
_REFUSE = (
    "All votes are deleted. The event can still be approved, here or elsewhere, and "
    "Azure still starts it at NotBefore."
)


T = TypeVar("T")


def is_terminal() -> bool:
    """Whether a person can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


class Options(Struct, frozen=True, kw_only=True):
    """The options of the command, as typed.

    Attributes:
        hub: the address of the hub; None = do not use one.
        hub_scope: the scope of the token for the hub.
        via: ``bridge`` or ``arm``.
        resource: the resource id of the machine or scale set; only without a hub.
        refuse: whether to refuse the event instead of approving it.
        endpoint: the address of ARM; only without a hub.
    """

    event_id: str | None = None
    session: str | None = None
    force: bool = False
    reason: str | None = None
    approved_by: str | None = None
    sign_key: str | None = None
    wait: bool = False
    timeout: Duration = TIMEOUT
    hub: str | None = None
    hub_scope: str | None = None
    via: str = "bridge"
    resource: str | None = None
    refuse: bool = False
    is_sure: bool = False
    is_rehearsal: bool = False
    endpoint: str = ""

    @property
    def is_looked_up(self) -> bool:
        """Whether the event is shown, so that it is searched here."""
        return self.is_rehearsal or (is_terminal() and not self.is_sure)


class Subject(Struct, frozen=True, kw_only=True):
    """The event that an approval is about; empty fields are not known.

    Attributes:
        not_before: in any format that IMDS or a hub uses.
        is_known: whether the event itself was found, and not its id alone.
        is_refusal: whether the event is to be refused.
    """

    event_id: str
    event_type: str = ""
    machines: Sequence[str] = ()
    not_before: str = ""
    description: str = ""
    is_known: bool = True
    is_refusal: bool = False

    @classmethod
    def of(cls, event_id: str, seen: SeenEvent | None) -> "Subject":
        """Return the subject of an event as it was received or stored."""
        if seen is None:
            return cls(event_id=event_id, is_known=False)
        found = ScheduledEvent(event_id=event_id, raw=seen.event)
        texts = {name: seen.event.get(name) for name in ("NotBefore", "Description")}
        return cls(
            event_id=event_id,
            event_type=found.event_type or "",
            machines=found.resources,
            not_before=str(texts["NotBefore"] or ""),
            description=str(texts["Description"] or ""),
        )

    def lines(self) -> Iterator[str]:
        """Yield what a person must know before the decision."""
        if not self.is_known:
            yield f"EventId {self.event_id}: its type and machines are not known here"
        else:
            names = ", ".join(self.machines[:_MOST_NAMES]) or "unnamed machines"
            more = len(self.machines) - _MOST_NAMES
            rest = f" and {more} more" if more > 0 else ""
            yield f"{self.event_type or 'An event'} of {names}{rest}"
            yield f"EventId {self.event_id}, not before {self._when()}"
        if self.description:
            yield f"Azure says: {self.description}"
        yield _REFUSE if self.is_refusal else _APPROVE

    def _when(self) -> str:
        moment = parse_time(self.not_before)
        if moment is None:
            return self.not_before or "now: it may start at any time"
        return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"

    def show(self) -> None:
        """Print the event to standard error, if that is a terminal."""
        if is_terminal():
            for line in self.lines():
                click.echo(printable(line), err=True)

    def confirm(self, *, is_sure: bool) -> None:
        """Show the event and ask; without a terminal, or with --yes, do not ask."""
        if is_sure or not is_terminal():
            return
        self.show()
        verb = "Refuse" if self.is_refusal else "Approve"
        if not click.confirm(f"{verb} it?", err=True):
            fail(f"nothing was {verb.lower()}d")

    def rehearse(self, where: str, *, as_json: bool) -> None:
        """Print the event and where the decision would be sent; nothing is sent."""
        if as_json:
            found = {
                "eventId": self.event_id,
                "eventType": self.event_type or None,
                "machines": list(self.machines),
                "notBefore": self.not_before or None,
                "to": where,
                "sent": False,
            }
            echo_json(found)
            return
        for line in (*self.lines(), f"It would be sent to {where}. Nothing was sent."):
            click.echo(printable(line))


# -- the state file of this machine ------------------------------------------------


def observed(path: Path, config: Config, start: str) -> list[str]:
    """Return the EventIds in the local state file that begin with ``start``.

    Root becomes the account of that file for it; the secrets of ``config`` stay known.

    The list is empty if this machine has no state file.

    Raises:
        OutboxError: it cannot be read (it may belong to another user).
    """
    return _read_here(path, config, lambda ledger: ledger.observed(start)) or []


def stored(path: Path, config: Config, event_id: str) -> SeenEvent | None:
    """Return an event as the local state file has it last; None = it does not.

    None is also returned for an event that is over, or was cut to fit a message, and
    if the file cannot be read.
    """
    wanted = Wanted(event_id=event_id, is_step=True)
    try:
        found = _read_here(
            path, config, lambda ledger: ledger.published(newest=1, wanted=wanted)
        )
        return SeenEvent.parse(found[0].body) if found else None
    except (BridgeError, ValueError):
        return None


def _read_here(
    path: Path, config: Config, read: Callable[[Ledger], Awaitable[T]]
) -> T | None:
    """Read from the local state file; None = there is none.

    Raises:
        OutboxError: it cannot be read.
    """

    async def asked(state: Path) -> T:
        async with access(state, SystemClock()) as ledger:
            return await read(ledger)

    try:
        state = Path(configuration.load_state(path, os.environ).path)
    except ConfigError:
        return None
    if not is_there(state):
        return None
    door.enter_for(config, state)
    return run(asked(state))


def login_name() -> str | None:
    """Return the name of the user who is logged in; None if there is no such name."""
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):
        return None


def lacks_session(config: Config) -> bool:
    """Whether the session follows from the event."""
    sessions = config.approvals.sessions if config.approvals else ()
    return any("{" in one for one in sessions)


def place_of(to: ApprovalAddress) -> str:
    """Return the words for an entity and its session."""
    return f"{to.entity}, session {to.session}" if to.session else to.entity


def unknown(event_id: str) -> str:
    """Return how to learn an outcome that is not known."""
    ask = f"'sebridge events --event {event_id}' on a machine of the event shows it"
    return f"the outcome of the approval is not known; {ask}"
