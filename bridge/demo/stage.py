"""The demo: the simulator in this process, the forwarder in a process of its own.

simulated IMDS → forwarder → broker, webhook, Slack → approver → queue
                    ▲                                              │
                    └── StartRequest → IMDS → started → completed ─┘
"""

import asyncio
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from azure.servicebus.aio import ServiceBusClient
from msgspec import Struct, field

from bridge.demo import actors
from bridge.demo.actors import (
    PREPARED,
    RESTORED,
    Acting,
    Consumer,
    Seen,
    age_of,
    label_of,
)
from bridge.demo.timeline import Line, Timeline, undone_by_signal
from bridge.simulator.imds.scenario import Scenario, load
from bridge.simulator.inbox import Message
from bridge.simulator.serve import Simulator, SimulatorError, SimulatorOptions

# The text in a Slack message by which a person, and this demo, recognises a step.
_IN_SLACK = {
    "scheduled": "is scheduled",
    "started": "has started",
    "completed": "is over",
    "cancelled": "was cancelled",
    "ended": "is gone",
    "startrequest.relayed": "passed on to Azure",
}
_OUTCOME = re.compile(r"\*((?:Command|Approval) [^*]+)\*")
_SPEED = 100.0
_STARTED_WITHIN = 25.0  # seconds to start the forwarder, on slow machines too
_START_SECONDS = 5.0  # a usual start, until the first event is published
_LEAST_PHASE = 2.5  # seconds; no phase is shorter, whatever the speed
_ARRIVED_WITHIN = 5.0  # seconds from the end of the scenario to the last arrival


def play(
    scenario: str, speed: float | None, svg: Path | None = None, *, keep: bool = False
) -> int:
    """Play a scenario and show it; return the exit code.

    Args:
        scenario: the name of one of the eight scenarios.
        speed: how many times faster than real time; None = a speed for demos.
        svg: where to save the output as a picture.
        keep: keep the folder with configuration, state file and log. Only ``svg`` is
            written elsewhere.
    """
    folder = Path(tempfile.mkdtemp(prefix="sebridge-demo-"))
    timeline = Timeline()
    try:
        speed = speed or actors.usual_speed(scenario, _SPEED)
        is_good = asyncio.run(_perform(scenario, speed, folder, timeline))
        _show_next_steps(timeline, folder, scenario, is_good=is_good, keep=keep)
    except SimulatorError as error:
        timeline.verdict(str(error), is_good=False)
        keep = False
        return 2
    except (KeyboardInterrupt, asyncio.CancelledError):
        keep = False
        timeline.verdict("interrupted; everything is cleaned up", is_good=False)
        return 1
    finally:
        if not keep:
            shutil.rmtree(folder)
    if svg is not None:
        timeline.save(svg)
    return 0 if is_good else 1


def _show_next_steps(
    timeline: Timeline, folder: Path, scenario: str, *, is_good: bool, keep: bool
) -> None:
    """Show the next steps; after a failure, also the end of the log."""
    if not is_good:
        for line in log_end(folder):
            timeline.note(line)
    title = f"Kept in {folder}. Next:" if keep else "Next:"
    commands = after(folder, is_kept=keep, scenario=scenario)
    timeline.commands(title, commands)
    timeline.note('README, "No Azure yet?": check, run and approve it by hand.')


async def _perform(name: str, speed: float, folder: Path, timeline: Timeline) -> bool:
    scenario = load(name)
    if not scenario.expected_approved:
        raise SimulatorError(
            f"{name} does not say what to expect: the demo plays the eight named "
            "scenarios; play a file with `sebridge simulate --scenario`"
        )
    stage = Stage(scenario, folder, timeline)
    if actors.suits(scenario, speed):
        stage.acting = Acting(folder, timeline)
    timeline.headline(name, scenario.description)
    timeline.note(
        f"It takes about {stage.seconds(speed):.0f} s, all on this machine: a local "
        "IMDS, Service Bus and Slack, a webhook receiver, and the real forwarder."
    )
    options = SimulatorOptions(scenario=name, speed=speed)
    with undone_by_signal():
        async with Simulator(options) as simulator, AsyncExitStack() as stack:
            return await stage.perform(simulator, stack)


