"""One run of a hook as a unit of systemd's: asked for, awaited, and taken up again.

    ask ──taken──▶ under way ──result──▶ ended
     │ └──nobody takes it──▶ cannot be run
     └─ stop: cancel, or taken back

Root runs it (``sebridge-hook@NAME.service``), with other rights than the forwarder's;
see ``unit_files`` for how the two speak. A run goes on when the forwarder ends, and the
next life takes it up by its runId.
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
    Asked,
    Look,
    Mailbox,
    Places,
    exit_of,
    mailbox,
    name_in,
    new_run_id,
)

log = logging.getLogger(__name__)

_LOOK_EVERY = 0.2
_SIGTERM = -15
_DEAF = {"inactive", "failed", "unknown"}


@dataclass(frozen=True, slots=True)
class UnitRunner:
    """Has root run a hook; see ``bridge.sinks.command.process.Runner``.

    Attributes:
        unit: ``sebridge-hook@NAME.service``.
        patience: seconds within which somebody takes a request.
        ending: seconds within which a run that is to be stopped ends.
    """

    unit: str
    clock: Clock
    places: Places = field(default_factory=Places)
    patience: float = 30.0
    ending: float = 15.0

    async def run(
        self,
        command: tuple[str, ...],  # noqa: ARG002 - the unit knows which one
        *,
        given: bytes,
        environment: Mapping[str, str],
        limit: float,
        stop: asyncio.Event,
    ) -> Exit:
        """Run the hook to its end; when cancelled it goes on, and is taken up."""
        began = self.clock.monotonic()
        try:
            with mailbox(self.places, name_in(self.unit) or "") as box:
                if not await self._is_our_turn(box, stop):
                    return Exit(code=_SIGTERM, was_stopped=True)
                asked, is_new = await self._begun(box, environment, stop)
                if is_new:
                    left = max(limit - (self.clock.monotonic() - began), 1.0)
                    ask = partial(box.ask, asked, given, environment, left)
                    await asyncio.to_thread(ask)
                found = await self._awaited(box, asked, stop)
                await asyncio.to_thread(box.forget)
        except OSError as error:
            fault = f"{self.places.requests}: {error.strerror} (RuntimeDirectory=)"
            return Exit(code=None, fault=fault, is_passing=True)
        return replace(found, seconds=found.seconds or self.clock.monotonic() - began)

    async def _is_our_turn(self, box: Mailbox, stop: asyncio.Event) -> bool:
        """Wait until no other run of the hook is asked for; False: stopped before."""
        while not stop.is_set():
            if box.lock():
                return True
            await self.clock.wait(stop, _LOOK_EVERY)
        return False

    async def _begun(
        self, box: Mailbox, environment: Mapping[str, str], stop: asyncio.Event
    ) -> tuple[Asked, bool]:
        """Return the run that an earlier life asked for, or a new one (True).

        Another one that is under way is awaited first.
        """
        asked = _asked_by(environment)
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
        self, box: Mailbox, asked: Asked, stop: asyncio.Event
    ) -> None:
        """Wait for a run of an earlier life; the caller's own limit ends the wait."""
        look = await asyncio.to_thread(box.look, asked.run_id)
        while look.is_under_way and not stop.is_set():
            await self.clock.wait(stop, _LOOK_EVERY)
            look = await asyncio.to_thread(box.look, asked.run_id)

    async def _awaited(self, box: Mailbox, asked: Asked, stop: asyncio.Event) -> Exit:
        """Wait for how a run ends; who stops it waits for that, too."""
        never, since, told = asyncio.Event(), self.clock.monotonic(), False
        while True:
            look = await asyncio.to_thread(box.look, asked.run_id)
            if look.result is not None:
                return exit_of(look.result, 0.0)
            if stop.is_set() and not told:
                told, since = True, self.clock.monotonic()
                if await self._stopped(box, asked):
                    return Exit(code=_SIGTERM, was_stopped=True)
            late = self._late(look, self.clock.monotonic() - since, is_stopped=told)
            if late is not None and not await asyncio.to_thread(box.withdraw):
                look = await asyncio.to_thread(box.look, asked.run_id)
                late = None if look.is_begun and not told else late
            if late is not None:
                return late
            await self.clock.wait(never if told else stop, _LOOK_EVERY)

    async def _stopped(self, box: Mailbox, asked: Asked) -> bool:
        """Have a run stopped; return whether it had not begun."""
        if await asyncio.to_thread(box.withdraw):
            return True
        await asyncio.to_thread(box.cancel, asked.run_id)
        return False

    def _late(self, look: Look, seconds: float, *, is_stopped: bool) -> Exit | None:
        """Return what is said of a run that nobody begins, or ends; None: in time."""
        if is_stopped and seconds > self.ending:
            fault = f"it was stopped, and {self.unit} did not say that it ended"
            return Exit(code=None, fault=fault, was_stopped=True)
        if not look.is_begun and not is_stopped and seconds > self.patience:
            path = self.unit.replace(".service", ".path")
            fault = (
                f"{self.unit} did not take the request within {self.patience:g} s "
                f"(systemctl status {path} {self.unit})"
            )
            return Exit(code=None, fault=fault, is_passing=True)
        return None


def _fields_of(unit: str, asked: Asked) -> dict[str, object]:
    """Return what names a run in the log."""
    return {"unit": unit, "runId": asked.run_id, "eventId": asked.event}


def _asked_by(environment: Mapping[str, str]) -> Asked:
    """Return a new run for what the environment tells of."""
    action = environment["SEBRIDGE_ACTION"]
    cause = f"{environment['SEBRIDGE_SINK']} {environment['SEBRIDGE_ID']} {action}"
    return Asked(new_run_id(), cause, environment["SEBRIDGE_EVENT_ID"], action)


async def deaf(unit: str) -> str | None:
    """Return why requests for a unit are not heard; None: they are, or nobody knows."""
    path = unit.replace(".service", ".path")
    try:
        process = await asyncio.create_subprocess_exec(
            "systemctl", "is-active", path, stdout=PIPE, stderr=DEVNULL, stdin=DEVNULL
        )
    except OSError:
        return None  # no systemd here, such as in a container
    state = (await process.communicate())[0].decode(errors="replace").strip()
    if state in _DEAF:
        return f"{path} is {state}: systemctl enable --now {path}"
    return None
