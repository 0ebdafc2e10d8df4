"""A hook of infra/hooks in a folder of its own, among stand-ins of what it calls."""

import os
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from bridge.events.document import ScheduledEvent
from bridge.sinks.acting import Action
from bridge.sinks.command.environment import Occasion, inherited, variables_of
from tests.support.builders import imds_event

HOOKS = Path(__file__).parents[2] / "infra" / "hooks"
EVENT = '{"specversion":"1.0"}'
GIVEN = variables_of(
    Occasion(
        sink="drain",
        action=Action.PREPARE,
        type="sebridge.scheduledevent.scheduled.v1",
        id="0f",
        transition="scheduled",
        event=ScheduledEvent(event_id="E-1", raw=imds_event("E-1")),
        others=(),
        vm_name="vm7",
        attempt=1,
        now=datetime(2026, 11, 21, 10, tzinfo=UTC),
    )
)
PREPARE = {
    "SEBRIDGE_ACTION": "prepare",
    "SEBRIDGE_EVENT_ID": "E-1",
    "SEBRIDGE_EVENT_TYPE": "Reboot",
    "SEBRIDGE_NOTICE_SECONDS": "600",
    "SEBRIDGE_OTHER_EVENTS": "",
}
RESTORE = {**PREPARE, "SEBRIDGE_ACTION": "restore", "SEBRIDGE_NOTICE_SECONDS": ""}
TOOL = """\
#!/bin/sh
{ printf '%s' "${0##*/}"; printf ' %s' "$@"; echo; } >>CALLS
WORLD=FOLDER
BODY
"""


class Stage:
    """One hook, its settings, and tools that note how they were called.

    Attributes:
        world: a folder in which stand-ins keep what they pretend.
    """

    def __init__(self, folder: Path, hook: str, settings: str = "") -> None:
        self.folder = folder / "hooks"
        self.tools, self.world = folder / "tools", folder / "world"
        self.calls, self.state = folder / "calls.log", folder / "state"
        for made in (self.folder, self.tools, self.world):
            made.mkdir()
        self.hook = self.folder / "drain"
        shutil.copy(HOOKS / "hook.sh", self.folder)
        shutil.copy(HOOKS / hook, self.hook)
        self.settings = settings
        self.tool("sleep", "exit 0")

    @property
    def settings(self) -> str:
        return (self.folder / "drain.conf").read_text()

    @settings.setter
    def settings(self, text: str) -> None:
        settings = self.folder / "drain.conf"
        settings.write_text(f"STATE={self.state}\n{text}\n")
        settings.chmod(0o600)

    @property
    def marker(self) -> str:
        marker = self.state / "drain.done"
        return marker.read_text() if marker.exists() else ""

    @property
    def called(self) -> list[str]:
        return self.calls.read_text().splitlines() if self.calls.exists() else []

    def tool(self, name: str, body: str) -> None:
        """Put a stand-in in the way of a tool; its body is POSIX sh."""
        text = TOOL.replace("CALLS", str(self.calls))
        text = text.replace("FOLDER", str(self.world)).replace("BODY", body)
        (self.tools / name).write_text(text)
        (self.tools / name).chmod(0o755)

    def run(self, given: dict[str, str], **more: str) -> str:
        """Run the hook, which must not fail; returns what it said."""
        found = self.tried(given, **more)
        assert found.returncode == 0, found.stdout + found.stderr
        return found.stdout

    def tried(
        self, given: dict[str, str], **more: str
    ) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(  # noqa: S603 - our own hook
            [self.hook],
            env=self.environment({**given, **more}),
            input=EVENT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def environment(self, given: dict[str, str]) -> dict[str, str]:
        """Return what the bridge gives a command, with ``told`` in its place."""
        path = f"{self.tools}:/usr/sbin:/usr/bin:/sbin:/bin"
        return inherited({**os.environ, "PATH": path}) | GIVEN | given

    def forget(self) -> None:
        """Forget what was called until now."""
        self.calls.unlink(missing_ok=True)
