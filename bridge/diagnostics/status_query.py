"""Get the status from the running forwarder or its state file; ask the probe."""

import asyncio
import os
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from http import HTTPStatus
from pathlib import Path
from typing import TypeVar

import aiohttp
import msgspec
from msgspec import Struct

from bridge.app.identify import remembered
from bridge.configuration.config import Settings
from bridge.diagnostics.finding import Finding
from bridge.diagnostics.outbox_access import demand_file, forwarder_of, outbox_of
from bridge.events.identity import Identity
from bridge.events.watch import Watch
from bridge.foundation.clock import Clock
from bridge.foundation.errors import OutboxError, OutboxLockedError
from bridge.health.report import StatusReport, place_of, report, sink_of, stored
from bridge.net.addresses import ListenAddress
from bridge.net.listening import listening_fault
from bridge.net.local_socket import obstacle
from bridge.outbox.records import CHECKPOINT
from bridge.traffic.config import TrafficConfig

T = TypeVar("T")

_PATIENCE, _PAUSE = 2.0, 0.1  # seconds
_NO_ANSWER = (  # nothing answers at the port, or a program that is not a bridge
    aiohttp.ClientError,
    TimeoutError,
    OSError,
    msgspec.DecodeError,
    UnicodeDecodeError,
    RecursionError,
)


class Status(Struct, frozen=True):
    """The status.

    Attributes:
        is_live: True = from a running forwarder; False = from its state file.
    """

    report: StatusReport
    is_live: bool


async def status(
    config: Settings, sinks: Sequence[str], clock: Clock, patience: float = _PATIENCE
) -> Status:
    """Return the status.

    Args:
        config: the settings of the forwarder.
        sinks: the names of its sinks.
        clock: the current time.
        patience: seconds for which a forwarder may start or end without answering.

    Raises:
        OutboxError: no forwarder answers, and no state file can be read.
    """
    until, never = clock.monotonic() + patience, asyncio.Event()
    while (heard := await running(config)).report is None:
        try:
            return Status(await _stored(config, sinks, clock, heard), is_live=False)
        except OutboxLockedError as error:
            if clock.monotonic() >= until:
                why = obstacle(Path(config.state.path)) or "is it starting, or stopped?"
                text = f"{error}, but it does not answer: {why}"
                raise OutboxError(text) from error
        await clock.wait(never, _PAUSE)
    return Status(heard.report, is_live=True)


class Heard(Struct, frozen=True):
    """What has answered when the forwarder of a configuration was asked.

    Attributes:
        report: its status; None = it has not answered.
        others: where another forwarder has answered, and which.
    """

    report: StatusReport | None = None
    others: Sequence[str] = ()

    @property
    def silence(self) -> str:
        """That it does not answer, and who does."""
        return "; ".join(["no forwarder answers", *self.others])


async def running(config: Settings) -> Heard:
    """Ask the forwarder of this configuration for its status.

    Whoever may not use the socket beside the state file asks at the health port, where
    a forwarder with another state file may answer.
    """
    path, others = Path(config.state.path), list[str]()
    with suppress(OutboxError):
        if (forwarder := forwarder_of(path)) is not None:
            return Heard(await forwarder.status())
    if not config.http.listen:
        return Heard()
    token = config.http.token
    headers = {"Authorization": f"Bearer {token.reveal()}"} if token else {}
    for at in config.http.addresses:
        url = f"{_url(at)}/status"
        code, answer = await _asked(url, headers, {200}, StatusReport)
        if answer is not None and _is_same(answer.state_path, path):
            return Heard(answer)
        if answer is not None:
            whose = answer.state_path or "that it does not name"
            who = f"a forwarder with another state file: {whose}"
            others.append(f"at {at.text} answers {who}")
        elif code == HTTPStatus.UNAUTHORIZED:
            others.append(f"at {at.text} answers a program that refuses http.token")
    return Heard(others=others)


def _is_same(told: str, path: Path) -> bool:
    """Whether two paths name one file, as far as this user may see."""
    return place_of(path) == told or os.path.realpath(path) == os.path.realpath(told)


