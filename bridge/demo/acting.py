"""The parts of a demo with a command: a hook, and a load balancer that probes.

The hook is a shell script that the demo writes; the demo prints the hook's output.
"""

import asyncio
import socket
import sys
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from bridge.demo.actors import Seen
from bridge.demo.timeline import Timeline
from bridge.simulator.imds.scenario import Scenario

SPEED = 2.0  # slow enough to drain before NotBefore
PREPARED, RESTORED = "drain prepare succeeded", "drain restore succeeded"
_SCENARIO = "spot-eviction"
_LEAST_NOTICE = 6.0
_POLL_SECONDS = 0.02
_CONFIG = """
[[sinks]]
name = "drain"
type = "command"
command = ["{hook}"]
output = "always"

[traffic]
listen = "127.0.0.1:{port}"
resume_after = "1s"
"""
_HOOK = """\
#!/bin/sh
# Drains this machine before an event, and lets it take work again after it.
log() {{ echo "$1" | tee -a "{output}"; }}
case $SEBRIDGE_ACTION in
prepare)
  log "3 jobs are running, $SEBRIDGE_NOTICE_SECONDS s are left: no new jobs"
  sleep 2
  log "all jobs are done"
  ;;
restore) log "jobs are accepted again" ;;
esac
"""


def suits(scenario: Scenario, speed: float) -> bool:
    """Return whether to play the scenario with a command: it needs time to drain."""
    notice = min((life.notice_seconds for life in scenario.lives), default=0.0)
    is_enough = notice / speed >= _LEAST_NOTICE
    return scenario.name == _SCENARIO and is_enough and sys.platform != "win32"


def usual_speed(name: str, default: float) -> float:
    """Return the default speed of a scenario."""
    return SPEED if name == _SCENARIO else default


def _free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as found:
        port: int = found.getsockname()[1]
        return port


@dataclass(slots=True)
class Acting:
    """The hook and the load balancer.

    Attributes:
        command: the lines that the hook has written.
        balancer: the changes of the probe's answer.
    """

    folder: Path
    timeline: Timeline
    command: Seen = field(default_factory=Seen)
    balancer: Seen = field(default_factory=Seen)
    port: int = field(default_factory=_free_port)

    def config(self) -> str:
        """Write the hook; return its sections of the forwarder's configuration."""
        hook = self.folder / "drain"
        hook.write_text(_HOOK.format(output=self._output), encoding="utf-8")
        hook.chmod(0o700)
        return _CONFIG.format(hook=hook.as_posix(), port=self.port)

    async def probe(self) -> None:
        """Probe like a load balancer, and show each change, until cancelled."""
        last, url = "", f"http://127.0.0.1:{self.port}/"
        async with aiohttp.ClientSession(trust_env=False) as session:
            while True:
                answer = await _probe_answer(session, url)
                if answer is not None and answer[1] != last:
                    self._show(*answer, is_first=not last)
                    last = answer[1]
                await asyncio.sleep(_POLL_SECONDS)

    async def listen(self) -> None:
        """Show what the hook writes, until cancelled."""
        shown = 0
        while True:
            text = self._output.read_text("utf-8") if self._output.exists() else ""
            lines = text.splitlines()
            for line in lines[shown:]:
                self.timeline.happened("command", line)
                self.command.add(line)
            shown = len(lines)
            await asyncio.sleep(_POLL_SECONDS)

    @property
    def _output(self) -> Path:
        return self.folder / "drain.out"

    def _show(self, status: int, traffic: str, *, is_first: bool) -> None:
        sends = "sends work" if traffic == "in" else "sends no more work"
        self.timeline.happened("balancer", f"{status} {traffic}: {sends}")
        self.balancer.add(traffic if is_first or traffic == "out" else "in again")


async def _probe_answer(
    session: aiohttp.ClientSession, url: str
) -> tuple[int, str] | None:
    """Request the probe; return its status and ``traffic``; None: no answer."""
    try:
        async with session.get(url) as response:
            content = await response.json()
            return response.status, str(content["traffic"])
    except (aiohttp.ClientError, TimeoutError, OSError):
        return None
