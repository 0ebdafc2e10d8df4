"""The demo: the simulator here, the forwarder as its own process, and the audience.

simulated IMDS → forwarder → broker, webhook, Slack → approver → queue
                    ▲                                              │
                    └── StartRequest → IMDS → started → completed ─┘
"""

import asyncio
import json
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from azure.servicebus.aio import ServiceBusClient

from bridge.demo import acting, actors
from bridge.demo.acting import PREPARED, RESTORED, Acting
from bridge.demo.actors import Consumer, Seen, age_of, label_of
from bridge.demo.timeline import Line, Timeline
from bridge.simulator.imds.scenario import Scenario, load
from bridge.simulator.inbox.server import Message
from bridge.simulator.serve import Simulator, SimulatorError, SimulatorOptions

# The words by which a person, and this demo, knows a step in a Slack message.
_IN_SLACK = {
    "scheduled": "is scheduled",
    "started": "has started",
    "completed": "is over",
    "cancelled": "was cancelled",
    "ended": "is gone",
    "startrequest.relayed": "passed on to Azure",
}
_RULING = re.compile(r"\*((?:Command|Approval) [^*]+)\*")
_SPEED = 100.0
_SLACK_SECONDS = 25.0  # for the start of the forwarder, and slow machines
_SOON = 5.0  # after the scenario has ended, what is expected must be there


def play(scenario: str, speed: float | None, svg: Path | None = None) -> int:
    """Play a scenario and show it; returns the exit code.

    Args:
        scenario: the name of one of the eight.
        speed: how many times faster than in reality; None = what suits a demo.
        svg: where to save what was shown as a picture.
    """
    folder = Path(tempfile.mkdtemp(prefix="sebridge-demo-"))
    timeline = Timeline()
    try:
        speed = speed or acting.usual_speed(scenario, _SPEED)
        is_good = asyncio.run(_perform(scenario, speed, folder, timeline))
    except SimulatorError as error:
        timeline.verdict(str(error), is_good=False)
        shutil.rmtree(folder)
        return 2
    except (KeyboardInterrupt, asyncio.CancelledError):
        timeline.verdict("interrupted; everything is cleaned up", is_good=False)
        shutil.rmtree(folder)
        return 1
    if svg is not None:
        timeline.save(svg)
    return 0 if is_good else 1


async def _perform(name: str, speed: float, folder: Path, timeline: Timeline) -> bool:
    scenario = load(name)
    if not scenario.expected_approved:
        raise SimulatorError(
            f"{name} says nothing of what to expect: the demo plays the eight "
            "scenarios; for documents use `sebridge simulate --scenario`"
        )
    _undo_at_signal()
    stage = Stage(scenario, folder, timeline)
    if acting.suits(scenario, speed):
        stage.acting = Acting(folder, timeline)
    timeline.headline(name, scenario.description)
    options = SimulatorOptions(scenario=name, speed=speed)
    async with Simulator(options) as simulator, AsyncExitStack() as stack:
        return await stage.perform(simulator, stack)


