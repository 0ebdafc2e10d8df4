"""Request one run of a hook from a systemd unit, and wait for its result.

    request ──taken──▶ running ──result──▶ ended
     │ └──not taken in time──▶ cannot be run
     └─ stop: the request is withdrawn, or the run cancelled

Root runs the hook (``sebridge-hook@NAME.service``), with other rights than the
forwarder's. The two exchange files: see ``unit_files``. A run goes on when the
forwarder ends; after its restart the forwarder waits for the same run, by its runId.
"""

import asyncio
import logging
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from bridge.foundation.clock import Clock
from bridge.sinks.acting import Action
from bridge.sinks.command.process import Exit
from bridge.sinks.command.unit_files import (
    Mailbox,
    Places,
    RequestedRun,
    RunState,
    exit_of,
    hook_name,
    mailbox,
    new_run_id,
)

log = logging.getLogger(__name__)

_LOOK_EVERY = 0.2
_SIGTERM = -15
_INACTIVE = {"inactive", "failed", "unknown"}


@dataclass(frozen=True, slots=True)
class UnitRunner:
    """Has root run a hook; see ``bridge.sinks.command.process.Runner``.

    Attributes:
        unit: ``sebridge-hook@NAME.service``.
        patience: seconds within which the unit must take a request.
        ending: seconds within which a run must end after it was cancelled.
    """

    unit: str
    clock: Clock
    places: Places = field(default_factory=Places)
    patience: float = 30.0
    ending: float = 15.0

    async def run(
        self,
        command: tuple[str, ...],  # noqa: ARG002 - the unit knows its hook
        *,
        given: bytes,
        environment: Mapping[str, str],
        limit: float,
        stop: asyncio.Event,
    ) -> Exit:
        """Run the hook to its end.

        When this call is cancelled, the run goes on: the next call for the same step
        waits for it.
        """
        began = self.clock.monotonic()
        try:
            with mailbox(self.places, hook_name(self.unit) or "") as box:
                if not await self._is_our_turn(box, stop):
                    return Exit(code=_SIGTERM, was_stopped=True)
                asked, is_new = await self._begun(box, environment, stop)
                if is_new and stop.is_set():
                    # An earlier run may be under way. Its files stay: the launcher has
                    # perhaps not read "cancel" yet, and the next call waits for it.
                    return Exit(code=_SIGTERM, was_stopped=True)
                if is_new:
                    left = max(limit - (self.clock.monotonic() - began), 1.0)
                    ask = partial(box.ask, asked, given, environment, left)
                    await asyncio.to_thread(ask)
                found = await self._awaited(box, asked, stop)
                await asyncio.to_thread(box.forget, asked.run_id)
        except OSError as error:
            fault = f"{self.places.requests}: {error.strerror} (RuntimeDirectory=)"
            return Exit(code=None, fault=fault, is_transient=True)
        return replace(found, seconds=found.seconds or self.clock.monotonic() - began)

    async def _is_our_turn(self, box: Mailbox, stop: asyncio.Event) -> bool:
        """Wait until no other call uses the hook; False: ``stop`` was set before."""
        while not stop.is_set():
            if box.lock():
                return True
            await self.clock.wait(stop, _LOOK_EVERY)
        return False

    async def _begun(
        self, box: Mailbox, environment: Mapping[str, str], stop: asyncio.Event
    ) -> tuple[RequestedRun, bool]:
        """Return the run to wait for, and whether it is new.

        It is not new if the forwarder requested it before a restart, for the same
        step. A run for another step must end before a new run begins.
        """
        asked = _requested_by(environment)
        last = await asyncio.to_thread(box.last)
        if last is None:
            return asked, True
        look = await asyncio.to_thread(box.look, last.run_id)
        if not (look.is_waiting or look.is_begun):
            return asked, True
        if last.cause == asked.cause:
            log.info("run of a hook taken up", extra=_fields_of(self.unit, last))
            return last, False
        log.info(
            "another run of the hook is awaited", extra=_fields_of(self.unit, last)
        )
        if last.event == asked.event and asked.action == Action.RESTORE.value:
            await asyncio.to_thread(box.cancel, last.run_id)  # its event is over
        if not await asyncio.to_thread(box.withdraw):
            await self._until_it_ended(box, last, stop)
        return asked, True

    async def _until_it_ended(
        self, box: Mailbox, asked: RequestedRun, stop: asyncio.Event
    ) -> None:
        """Wait for an earlier run; ``stop`` or the caller's limit ends the wait."""
        look = await asyncio.to_thread(box.look, asked.run_id)
        while look.is_under_way and not stop.is_set():
            await self.clock.wait(stop, _LOOK_EVERY)
            look = await asyncio.to_thread(box.look, asked.run_id)

    async def _awaited(
        self, box: Mailbox, asked: RequestedRun, stop: asyncio.Event
    ) -> Exit:
        """Wait for the result of a run, also after ``stop`` has cancelled it."""
        never, since, is_cancelled = asyncio.Event(), self.clock.monotonic(), False
        while True:
            look = await asyncio.to_thread(box.look, asked.run_id)
            if look.result is not None:
                return exit_of(look.result, 0.0)
            if stop.is_set() and not is_cancelled:
                is_cancelled, since = True, self.clock.monotonic()
                if await self._stopped(box, asked):
                    return Exit(code=_SIGTERM, was_stopped=True)
            late = self._late(
                look, self.clock.monotonic() - since, is_stopped=is_cancelled
            )
            if late is not None and not await asyncio.to_thread(box.withdraw):
                look = await asyncio.to_thread(box.look, asked.run_id)
                late = None if look.is_begun and not is_cancelled else late
            if late is not None:
                return late
            await self.clock.wait(never if is_cancelled else stop, _LOOK_EVERY)

    async def _stopped(self, box: Mailbox, asked: RequestedRun) -> bool:
        """Withdraw the request or cancel the run; return True if it had not begun."""
        if await asyncio.to_thread(box.withdraw):
            return True
        await asyncio.to_thread(box.cancel, asked.run_id)
        return False

    def _late(self, look: RunState, seconds: float, *, is_stopped: bool) -> Exit | None:
        """Return the end of a run that did not begin or end in time; None: wait on."""
        if is_stopped and seconds > self.ending:
            fault = f"it was stopped, and {self.unit} did not say that it ended"
            return Exit(code=None, fault=fault, was_stopped=True)
        if not look.is_begun and not is_stopped and seconds > self.patience:
            path = self.unit.replace(".service", ".path")
            fault = (
                f"{self.unit} did not take the request within {self.patience:g} s "
                f"(systemctl status {path} {self.unit})"
            )
            return Exit(code=None, fault=fault, is_transient=True)
        return None


def _fields_of(unit: str, asked: RequestedRun) -> dict[str, object]:
    """Return the fields that identify a run in the log."""
    return {"unit": unit, "runId": asked.run_id, "eventId": asked.event}


def _requested_by(environment: Mapping[str, str]) -> RequestedRun:
    """Return a new run for the step that the environment describes."""
    action = environment["SEBRIDGE_ACTION"]
    cause = f"{environment['SEBRIDGE_SINK']} {environment['SEBRIDGE_ID']} {action}"
    return RequestedRun(new_run_id(), cause, environment["SEBRIDGE_EVENT_ID"], action)


async def path_unit_fault(unit: str) -> str | None:
    """Return why no request of a hook is taken: its path unit is not active.

    None: the path unit is active, or there is no systemd.
    """
    path = unit.replace(".service", ".path")
    try:
        process = await asyncio.create_subprocess_exec(
            "systemctl", "is-active", path, stdout=PIPE, stderr=DEVNULL, stdin=DEVNULL
        )
    except OSError:
        return None  # no systemd here, such as in a container
    state = (await process.communicate())[0].decode(errors="replace").strip()
    if state in _INACTIVE:
        return f"{path} is {state}: systemctl enable --now {path}"
    return None
