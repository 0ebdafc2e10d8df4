"""The configuration of a sink that runs a command before an event and after its end.

``actor`` decides when the command is run. This module has what is done without the
outbox: a test run, a check and a preview.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import ClassVar

from msgspec import Struct, field

from bridge.events.cloudevent import CloudEvent
from bridge.events.document import Document
from bridge.events.identity import Identity
from bridge.events.routing import Scope, Transition
from bridge.events.watch import Watch
from bridge.foundation.errors import (
    PermanentDeliveryError,
    Reason,
    RefusedDeliveryError,
    TransientDeliveryError,
)
from bridge.sinks.acting import Fate, Outlook, Step
from bridge.sinks.base import Preview, Resources
from bridge.sinks.command import ownership
from bridge.sinks.command.actor import CommandActor, event_of
from bridge.sinks.command.ownership import Service
from bridge.sinks.command.process import ProcessRunner
from bridge.sinks.command.terms import CommandKeys
from bridge.sinks.command.unit import UnitRunner, hook_name, path_unit_fault

_ROOT = 0
_MOST_ATTEMPTS = 100
_FORBIDDEN = ("\x00", "\n", "\r")


class CommandSinkConfig(CommandKeys, frozen=True, kw_only=True):
    """``[[sinks]]`` with ``type = "command"``: a program of this machine is run."""

    default_scope: ClassVar[Scope] = "own"
    default_lifecycle: ClassVar[bool] = False
    default_transitions: ClassVar[tuple[Transition, ...] | None] = (
        "scheduled",
        "updated",
        "completed",
        "cancelled",
        "ended",
    )
    is_for_steps: ClassVar[bool] = True
    concurrency: ClassVar[int] = 1
    service: ClassVar[Service] = Service()

    def faults(self) -> Iterator[tuple[str, ...]]:
        """Check the command and the numbers."""
        yield from self._faults_of_unit() if self.unit else self._faults_of_command()
        yield from self._faults_of_numbers()
        if self.when.lifecycle:
            what = "must not be true: a command is run for scheduled events only"
            yield "when.lifecycle", what

    def _faults_of_unit(self) -> Iterator[tuple[str, ...]]:
        if self.command:
            yield "unit", "replaces command: set only one of the two", "command"
        elif sys.platform != "linux":
            yield "unit", "needs systemd: use command"
        elif hook_name(self.unit) is None:
            yield "unit", "must be sebridge-hook@NAME.service: letters, digits, - and _"

    def _faults_of_command(self) -> Iterator[tuple[str, str]]:
        if not self.command or not self.command[0]:
            yield "command", 'must be a program and its arguments: ["/path/to/it", "…"]'
        elif any(mark in part for part in self.command for mark in _FORBIDDEN):
            yield "command", "must have no line break and no NUL"
        elif not _is_absolute(self.command[0]):
            yield "command", "must begin with the whole path of the program: /…"

    def _faults_of_numbers(self) -> Iterator[tuple[str, str]]:
        if not self.timeout:
            yield "timeout", "must be more than 0s"
        if not all(1 <= code <= 255 for code in self.retry_exit_codes):
            yield "retry_exit_codes", "must be exit codes from 1 to 255"
        if not 1 <= self.max_attempts <= _MOST_ATTEMPTS:
            yield "max_attempts", f"must be 1 to {_MOST_ATTEMPTS}"

    def doubts(self) -> Iterator[tuple[str, str]]:
        """Warn of a command that the shipped service, or the check, would refuse."""
        if self.command and self.service.is_installed:
            what = (
                "sebridge.service may do almost nothing, and so may its commands; "
                'with unit = "sebridge-hook@NAME.service" root runs the hook '
                "(infra/install.sh --hook NAME=FILE)"
            )
            yield "command", what
        if os.path.exists(self.program[0]) and (trouble := self._trouble()):  # noqa: PTH110 - no error where it may not be seen
            yield ("unit" if self.unit else "command"), trouble

    @property
    def account(self) -> int | None:
        """The uid that may write the program, beside root; None on Windows."""
        return _ROOT if self.unit else ownership.account()

    def actor(self, outlook: Outlook, resources: Resources) -> CommandActor:
        """Return the actor that runs the command."""
        clock = resources.clock
        runner = UnitRunner(self.unit, clock) if self.unit else ProcessRunner(clock)
        return CommandActor(
            terms=self,
            outlook=outlook,
            runner=runner,
            clock=clock,
            outer=resources.environ,
            account=self.account,
        )

    @asynccontextmanager
    async def open(self, resources: Resources) -> AsyncIterator["CommandSink"]:
        """Return a sink that runs the command once, as a test."""
        yield CommandSink(self, resources)

    async def reach(self, resources: Resources) -> str:  # noqa: ARG002 - the contract's
        """Check whether the command may be run; run nothing."""
        trouble = await asyncio.to_thread(self._trouble)
        if self.unit:
            trouble = trouble or await path_unit_fault(self.unit)
            text = "can be run, and only root writes it"
        else:
            words = self.service.account().words
            text = "can be run, and only root or that account writes it: checked for "
            text += words
        if trouble is not None:
            raise RefusedDeliveryError(trouble, Reason.REJECTED)
        return f"{self.program[0]} {text}"

    def _trouble(self) -> str | None:
        """Return why the hook cannot be run by its account; None = it can."""
        if self.unit:
            trouble = ownership.trouble_of(self.program, _ROOT)
            return trouble or ownership.not_executable(self.program[0])
        account = self.service.account()
        trouble = ownership.trouble_of(self.command, account.uid)
        return trouble or ownership.unusable(self.command, account)

    async def preview(self, resources: Resources, event: CloudEvent) -> Preview:
        """Return how the command would be run; see ``SinkConfig.preview``."""
        actor = self.actor(_outlook_on(event, resources), resources)
        environment = actor.environment(_step(event))
        return Preview(
            head=(
                f"run {' '.join(self.program)}",
                *((f"in {self.unit}",) if self.unit else ()),
                *(f"{name}={value}" for name, value in environment.items()),
            ),
            body=event.to_json(),
        )


def _is_absolute(program: str) -> bool:
    if sys.platform == "win32":
        return True  # Windows looks for it on the service's PATH
    return program.startswith("/")


class _Beside(Struct, frozen=True):
    """The outlook for a test or a preview: only an identity, and no document."""

    identity: Identity
    document: Document | None = None
    watch: Watch = field(default_factory=Watch)


def _outlook_on(event: CloudEvent, resources: Resources) -> Outlook:
    try:
        name = resources.expand("{vm_name}")
    except ValueError:
        named = event_of(event).resources
        name = named[0] if named else "this-vm"
    return _Beside(Identity(vm_name=name, vm_id=resources.vm_id))


def _step(event: CloudEvent) -> Step:
    key = event_of(event).key
    return Step(event=event, key=key, attempts=0, newer=None, asked=0.0)


class CommandSink(Struct, frozen=True):
    """Runs the command once for an invented event."""

    config: CommandSinkConfig
    resources: Resources

    async def deliver(self, event: CloudEvent) -> None:
        """Run the command with SEBRIDGE_TEST=1; see ``Sink.deliver``.

        Raises:
            TransientDeliveryError: the command failed, and would be run again.
            PermanentDeliveryError: the command failed for good.
        """
        actor = self.config.actor(_outlook_on(event, self.resources), self.resources)
        actor.is_test = True
        ending = await actor.act(_step(event), asyncio.Event())
        if ending.fate is Fate.SUCCEEDED:
            return
        last = f": {ending.output[-500:]}" if ending.output else ""
        error = (
            TransientDeliveryError if ending.is_transient else PermanentDeliveryError
        )
        raise error(f"{ending.reason}{last}", Reason.COMMAND)