async def _stored(
    config: Settings, sinks: Sequence[str], clock: Clock, heard: Heard
) -> StatusReport:
    path = Path(config.state.path)
    try:
        demand_file(path)
    except OutboxError as error:
        raise OutboxError(f"{heard.silence}, and {error}") from error
    async with AsyncExitStack() as stack:
        outbox = await stack.enter_async_context(outbox_of(path, loads=True))
        identity = await remembered(outbox.database) or Identity()
        body = await outbox.observations.load(CHECKPOINT)
        watch = Watch.from_json(body) if body else Watch()
        now = clock.now().timestamp()
        state = "not answering"
        found = await stored(outbox)
        shown = [sink_of(one, state, found.tallies.get(one), now) for one in sinks]
        status = report(identity.members, state, watch, sinks=shown, found=found)
    status.state_path, status.notes = place_of(path), list(heard.others) or None
    if config.traffic is not None:
        status.traffic = await _traffic(config.traffic)
    return status


async def _traffic(config: TrafficConfig) -> dict[str, object]:
    """Return the probe's answer; without an answer "out", as for a balancer."""
    return await probed(config) or {"traffic": "out", "reason": "no answer"}


async def probed(config: TrafficConfig) -> dict[str, object] | None:
    """Send the traffic probe as a balancer does; None if no bridge answers."""
    for at in config.addresses:
        _, answer = await _asked(f"{_url(at)}/", {}, {200, 503}, dict[str, object])
        if answer is not None and "traffic" in answer:
            return answer
    return None


async def _asked(
    url: str, headers: Mapping[str, str], accepted: Container[int], kind: type[T]
) -> tuple[int | None, T | None]:
    """Request a URL of a local bridge; return the HTTP status and the answer, or None.

    Args:
        url: the URL.
        headers: the headers of the request.
        accepted: the HTTP statuses that count as an answer.
        kind: the type of an answer; of another type is that of another program.
    """
    timeout, code = aiohttp.ClientTimeout(total=_PATIENCE), None
    try:
        async with (
            aiohttp.ClientSession(trust_env=False, timeout=timeout) as session,
            session.get(url, headers=headers, allow_redirects=False) as response,
        ):
            code = response.status
            answer = msgspec.json.decode(await response.read(), type=kind)
            return code, answer if code in accepted else None
    except _NO_ANSWER:
        return code, None


def _url(at: ListenAddress) -> str:
    """Return the URL that reaches a listening address from this machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(at.host, at.host)  # noqa: S104 - asked, not listened on  # nosec B104
    return f"http://[{host}]:{at.port}" if ":" in host else f"http://{host}:{at.port}"


def examine_sinks(
    answer: StatusReport | None, configured: Iterable[str]
) -> list[Finding]:
    """Compare the sinks of the running forwarder with those of its configuration.

    Args:
        answer: its status; None = none runs.
        configured: the names of the sinks in the configuration.
    """
    if answer is None or answer.missing is None:  # it starts
        return []
    wanted, found = set(configured), {one.name for one in answer.sinks}
    if wanted == found:
        return []
    names = ", ".join(sorted(wanted ^ found))
    text = f"sinks: the running forwarder has another configuration ({names})"
    return [Finding("warning", text, "restart it: it read the file at its start")]


# -- The check of the traffic probe, for ``sebridge check --connect`` ------------------


_START = "start the forwarder (Linux: systemctl start sebridge)"
_OTHER = (
    "if sebridge-traffic.socket holds the port, start the forwarder; otherwise use "
    "another port in traffic.listen, or stop the program that holds this one"
)
_RESTART = "restart the forwarder: it runs with another [traffic], or without one"


async def examine_traffic(
    config: TrafficConfig | None, *, is_running: bool
) -> list[Finding]:
    """Request the probe as a balancer does; if nothing answers, find out why.

    Args:
        config: ``[traffic]``; None = no probe is configured.
        is_running: whether the forwarder answers at its health port.
    """
    if config is None or not all(at.port for at in config.addresses):
        return []
    where = ", ".join(at.text for at in config.addresses)
    answer = await probed(config)
    if answer is not None:
        return [Finding("ok", f"traffic: {where} {_says(answer)}")]
    silent = f"traffic: no answer at {where}: balancers treat this VM as out"
    faults = [what for at in config.addresses if (what := listening_fault(at))]
    fault = "; ".join(dict.fromkeys(faults)) or None
    if is_running:
        return [Finding("fault", silent, _RESTART)]
    if fault is None:
        return [Finding("warning", silent, _START)]
    return [Finding("fault", f"{silent} ({fault})", _OTHER)]


def _says(answer: Mapping[str, object]) -> str:
    """Return the probe's answer and its reason as text."""
    why = " ".join(str(answer[key]) for key in ("reason", "eventId") if answer.get(key))
    return f"says {answer['traffic']}" + (f" ({why})" if why else "")
