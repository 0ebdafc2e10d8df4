"""Lets a User reboot happen twice, approves each, and records what everybody says.

The first one is approved through the queue, by ``sebridge approve``; the second one
through the Functions app. In the environment: BUS, the host of the namespace or a
connection string; FUNCTION_KEY, the key of the app.

    python -m acceptance.story --out FOLDER --function URL -- COMMAND THAT RESTARTS
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp

from acceptance.topic import Bus, Topic

_OVER = ("completed", "cancelled", "ended")
_PATIENCE = 1800.0  # seconds for a step: events begin minutes after the first look
_HEARS = 180.0  # seconds until the app has heard of an event; it starts from nothing
_AGAIN = 3.0
_REQUESTS: Mapping[str, object] = {
    "a body that is no approval": {"event": 1},
    "an unknown event": {
        "eventId": "00000000-0000-4000-8000-000000000000",
        "approvedBy": "acceptance",
    },
}
_CONFIG = """\
[approvals]
{access}
queue = "vm-approvals-sessions"
sessions = ["{{vm_id}}"]
reply_to = ["replies"]
"""
_BY_HOST = 'namespace = "{}"\ncredential = "default"'
_BY_KEY = 'connection_string = "env:BUS"'

Restart = Callable[[], Awaitable[None]]


def step_of(message: Mapping[str, Any]) -> str:
    """Return what a message says: ``scheduled``, ``startrequest.relayed`` …."""
    kind = str(message["subject"] or "")
    middle = kind.removeprefix("sebridge.").removesuffix(".v1")
    return middle.removeprefix("scheduledevent.")


def event_of(message: Mapping[str, Any]) -> str:
    """Return the EventId that a message is about; empty without one."""
    body = message["body"]
    is_about_one = "scheduledevent." in str(message["subject"])
    return str(body.get("subject", "")) if is_about_one else ""


def now() -> str:
    """Return the time, for a record."""
    return datetime.now(UTC).isoformat()


def say(text: str) -> None:
    """Print what happens now."""
    print(text, flush=True)


@dataclass(slots=True)
class Story:
    """Two reboots.

    Attributes:
        out: gets ``messages.jsonl``, ``stories.json`` and ``function.json``.
        function: the address of the app.
        restart: asks Azure to restart the VM.
        patience: seconds that each step may take.
    """

    out: Path
    bus: Bus
    function: str
    key: str = field(repr=False)
    restart: Restart
    patience: float = _PATIENCE
    _stories: list[dict[str, Any]] = field(default_factory=list)
    _answers: list[dict[str, Any]] = field(default_factory=list)

    async def tell(self) -> None:
        """Play both reboots.

        Raises:
            TimeoutError: a step did not come; the text says which.
        """
        self.out.mkdir(parents=True, exist_ok=True)
        topic = Topic(self.bus, self.out / "messages.jsonl")
        receiving = asyncio.create_task(topic.receive())
        try:
            for approve in (self._by_queue, self._by_function):
                await self._reboot(topic, approve)
        finally:
            receiving.cancel()
            await asyncio.gather(receiving, return_exceptions=True)
            self._write("stories.json", self._stories)
            self._write("function.json", self._answers)

    async def _reboot(
        self, topic: Topic, approve: Callable[[dict[str, Any]], Awaitable[object]]
    ) -> None:
        known = {event_of(message) for message in topic.messages}

        def is_new(message: Mapping[str, Any]) -> bool:
            new = event_of(message) not in {"", *known}
            return new and step_of(message) in {"scheduled", "started"}

        way = approve.__name__.removeprefix("_by_")
        story: dict[str, Any] = {"by": way, "restartedAt": now(), "eventId": ""}
        self._stories.append(story)
        say(f"a reboot, to be approved by the {way}")
        await self.restart()
        first = await self._wait(topic, is_new, "an announced reboot")
        story["eventId"] = event_of(first)
        if step_of(first) == "scheduled":
            story["approvedAt"] = now()
            story["answer"] = await approve(first)

        def is_over(message: Mapping[str, Any]) -> bool:
            return event_of(message) == story["eventId"] and step_of(message) in _OVER

        await self._wait(topic, is_over, "the end of the reboot")

    async def _wait(
        self, topic: Topic, found: Callable[[Mapping[str, Any]], bool], what: str
    ) -> dict[str, Any]:
        try:
            return await topic.wait(found, self.patience)
        except TimeoutError:
            text = f"{what} was not published within {self.patience:.0f} s"
            raise TimeoutError(text) from None

    async def _by_queue(self, message: dict[str, Any]) -> object:
        """Approve as a person does: with the event as it was received."""
        access = _BY_KEY if self.bus.has_key else _BY_HOST.format(self.bus.address)
        config, event = self.out / "approver.toml", self.out / "received.json"
        config.write_text(_CONFIG.format(access=access), "utf-8")
        event.write_text(json.dumps(message["body"]), "utf-8")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bridge", "approve", "--from-event", str(event)),
            *("-c", str(config), "--reason", "acceptance", "--approved-by"),
            *("acceptance", "--wait", "--timeout", "300s", "--json"),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "BUS": self.bus.address},
        )
        try:
            said, _ = await process.communicate()
        finally:
            if process.returncode is None:  # cancelled: nobody waits for the reply
                process.kill()
                await process.wait()
        say(f"  sebridge approve: exit code {process.returncode}")
        return {"exitCode": process.returncode, "said": _json(said.decode())}

    async def _by_function(self, message: dict[str, Any]) -> object:
        """Approve through the app, once it has heard of the event."""
        asked = {"eventId": event_of(message), "approvedBy": "acceptance"}
        async with aiohttp.ClientSession() as session:
            await self._ask(session, "no key", asked, key="")
            for name, body in _REQUESTS.items():
                await self._ask(session, name, body)
            async with asyncio.timeout(_HEARS):
                while (status := await self._ask(session, "the event", asked)) == 404:
                    self._answers.pop()
                    await asyncio.sleep(_AGAIN)
        say(f"  the app: {status}")
        return None

    async def _ask(
        self,
        session: aiohttp.ClientSession,
        name: str,
        body: object,
        key: str | None = None,
    ) -> int:
        headers = {"x-functions-key": self.key if key is None else key}
        url = f"{self.function}/api/approvals"
        async with session.post(url, json=body, headers=headers) as response:
            kept = {
                "name": name,
                "status": response.status,
                "contentType": response.headers.get("Content-Type", ""),
                "body": _json(await response.text()),
            }
            self._answers.append(kept)
            return response.status

    def _write(self, name: str, what: object) -> None:
        (self.out / name).write_text(json.dumps(what, indent=1), "utf-8")


def _json(text: str) -> object:
    try:
        found: object = json.loads(text)
    except ValueError:
        return text
    return found


def by_command(command: list[str]) -> Restart:
    """Return a restart by a command, such as ``az vm restart``."""

    async def restart() -> None:
        process = await asyncio.create_subprocess_exec(*command)
        if await process.wait():
            raise RuntimeError(f"{command[0]} ended with {process.returncode}")

    return restart


def main() -> int:
    """Play both reboots; return the exit code."""
    words = argparse.ArgumentParser(description="Reboot twice, and record it.")
    words.add_argument("--out", type=Path, required=True, help="where the records go")
    words.add_argument("--function", required=True, help="the address of the app")
    words.add_argument("--patience", type=float, default=_PATIENCE, metavar="SECONDS")
    words.add_argument("command", nargs="+", help="restarts the VM")
    given = words.parse_args()
    story = Story(
        out=given.out,
        bus=Bus(os.environ["BUS"]),
        function=given.function.rstrip("/"),
        key=os.environ.get("FUNCTION_KEY", ""),
        restart=by_command(given.command),
        patience=given.patience,
    )
    try:
        asyncio.run(story.tell())
    except (TimeoutError, RuntimeError, aiohttp.ClientError) as error:
        print(f"acceptance: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
