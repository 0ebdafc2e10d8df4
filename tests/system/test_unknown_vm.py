"""A forwarder that is not told who its VM is: it reads the document all the same."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest

from bridge.app import forwarder as app
from bridge.app.composition import Timings
from bridge.configuration import load as configuration
from bridge.configuration.config import Config
from bridge.foundation.clock import Bell, Clock, SystemClock
from bridge.foundation.errors import ConfigError
from bridge.simulator.faults import parse_fault
from bridge.simulator.imds.document import compute_of
from bridge.simulator.imds.lifecycle import EventLife
from bridge.simulator.imds.server import ImdsSimulator
from bridge.simulator.inbox import Inbox
from tests.support.disks import Frozen
from tests.support.stopwatch import Stopwatch
from tests.system.processes import (
    PATIENCE,
    ended,
    forwarder,
    settled,
    simulator_here,
    written_config,
)

pytestmark = pytest.mark.integration

Event = Mapping[str, object]
OTHER = {"vmId": "00000000-0000-0000-0000-000000000002"}


@dataclass
class Place:
    """IMDS and an inbox, and a forwarder in this process between them."""

    imds: ImdsSimulator
    inbox: Inbox
    folder: Path
    tables: dict[str, object] = field(default_factory=dict)
    sinks: list[dict[str, object]] = field(default_factory=list)

    def config(self) -> Config:
        siem = {"name": "siem", "type": "webhook", "url": f"{self.inbox.url}/siem"}
        tables = {
            "shutdown_grace": "1s",
            "imds": {"endpoint": self.imds.url, "poll_interval": "250ms"},
            "state": {"path": str(self.folder / "state.db")},
            "http": {"listen": ""},
            "sinks": [{**siem, "when": {"lifecycle": False}}, *self.sinks],
            **self.tables,
        }
        return configuration.parse(tables, file="place", environ={})

    @asynccontextmanager
    async def life(
        self, patience: float = 2 * PATIENCE, clock: Clock | None = None
    ) -> AsyncIterator[None]:
        """Run the forwarder while the context is open."""
        stop, clock = asyncio.Event(), clock or SystemClock()
        life = app.run(self.config(), stop, clock, timings=Timings(identity=patience))
        async with asyncio.TaskGroup() as group:
            group.create_task(life)
            try:
                yield
            finally:
                stop.set()

    def schedule(self, event_type: str, notice: float) -> None:
        life = EventLife(
            event_type=event_type,
            resources=(self.imds.vm_name,),
            notice_seconds=notice,
        )
        self.imds.schedule(life)

    def received(self, path: str = "/siem") -> list[Event]:
        found = [m for m in self.inbox.messages if m.path == path]
        return [m.body for m in found if isinstance(m.body, dict)]

    def log(self) -> dict[str, object]:
        """Return the table of a sink that writes all events to a file."""
        return {"name": "log", "type": "file", "path": str(self.folder / "events.log")}

    def logged(self) -> list[tuple[str, str]]:
        """Return what that file has: the names of events, and how the sources begin."""
        path = self.folder / "events.log"
        lines = path.read_text().splitlines() if path.exists() else []
        found = [json.loads(line) for line in lines]
        return [(e["type"].split(".")[2], e["source"][:5]) for e in found]

    def starts(self) -> int:
        """Return how many times the bridge has told that it started."""
        return [name for name, _ in self.logged()].count("started")

    def times_asked(self) -> int:
        """Return how often instance metadata was asked."""
        paths = [one.path for one in self.imds.requests]
        return sum(path.startswith("/metadata/instance") for path in paths)

    async def until(self, is_so: Callable[[], bool], within: float = PATIENCE) -> None:
        """Wait until it is so: ``within`` seconds of a machine that has time for it."""
        watch = Stopwatch()
        async with asyncio.timeout(PATIENCE):
            while not is_so():
                await asyncio.sleep(0.02)
        assert watch.seconds < within


def brief(event: Event) -> str:
    """Say ``Preempt scheduled``."""
    return f"{event.get('eventtype')} {str(event['type']).split('.')[-2]}"


def affects(event: Event) -> object:
    data = event["data"]
    assert isinstance(data, dict)
    return data["affectsThisVm"]


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with ImdsSimulator() as imds, Inbox() as inbox:
        yield Place(imds, inbox, tmp_path)


@pytest.fixture
def compute(place: Place) -> dict[str, object]:
    """Return what instance metadata would say; it answers 404 until it may."""
    found = place.imds.compute
    assert found is not None
    place.imds.compute = None
    return dict(found)


async def test_urgent_event_is_delivered_while_metadata_answers_404_and_others_wait(
    place: Place, compute: dict[str, object]
) -> None:
    place.sinks = [
        {
            "name": "named",
            "type": "webhook",
            "url": f"{place.inbox.url}/named",
            "headers": {"x-vm": "{vm_name}"},
            "when": {"lifecycle": False},
        },
        {"name": "log", "type": "file", "path": str(place.folder / "events.log")},
    ]
    async with place.life():
        place.schedule("Preempt", 30)
        place.schedule("Freeze", 900)
        await place.until(lambda: bool(place.received()), within=2)
        (first,) = place.received()
        place.imds.compute = compute
        await place.until(lambda: len(place.received()) == 2)
        await place.until(lambda: len(place.received("/named")) == 2)
        log = place.folder / "events.log"
        await place.until(lambda: "bridge.started" in log.read_text())

    assert brief(first) == "Preempt scheduled"
    assert str(first["source"]).startswith("urn:sebridge:")
    assert affects(first) is None
    second = place.received()[1]
    assert brief(second) == "Freeze scheduled"
    assert str(second["source"]).startswith("/subscriptions/")
    assert affects(second) is True
    named = {m.headers["x-vm"] for m in place.inbox.messages if m.path == "/named"}
    assert named == {place.imds.vm_name}
    lines = log.read_text().splitlines()
    found = [json.loads(line) for line in lines]
    assert [brief(e) for e in found if e["type"].split(".")[1] == "scheduledevent"] == [
        "Preempt scheduled",
        "Freeze scheduled",
    ]
    assert [e["type"] for e in found if ".bridge." in e["type"]] == [
        "sebridge.bridge.started.v1",
        "sebridge.bridge.stopped.v1",
    ]
    assert len({str(e["id"]) for e in place.received()}) == 2


async def test_metadata_that_hangs_does_not_hold_up_the_polls(
    place: Place, compute: dict[str, object]
) -> None:
    place.imds.compute = compute
    hang = {"untilCleared": True, "path": "/metadata/instance", "hang": 60}
    place.imds.faults.add(parse_fault(json.dumps(hang).encode()))
    async with place.life():
        place.schedule("Preempt", 30)
        await place.until(lambda: bool(place.received()), within=6)
        assert affects(place.received()[0]) is None
        place.imds.faults.clear()


async def test_sink_that_hangs_when_the_vm_is_known_does_not_hold_up_the_polls(
    place: Place, compute: dict[str, object]
) -> None:
    """All is closed and opened again: what is in flight then has a second."""
    lines = list[asyncio.StreamWriter]()

    def accept(_: asyncio.StreamReader, line: asyncio.StreamWriter) -> None:
        lines.append(line)

    mute = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = mute.sockets[0].getsockname()[1]
    url = f"http://127.0.0.1:{port}/"
    place.sinks = [{"name": "mute", "type": "webhook", "url": url}]
    place.tables = {"shutdown_grace": "20s"}
    async with mute, place.life():
        place.schedule("Preempt", 60)
        await place.until(lambda: bool(lines and place.received()))
        place.imds.compute = compute
        asked = place.times_asked()
        await place.until(lambda: place.times_asked() > asked)
        place.schedule("Terminate", 60)
        await place.until(lambda: len(place.received()) == 2, within=5)
        mute.close()
        for line in lines:
            line.transport.abort()

    assert [affects(e) for e in place.received()] == [None, True]


class Watched(SystemClock):
    """Notes for what the waits with slack wait."""

    def __init__(self) -> None:
        super().__init__()
        self.found = set[type[asyncio.Event]]()

    async def wait(
        self, event: asyncio.Event, seconds: float, *, slack: float = 0.0
    ) -> bool:
        if slack:
            self.found.add(type(event))
        return await super().wait(event, seconds, slack=slack)


async def test_periodic_checks_can_end_together_with_a_poll(
    place: Place, compute: dict[str, object]
) -> None:
    """Only waits for a ``Bell`` do: else an idle forwarder wakes up more often."""
    clock, place.sinks = Watched(), [place.log()]
    async with place.life(0.3, clock):
        await place.until(lambda: place.starts() == 1)
        place.imds.compute = compute
        await place.until(lambda: place.starts() == 2)

    assert clock.found == {Bell}


async def test_configured_name_is_known_at_once(
    place: Place, compute: dict[str, object]
) -> None:
    """The case that was met: 58 s without a poll, although both are configured."""
    assert compute
    place.tables = {"identity": {"vm_name": place.imds.vm_name, "vm_id": "v-1"}}
    async with place.life():
        place.schedule("Preempt", 30)
        await place.until(lambda: bool(place.received()), within=2)

    assert affects(place.received()[0]) is True


async def test_next_life_does_not_publish_again_what_it_published_without_an_identity(
    place: Place, compute: dict[str, object]
) -> None:
    async with place.life():
        place.schedule("Preempt", 60)
        place.schedule("Freeze", 900)
        await place.until(lambda: bool(place.received()), within=2)
    place.imds.compute = compute
    async with place.life():
        await place.until(lambda: len(place.received()) == 2)
        await asyncio.sleep(0.6)

    assert list(map(brief, place.received())) == [
        "Preempt scheduled",
        "Freeze scheduled",
    ]


@pytest.mark.slow
async def test_disk_that_hangs_when_the_vm_is_known_does_not_end_the_forwarder(
    place: Place, compute: dict[str, object], frozen: Frozen
) -> None:
    place.folder = frozen.path
    async with place.life():
        await place.until(lambda: place.times_asked() > 0)
        frozen.freeze()
        place.schedule("Preempt", 60)
        await place.until(lambda: bool(place.received()))
        place.imds.compute = compute
        place.schedule("Freeze", 900)
        await place.until(lambda: "Freeze scheduled" in map(brief, place.received()))
        assert affects(place.received()[-1]) is True
        frozen.thaw()
        await asyncio.sleep(6)
        place.schedule("Terminate", 900)
        await place.until(lambda: "Terminate scheduled" in map(brief, place.received()))

    assert "durable" not in place.received()[-1]["data"]  # type: ignore[operator]  # a dict


@pytest.mark.slow
async def test_disk_that_hangs_for_seconds_when_the_vm_is_known_has_nothing_done_twice(
    place: Place, compute: dict[str, object], frozen: Frozen
) -> None:
    """All is closed and opened again when the disk has what was done."""
    place.folder = frozen.path
    place.sinks = [{"name": "drain", "type": "command", "command": ["/bin/true"]}]
    place.tables = {"identity": {"vm_name": place.imds.vm_name}}
    names = ["Preempt scheduled", "Preempt succeeded"]
    async with place.life():
        await place.until(lambda: place.times_asked() > 0)
        frozen.freeze()
        place.schedule("Preempt", 60)
        await place.until(lambda: list(map(brief, place.received())) == names)
        asked, place.imds.compute = place.times_asked(), compute
        await place.until(lambda: place.times_asked() > asked)
        await asyncio.sleep(2)
        frozen.thaw()
        await asyncio.sleep(6)

    assert list(map(brief, place.received())) == names


@pytest.mark.parametrize("patience", [2 * PATIENCE, 0.3])
async def test_state_file_of_a_cloned_disk_is_moved_aside_when_the_vm_is_known(
    patience: float, place: Place, compute: dict[str, object]
) -> None:
    place.imds.compute = compute
    async with place.life():
        place.schedule("Freeze", 900)
        await place.until(lambda: len(place.received()) == 1)
    place.imds.compute = None
    async with place.life(patience):
        place.schedule("Preempt", 60)
        await place.until(lambda: len(place.received()) == 2, within=3)
        place.imds.compute = {**compute, **OTHER}
        # Its own state file is empty, so it tells what it finds: with the same ids.
        await place.until(lambda: len(place.received()) == 4)

    assert list(map(brief, place.received()))[:2] == [
        "Freeze scheduled",
        "Preempt scheduled",
    ]
    assert len({str(e["id"]) for e in place.received()}) == 2
    assert list(place.folder.glob("state.db.*-*"))


async def test_metadata_that_answers_late_is_used_without_a_restart_of_the_process(
    place: Place, compute: dict[str, object]
) -> None:
    """What went out with a makeshift source is not told again; the bridge is."""
    place.sinks = [place.log()]
    async with place.life(patience=0.3):
        await place.until(lambda: place.starts() == 1)
        place.schedule("Freeze", 900)
        await place.until(lambda: len(place.received()) == 1)
        place.imds.compute = compute
        await place.until(lambda: place.starts() == 2)
        asked = place.times_asked()
        place.schedule("Preempt", 900)
        await place.until(lambda: len(place.received()) == 2)
        await asyncio.sleep(0.7)
        assert place.times_asked() == asked

    assert place.logged() == [
        ("started", "urn:s"),
        ("scheduled", "urn:s"),
        ("stopped", "urn:s"),
        ("started", "/subs"),
        ("scheduled", "/subs"),
        ("stopped", "/subs"),
    ]
    assert [affects(e) for e in place.received()] == [None, True]


async def test_late_answer_that_says_what_was_stored_changes_nothing(
    place: Place, compute: dict[str, object]
) -> None:
    place.sinks, place.imds.compute = [place.log()], compute
    async with place.life():
        await place.until(lambda: place.starts() == 1)
    place.imds.compute = None
    async with place.life(patience=0.3):
        await place.until(lambda: place.starts() == 2)
        place.imds.compute, asked = compute, place.times_asked()
        await place.until(lambda: place.times_asked() > asked)
        await asyncio.sleep(0.7)
        assert place.times_asked() == asked + 1

    names = [name for name, _ in place.logged()]
    assert names == ["started", "stopped", "started", "stopped"]


@pytest.mark.parametrize(("patience", "starts"), [(2 * PATIENCE, 1), (0.3, 2)])
async def test_command_that_runs_when_the_vm_becomes_known_is_not_ended(
    patience: float, starts: int, place: Place, compute: dict[str, object]
) -> None:
    marks = place.folder / "marks"
    script = f"echo begun >> {marks}; sleep 3; echo ended >> {marks}"
    command = ["/bin/sh", "-c", script]
    place.sinks = [
        place.log(),
        {"name": "drain", "type": "command", "command": command},
    ]
    place.tables = {"identity": {"vm_name": place.imds.vm_name}}
    async with place.life(patience):
        place.schedule("Preempt", 60)
        await place.until(marks.exists)
        await place.until(lambda: place.starts() == starts - 1)
        place.imds.compute = compute
        await place.until(lambda: place.starts() == starts)

    assert marks.read_text().split() == ["begun", "ended"]


async def test_placeholder_that_nobody_can_fill_in_ends_it_when_patience_is_over(
    place: Place, compute: dict[str, object]
) -> None:
    """What was held is on disk by then: the next life delivers it."""
    siem = f"{place.inbox.url}/siem"
    place.tables = {
        "sinks": [
            {
                "name": "siem",
                "type": "webhook",
                "url": siem,
                "headers": {"x-vm": "{vm_name}"},
                "when": {"lifecycle": False},
            }
        ]
    }
    place.schedule("Freeze", 900)
    with pytest.raises(BaseExceptionGroup) as caught:
        async with place.life(patience=0.6):
            await asyncio.sleep(PATIENCE)
    assert caught.group_contains(ConfigError, match="vm_name")

    place.imds.compute = compute
    async with place.life():
        await place.until(lambda: bool(place.received()))
    # The makeshift source shows that it was committed by the life that ended.
    assert str(place.received()[0]["source"]).startswith("urn:sebridge:")


async def test_process_tells_a_preempt_of_30_seconds_while_metadata_is_missing(
    tmp_path: Path,
) -> None:
    """With approvals and readiness: it is not ready until the VM is known."""
    async with simulator_here() as at:
        config = written_config(tmp_path, at)
        port = "127.0.0.1:0"
        config.write_text(
            config.read_text().replace('listen = ""', f'listen = "{port}"')
            + '\n[identity]\nvm_name = "configured"\nvm_id = "v-1"\n'
        )
        await at.control("DELETE", "instance")
        running = await forwarder(config)
        try:
            await until_logged(config, b"polling begins before the identity")
            watch = Stopwatch()
            await at.control(
                "POST",
                "events",
                {"type": "Preempt", "resources": ["configured"], "notBefore": 30},
            )
            async with asyncio.timeout(PATIENCE):
                while not (found := await at.messages("/siem")):
                    await asyncio.sleep(0.05)
            took = watch.seconds
            ready = await readyz(config)
            await at.control("PUT", "instance", compute_of("configured"))
            await settled(config, 0)
            async with asyncio.timeout(PATIENCE):
                while (later := await readyz(config))[0] != 200:
                    await asyncio.sleep(0.05)
        finally:
            code = await ended(running)

    body = found[0]["body"]
    assert isinstance(body, dict)
    assert body["type"] == "sebridge.scheduledevent.scheduled.v1"
    assert took < 3
    assert ready == (503, ["starting: asking IMDS who this VM is"])
    assert later == (200, [])
    assert code == 0


async def until_logged(config: Path, text: bytes) -> None:
    async with asyncio.timeout(PATIENCE):
        while text not in config.with_suffix(".log").read_bytes():
            await asyncio.sleep(0.05)


async def readyz(config: Path) -> tuple[int, object]:
    """Ask the health port, whose address stands in the log."""
    lines = config.with_suffix(".log").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    (opened,) = [one for one in found if one["message"] == "health port open"]
    url = f"http://{opened['addresses'][0]}/readyz"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.json()