class Stage(Struct):
    """One run of the demo."""

    scenario: Scenario
    folder: Path
    timeline: Timeline
    bus: Seen = field(default_factory=Seen)
    webhook: Seen = field(default_factory=Seen)
    slack: Seen = field(default_factory=Seen)
    approver: Seen = field(default_factory=Seen)
    imds: Seen = field(default_factory=Seen)
    acting: Acting | None = None
    _outcomes: int = 0

    def seconds(self, speed: float) -> float:
        """Estimate the duration of the demo, with the start of the forwarder."""
        found = _START_SECONDS
        for life in self.scenario.lives:
            waits = self.acting is not None or not self.approves
            notice = life.cancelled_after_seconds or life.notice_seconds
            found += (notice if waits else 0.0) / speed
            found += max((life.started_seconds or 0.0) / speed, _LEAST_PHASE)
        return found

    @property
    def approves(self) -> bool:
        """Whether the demo approves the event."""
        return {"scheduled", "started"} <= set(self.scenario.expected_approved)

    def lines(self) -> list[Line]:
        """Return what was expected and what arrived, by channel."""
        scenario = self.scenario
        steps = [*(scenario.expected_approved if self.approves else scenario.expected)]
        outcome = ["startrequest.relayed"] if self.approves else []
        asked = ["StartRequest"] if self.approves else []
        reply = ["reply: relayed"] if self.approves else []
        started, commands, turns = ["bridge.started"], list[str](), list[str]()
        if self.acting is not None:
            commands = [PREPARED, RESTORED]
            turns = ["bridge.traffic-out", "bridge.traffic-in"]
        steps_seen = [*steps, *outcome, *commands]
        found = [
            ("Service Bus", [*started, *steps_seen, *turns], self.bus),
            ("webhook", [*started, *steps_seen, *turns], self.webhook),
            ("Slack", steps_seen, self.slack),
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
        """Play the scenario, watch, and return whether everything arrived."""
        client = await stack.enter_async_context(
            ServiceBusClient.from_connection_string(
                simulator.broker.connection_string, retry_total=0
            )
        )
        simulator.imds.on_approved.append(self._approved)
        self.timeline.happened(
            "simulator", "IMDS, Service Bus, Slack and webhook receiver listen"
        )
        environ = {**os.environ, "PYTHONUNBUFFERED": "1"}
        config = self._config(simulator)
        tasks = [
            asyncio.create_task(work) for work in self._watching(simulator, client)
        ]
        try:
            async with actors.forwarder(self.folder, config, environ) as process:
                self.timeline.happened(
                    "forwarder", f"process {process.pid}, loading: a few seconds"
                )
                reason = await self._watch(simulator, process, tasks)
            if reason is None and process.returncode:
                reason = f"the forwarder ended with exit code {process.returncode}"
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return self._summarize(reason)

    def _config(self, simulator: Simulator) -> str:
        """Return the configuration of the forwarder."""
        inbox, bus = simulator.inbox.url, simulator.broker.connection_string
        slack, secret = actors.WEBHOOK, f"{inbox}/slack/ops"
        if self.acting is not None:
            slack, secret = actors.BOT, "xoxb-demo"
        secret = actors.secret_file(self.folder, "slack", secret)
        return actors.CONFIG.format(
            imds=simulator.imds.url,
            inbox=inbox,
            bus=actors.secret_file(self.folder, "servicebus", bus),
            state=(self.folder / "state.db").as_posix(),
            slack=slack.format(inbox=inbox, secret=secret),
            more="" if self.acting is None else self.acting.config(),
        )

    def _watching(
        self, simulator: Simulator, client: ServiceBusClient
    ) -> list[Coroutine[None, None, None]]:
        """Return the tasks that run beside the forwarder."""
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
        """Wait until everything has arrived; return what went wrong, or None."""
        ended = asyncio.create_task(process.wait())
        playing = asyncio.create_task(simulator.play())
        try:
            limit = asyncio.get_running_loop().time() + _STARTED_WITHIN
            while any(line.missing for line in self.lines()):
                await asyncio.sleep(0.05)
                if ended.done():
                    return f"the forwarder ended with exit code {process.returncode}"
                for task in tasks:
                    if task.done():
                        return f"a watcher failed: {task.exception()!r}"
                now = asyncio.get_running_loop().time()
                if not playing.done():
                    limit = max(limit, now + _ARRIVED_WITHIN)
                if now > limit:
                    return "not everything that was expected arrived in time"
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
        """Show a Slack message, and record the step that its text describes."""
        body = message.body if isinstance(message.body, dict) else {}
        if "thread_ts" in body:
            return  # a reply in the thread repeats what the message itself shows
        if outcome := self._new_outcome(body):
            self.timeline.happened("Slack", f"in the message: {outcome}")
            self.slack.add(_step_of(outcome))
            return
        text = str(body.get("text", ""))
        headline = text.splitlines()[0] if text else "(no text)"
        self.timeline.happened("Slack", headline)
        self.slack.add(_step_of(headline))

    def _new_outcome(self, body: dict[str, object]) -> str:
        """Return the outcome of a command or approval that is new in the message."""
        found = _OUTCOME.findall(json.dumps(body.get("blocks", []), ensure_ascii=False))
        is_new = len(found) > self._outcomes
        self._outcomes = len(found)
        return found[-1] if is_new else ""

    def _approved(self, event_id: str) -> None:
        self.timeline.happened("IMDS", f"StartRequest received for {event_id[:8]}…")
        self.imds.add("StartRequest")

    def _summarize(self, reason: str | None) -> bool:
        """Show the result; return whether everything arrived."""
        self.timeline.summary(self.lines())
        if reason is None:
            text = "Everything arrived, and the approval reached IMDS."
            if not self.approves:
                text = "Everything arrived."
            self.timeline.verdict(text, is_good=True)
            return True
        self.timeline.verdict(f"Failed: {reason}.", is_good=False)
        return False


def _step_of(words: str) -> str:
    """Return the step that a text of Slack describes."""
    steps = [step for step, known in _IN_SLACK.items() if known in words]
    return steps[0] if steps else words.removeprefix("Command ")


# -- Propose commands to run after a demo, with the paths of this machine --------------


_LOG_LINES = 5


def program(argv: Sequence[str] = sys.argv) -> str:
    """Return the command that starts this program, as the user has called it.

    Args:
        argv: the arguments of this process; for ``python -m bridge``, the first is the
            path of ``__main__.py``.
    """
    called = Path(argv[0])
    if called.name == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m bridge"
    found = shutil.which("sebridge")
    is_on_path = found is not None and Path(found).resolve() == called.resolve()
    return "sebridge" if is_on_path else shlex.quote(argv[0])


def after(folder: Path, *, is_kept: bool, scenario: str) -> list[tuple[str, str]]:
    """Return three commands, each with its purpose.

    Args:
        folder: the folder of the demo.
        is_kept: whether the folder stays; then the commands use the files in it.
        scenario: the scenario that was played; the commands propose another one.
    """
    call = program()
    if is_kept:
        config = shlex.quote(str(folder / "bridge.toml"))
        return [
            (f"{call} check -c {config}", "a whole configuration"),
            (f"{call} events -c {config}", "the events, from the state file"),
            (f"{call} outbox list -c {config}", "their deliveries"),
        ]
    other = "live-migration" if scenario == "spot-eviction" else "spot-eviction"
    return [
        (f"{call} demo --scenario {other}", "another event"),
        (f"{call} demo --keep", "keep configuration, state file and log"),
        (f"{call} init", "a first configuration for a VM"),
    ]


def log_end(folder: Path) -> list[str]:
    """Return the last lines of the forwarder's log, to show after a failure."""
    path = folder / "forwarder.log"
    if not path.exists():
        return []
    return path.read_text("utf-8", errors="replace").splitlines()[-_LOG_LINES:]
