"""What a demo has more where a command acts: its hook, and a balancer that probes.

The hook is a shell script of the demo's own; what it does is shown as it says it.
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

SPEED = 2.0  # so that there is time to drain before NotBefore
PREPARED, RESTORED = "drain prepare succeeded", "drain restore succeeded"
_SCENARIO = "spot-eviction"
_LEAST_NOTICE = 6.0
_LOOK_EVERY = 0.02
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
tell() {{ echo "$1" | tee -a "{told}"; }}
case $SEBRIDGE_ACTION in
prepare)
  tell "3 jobs run, and $SEBRIDGE_NOTICE_SECONDS s are left: no new ones"
  sleep 2
  tell "all jobs are done"
  ;;
restore) tell "jobs are taken again" ;;
esac
"""


def suits(scenario: Scenario, speed: float) -> bool:
    """Whether there is a command in it: not where nobody had time to drain."""
    notice = min((life.notice_seconds for life in scenario.lives), default=0.0)
    is_enough = notice / speed >= _LEAST_NOTICE
    return scenario.name == _SCENARIO and is_enough and sys.platform != "win32"


def usual_speed(name: str, otherwise: float) -> float:
    """Return how fast a scenario is played unless it is said."""
    return SPEED if name == _SCENARIO else otherwise


def _free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as found:
        port: int = found.getsockname()[1]
        return port


@dataclass(slots=True)
class Acting:
    """The hook and the balancer.

    Attributes:
        command: what the hook said.
        balancer: what the probe said.
    """

    folder: Path
    timeline: Timeline
    command: Seen = field(default_factory=Seen)
    balancer: Seen = field(default_factory=Seen)
    port: int = field(default_factory=_free_port)

    def config(self) -> str:
        """Write the hook; returns what the forwarder's configuration has more."""
        hook = self.folder / "drain"
        hook.write_text(_HOOK.format(told=self._told), encoding="utf-8")
        hook.chmod(0o700)
        return _CONFIG.format(hook=hook.as_posix(), port=self.port)

    async def probe(self) -> None:
        """Ask as a load balancer does, and show each change, until cancelled."""
        last, url = "", f"http://127.0.0.1:{self.port}/"
        async with aiohttp.ClientSession(trust_env=False) as session:
            while True:
                answer = await _answered(session, url)
                if answer is not None and answer[1] != last:
                    self._say(*answer, is_first=not last)
                    last = answer[1]
                await asyncio.sleep(_LOOK_EVERY)

    async def listen(self) -> None:
        """Show what the hook says, until cancelled."""
        shown = 0
        while True:
            text = self._told.read_text("utf-8") if self._told.exists() else ""
            lines = text.splitlines()
            for line in lines[shown:]:
                self.timeline.happened("command", line)
                self.command.add(line)
            shown = len(lines)
            await asyncio.sleep(_LOOK_EVERY)

    @property
    def _told(self) -> Path:
        return self.folder / "drain.told"

    def _say(self, status: int, traffic: str, *, is_first: bool) -> None:
        sends = "sends work" if traffic == "in" else "sends no more work"
        self.timeline.happened("balancer", f"{status} {traffic}: {sends}")
        self.balancer.add(traffic if is_first or traffic == "out" else "in again")


async def _answered(session: aiohttp.ClientSession, url: str) -> tuple[int, str] | None:
    """Return the status and the word of the probe; None where nobody answers."""
    try:
        async with session.get(url) as response:
            said = await response.json()
            return response.status, str(said["traffic"])
    except (aiohttp.ClientError, TimeoutError, OSError):
        return None