def _undo_at_signal() -> None:
    """Have a signal undo everything; another one does not interrupt that."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    asked = list[bool]()

    def undo() -> None:
        if task is not None and not asked:
            asked.append(True)
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, undo)


@dataclass(slots=True)
class Stage:
    """One performance."""

    scenario: Scenario
    folder: Path
    timeline: Timeline
    bus: Seen = field(default_factory=Seen)
    webhook: Seen = field(default_factory=Seen)
    slack: Seen = field(default_factory=Seen)
    approver: Seen = field(default_factory=Seen)
    imds: Seen = field(default_factory=Seen)
    acting: Acting | None = None
    _rulings: int = 0

    @property
    def approves(self) -> bool:
        """Whether there is something to approve."""
        return {"scheduled", "started"} <= set(self.scenario.expected_approved)

    def lines(self) -> list[Line]:
        """Return what was expected and seen, by channel."""
        scenario = self.scenario
        steps = [*(scenario.expected_approved if self.approves else scenario.expected)]
        outcome = ["startrequest.relayed"] if self.approves else []
        asked = ["StartRequest"] if self.approves else []
        reply = ["reply: relayed"] if self.approves else []
        started, commands, turns = ["bridge.started"], list[str](), list[str]()
        if self.acting is not None:
            commands = [PREPARED, RESTORED]
            turns = ["bridge.traffic-out", "bridge.traffic-in"]
        told = [*steps, *outcome, *commands]
        found = [
            ("Service Bus", [*started, *told, *turns], self.bus),
            ("webhook", [*started, *told, *turns], self.webhook),
            ("Slack", told, self.slack),
            ("approver", [*asked, *reply], self.approver),
            ("IMDS", asked, self.imds),
        ]
        if self.acting is not None:
            found.append(("balancer", ["in", "out", "in again"], self.acting.balancer))
        return [
            Line(channel=c, expected=e, seen=s.what, latencies=s.latencies)
            for c, e, s in found
            if e
        ]

    async def perform(self, simulator: Simulator, stack: AsyncExitStack) -> bool:
        """Play, watch, and say whether everything came."""
        client = await stack.enter_async_context(
            ServiceBusClient.from_connection_string(
                simulator.broker.connection_string, retry_total=0
            )
        )
        simulator.imds.on_approved.append(self._approved)
        environ = {**os.environ, "PYTHONUNBUFFERED": "1"}
        environ[actors.CONNECTION_VARIABLE] = simulator.broker.connection_string
        config = self._config(simulator)
        tasks = [
            asyncio.create_task(work) for work in self._watching(simulator, client)
        ]
        try:
            async with actors.forwarder(self.folder, config, environ) as process:
                self.timeline.happened("forwarder", f"started as process {process.pid}")
                reason = await self._watch(simulator, process, tasks)
            if reason is None and process.returncode:
                reason = f"the forwarder ended with exit code {process.returncode}"
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return self._end(reason)

    def _config(self, simulator: Simulator) -> str:
        """Return the forwarder's whole configuration."""
        inbox = simulator.inbox.url
        slack = actors.WEBHOOK if self.acting is None else actors.BOT
        return actors.CONFIG.format(
            imds=simulator.imds.url,
            inbox=inbox,
            state=(self.folder / "state.db").as_posix(),
            slack=slack.format(inbox=inbox),
            more="" if self.acting is None else self.acting.config(),
        )

    def _watching(
        self, simulator: Simulator, client: ServiceBusClient
    ) -> list[Coroutine[None, None, None]]:
        """Return what goes on beside the forwarder."""
        after = "scheduled" if self.acting is None else PREPARED
        consumer = Consumer(
            client,
            self.timeline,
            after if self.approves else "",
            self.bus,
            self.approver,
        )
        found = [
            consumer.run(),
            actors.read_replies(client, self.timeline, self.approver),
            self._watch_inbox(simulator),
        ]
        if self.acting is not None:
            found += [self.acting.probe(), self.acting.listen()]
        return found

    async def _watch(
        self,
        simulator: Simulator,
        process: asyncio.subprocess.Process,
        tasks: list["asyncio.Task[None]"],
    ) -> str | None:
        """Wait until all has come; returns what went wrong, or None."""
        ended = asyncio.create_task(process.wait())
        playing = asyncio.create_task(simulator.play())
        try:
            limit = asyncio.get_running_loop().time() + _SLACK_SECONDS
            while any(line.missing for line in self.lines()):
                await asyncio.sleep(0.05)
                if ended.done():
                    return f"the forwarder ended with exit code {process.returncode}"
                for task in tasks:
                    if task.done():
                        return f"a watcher failed: {task.exception()!r}"
                now = asyncio.get_running_loop().time()
                if not playing.done():
                    limit = max(limit, now + _SOON)
                if now > limit:
                    return "not everything that was expected came in time"
        finally:
            playing.cancel()
            ended.cancel()
            await asyncio.gather(playing, ended, return_exceptions=True)
        return None

    async def _watch_inbox(self, simulator: Simulator) -> None:
        async for message in simulator.inbox.stream():
            if message.path.startswith("/slack"):
                self._slack(message)
            elif isinstance(message.body, dict):
                what, millis = label_of(message.body), age_of(message.body)
                self.timeline.happened("webhook", what, millis)
                self.webhook.add(what, millis)

    def _slack(self, message: Message) -> None:
        """Show a Slack message; which step it tells is in its words only."""
        body = message.body if isinstance(message.body, dict) else {}
        if "thread_ts" in body:
            return  # the message itself says it as well
        if ruling := self._ruling(body):
            self.timeline.happened("Slack", f"in the message: {ruling}")
            self.slack.add(_meaning(ruling))
            return
        text = str(body.get("text", ""))
        headline = text.splitlines()[0] if text else "(no text)"
        self.timeline.happened("Slack", headline)
        self.slack.add(_meaning(headline))

    def _ruling(self, body: dict[str, object]) -> str:
        """Return what a message says more than before of commands and approvals."""
        found = _RULING.findall(json.dumps(body.get("blocks", []), ensure_ascii=False))
        is_new = len(found) > self._rulings
        self._rulings = len(found)
        return found[-1] if is_new else ""

    def _approved(self, event_id: str) -> None:
        self.timeline.happened("IMDS", f"StartRequest received for {event_id[:8]}…")
        self.imds.add("StartRequest")

    def _end(self, reason: str | None) -> bool:
        self.timeline.summary(self.lines())
        self.timeline.files(
            {
                "configuration": str(self.folder / "bridge.toml"),
                "state file": str(self.folder / "state.db"),
                "log": str(self.folder / "forwarder.log"),
            }
        )
        if reason is None:
            text = "Everything arrived, and the approval reached IMDS."
            if not self.approves:
                text = "Everything arrived."
            self.timeline.verdict(text, is_good=True)
            return True
        self.timeline.verdict(f"Failed: {reason}.", is_good=False)
        return False


def _meaning(words: str) -> str:
    """Return the step that Slack's words tell of."""
    steps = [step for step, known in _IN_SLACK.items() if known in words]
    return steps[0] if steps else words.removeprefix("Command ")
