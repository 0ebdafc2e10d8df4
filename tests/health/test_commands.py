"""The socket beside the state file, on which the commands of this machine ask."""

import asyncio
import os
import socket
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bridge.diagnostics.outbox_access import AskAnew, Forwarder, access, forwarder_of
from bridge.foundation.clock import SystemClock
from bridge.foundation.errors import OutboxError, Reason, RefusedDeliveryError
from bridge.foundation.pace import RetryPolicy
from bridge.health.port import serve_commands
from bridge.health.status import StatusSource
from bridge.net.local_socket import address_of, ask
from bridge.outbox.admin import Discard, Ledger, Retry
from bridge.outbox.questions import (
    EventIds,
    Find,
    Newest,
    Observed,
    Published,
    Question,
    Selection,
)
from bridge.outbox.statefile import locked, open_database
from bridge.outbox.storage.lock import StateLock
from bridge.outbox.store import Outbox
from bridge.pipeline.attempt import RelayPolicy
from bridge.pipeline.relay import Relay
from bridge.telemetry.metrics import Metrics
from tests.support.builders import SINK, outgoing, patient_outbox, router
from tests.support.fakes import FakeClock, RecordingSink

DEAD = Selection(states=("dead",))
PATIENCE = 30
REFUSED = RefusedDeliveryError("siem answered 401", Reason.UNAUTHORIZED)


@pytest.fixture
def sink() -> RecordingSink:
    return RecordingSink()


@pytest.fixture
def relay(
    outbox: Outbox, clock: FakeClock, metrics: Metrics, sink: RecordingSink
) -> Relay:
    return Relay(
        sink=SINK,
        deliver=sink,
        outbox=outbox,
        clock=clock,
        metrics=metrics,
        policy=RelayPolicy(backoff=RetryPolicy(), max_age=86400, slots=4),
        chance=lambda: 1.0,
    )


@pytest.fixture
def status_source(
    clock: FakeClock, metrics: Metrics, outbox: Outbox, relay: Relay
) -> StatusSource:
    return StatusSource(clock=clock, metrics=metrics, outbox=outbox, relays=[relay])


@pytest.fixture
def lock(state_path: Path) -> Iterator[StateLock]:
    with locked(state_path) as held:
        yield held


async def answered(path: Path, *, looking_every: float = 0.01) -> None:
    """Wait until somebody listens."""
    async with asyncio.timeout(PATIENCE):
        while forwarder_of(path) is None:
            await asyncio.sleep(looking_every)


@pytest.fixture
async def forwarder(
    lock: StateLock, status_source: StatusSource
) -> AsyncIterator[Forwarder]:
    async with serve_commands(lock, status_source):
        await answered(lock.path)
        yield Forwarder(lock.path)


async def look(relay: Relay) -> None:
    """Let the relay look, and what it begins end."""
    async with asyncio.TaskGroup() as group:
        await relay.step(group)


async def parked(relay: Relay, sink: RecordingSink, clock: FakeClock) -> None:
    """Let a delivery be refused until the sink is parked."""
    sink.always = REFUSED
    await relay.outbox.commit([outgoing("1")], now=clock.now().timestamp())
    while relay.state != "parked":
        await look(relay)
        clock.pass_by(60)


@pytest.mark.parametrize("asked", [SINK, None])
async def test_parked_sink_is_tried_at_once_when_a_person_asks_for_it(
    asked: str | None,
    forwarder: Forwarder,
    relay: Relay,
    sink: RecordingSink,
    clock: FakeClock,
) -> None:
    await parked(relay, sink, clock)
    await look(relay)
    tried, sink.always = len(sink.tried), None

    await forwarder(Retry(selection=Selection(sink=asked, states=("dead",))))
    await look(relay)

    assert (relay.state, len(sink.tried)) == ("ok", tried + 1)


async def test_sink_that_nobody_asked_for_stays_parked(
    forwarder: Forwarder, relay: Relay, sink: RecordingSink, clock: FakeClock
) -> None:
    await parked(relay, sink, clock)

    await forwarder(Retry(selection=Selection(sink="other")))

    assert relay.state == "parked"


async def test_what_a_command_discards_is_counted(
    forwarder: Forwarder, outbox: Outbox, metrics: Metrics, clock: FakeClock
) -> None:
    now = clock.now().timestamp()
    await outbox.commit([outgoing("1"), outgoing("2")], now=now)

    await forwarder(Discard(selection=Selection()))

    labels = {"sink": SINK, "outcome": "discarded"}
    found = metrics.registry.get_sample_value("sebridge_deliveries_total", labels)
    assert found == 2


async def test_many_deliveries_are_listed_in_pages(
    forwarder: Forwarder, outbox: Outbox, clock: FakeClock
) -> None:
    names = [str(number) for number in range(450)]
    now = clock.now().timestamp()
    await outbox.commit([outgoing(name) for name in names], now=now)

    found = await Ledger(forwarder).find(Selection())

    assert [one.cloud_event_id for one in found] == names
    newest = await Ledger(forwarder).published(newest=300)
    assert [one.number for one in newest] == [*range(151, 451)]
    assert len(await Ledger(forwarder).published(newest=2**70)) == 450


async def test_status_needs_no_health_port(forwarder: Forwarder) -> None:
    report = await forwarder.status()

    assert report.imds.state == "starting"


async def test_only_the_account_of_the_forwarder_may_connect(
    forwarder: Forwarder,
) -> None:
    mode = Path(address_of(forwarder.path)).stat().st_mode

    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600


async def test_question_that_it_does_not_know_is_refused(forwarder: Forwarder) -> None:
    for body in (b"", b"\xff", msgspec.msgpack.encode({"type": "Erase"})):
        status, _ = await ask(forwarder.path, "POST", "/outbox", body, PATIENCE)
        assert status == 400


@pytest.mark.parametrize("number", [-1, 2**62 + 1, 2**64 - 1])
async def test_number_that_no_state_file_has_is_refused(
    number: int, forwarder: Forwarder
) -> None:
    found = Selection()
    asked: list[Question[Any]] = [
        Find(selection=Selection(id=number)),
        Find(selection=found, at=number),
        Find(selection=found, most=number),
        Newest(selection=found, count=number),
        Newest(selection=found, count=1, also=(number,)),
        Published(after=number),
        Published(at=number),
        Published(newest=number),
        EventIds(newest=number),
        Observed(start="", at=number),
        Retry(selection=found, at=number),
        Discard(selection=Selection(id=number)),
    ]
    for question in asked:
        body = msgspec.msgpack.encode(question)
        status, text = await ask(forwarder.path, "POST", "/outbox", body, PATIENCE)
        assert (status, b"Expected `int` " in text) == (400, True), question


@pytest.mark.parametrize("number", [0, 2**62])
async def test_largest_and_smallest_number_are_answered(
    number: int, forwarder: Forwarder
) -> None:
    found = Selection(id=number)
    assert (await forwarder(Find(selection=found, at=number))).found == []
    assert await forwarder(Newest(selection=found, count=number)) == []
    assert (await forwarder(Published(after=number, at=number))).found == []
    assert await forwarder(EventIds(newest=number)) == []
    assert (await forwarder(Observed(start="", at=number))).found == []
    assert (await forwarder(Retry(selection=found, at=number))).sent == []


async def test_question_that_is_too_large_is_refused(forwarder: Forwarder) -> None:
    body = bytes(3 * 2**20)
    status, _ = await ask(forwarder.path, "POST", "/outbox", body, PATIENCE)
    assert status == 413


async def test_forwarder_that_has_no_state_yet_says_so(
    lock: StateLock, clock: FakeClock, metrics: Metrics
) -> None:
    async with serve_commands(lock, StatusSource(clock=clock, metrics=metrics)):
        await answered(lock.path)
        async with access(lock.path, SystemClock(), patience=0.2) as ledger:
            with pytest.raises(OutboxError, match="the forwarder starts"):
                await ledger.find(Selection())


async def test_several_commands_at_once_are_answered(
    forwarder: Forwarder, outbox: Outbox, clock: FakeClock
) -> None:
    now = clock.now().timestamp()
    await outbox.commit([outgoing(str(number)) for number in range(9)], now=now)
    for one in (await outbox.deliveries.due(SINK, now=now, limit=9))[0]:
        await outbox.deliveries.dead_letter(
            one, now=now, error="no", reason=Reason.REJECTED
        )

    done, _ = await asyncio.gather(
        asyncio.gather(*(forwarder(Retry(selection=DEAD)) for _ in range(5))),
        asyncio.gather(*(forwarder(Find(selection=Selection())) for _ in range(5))),
    )

    sent = [one.id for answer in done for one in answer.sent]
    assert sorted(sent) == [*range(1, 10)]
    assert (await outbox.deliveries.tallies())[SINK].pending == 9


async def test_socket_that_a_killed_forwarder_has_left_is_replaced(
    lock: StateLock, status_source: StatusSource
) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(address_of(lock.path))

    async with serve_commands(lock, status_source):
        await answered(lock.path)

    assert not Path(address_of(lock.path)).exists()


async def test_socket_that_is_removed_is_made_anew(
    lock: StateLock, status_source: StatusSource, clock: FakeClock
) -> None:
    async with serve_commands(lock, status_source):
        await answered(lock.path, looking_every=0)
        Path(address_of(lock.path)).unlink()
        await clock.advance(0)  # now it waits
        await clock.advance(20)

        await answered(lock.path)


@pytest.mark.parametrize("what", ["file", "lock"])
async def test_forwarder_that_can_have_no_socket_says_why_once(
    what: str,
    lock: StateLock,
    status_source: StatusSource,
    clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if what == "file":
        Path(address_of(lock.path)).write_text("of somebody else")
    else:
        lock.file.unlink()

    async with serve_commands(lock, status_source):
        async with asyncio.timeout(PATIENCE):
            while not caplog.records:
                await asyncio.sleep(0.01)
        for _ in range(3):
            await clock.advance(20)

        assert forwarder_of(lock.path) is None
        (note,) = status_source.notes_of({})
        assert note.startswith("state: commands cannot ask this forwarder: ")
    assert [one.message for one in caplog.records] == [
        "commands cannot ask this forwarder: tried again"
    ]


async def test_what_a_start_did_not_take_over_is_a_note(
    state_path: Path, clock: FakeClock, metrics: Metrics
) -> None:
    state_path.touch()
    async with open_database(state_path, None) as database:
        outbox = await Outbox.of(database, router())
        source = StatusSource(clock=clock, metrics=metrics, outbox=outbox)

        assert source.notes_of({}) == [
            "state: the start did not take over the whole file: it is empty"
        ]


async def test_path_that_is_too_long_for_a_socket_has_one_all_the_same(
    tmp_path: Path, status_source: StatusSource
) -> None:
    path = tmp_path / ("long" * 30) / "state.db"
    with locked(path) as lock:
        async with serve_commands(lock, status_source):
            await answered(path)

            assert path.with_name("state.db.socket").is_socket()


async def test_forwarder_that_has_the_lock_and_no_socket_is_named(
    state_path: Path, lock: StateLock
) -> None:
    async with patient_outbox(state_path, router()):
        with pytest.raises(OutboxError, match=f"process {os.getpid()}.*socket"):
            async with access(state_path, SystemClock(), patience=0):
                pass


async def test_what_is_in_the_place_of_the_socket_is_named(
    state_path: Path, lock: StateLock
) -> None:
    Path(address_of(state_path)).mkdir()
    async with patient_outbox(state_path, router()):
        with pytest.raises(OutboxError, match=r"db\.socket is not a socket: move it"):
            async with access(state_path, SystemClock(), patience=0):
                pass


async def test_answer_of_another_program_is_one_error(
    state_path: Path, outbox: Outbox
) -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
        writer.close()

    server = await asyncio.start_unix_server(speak, address_of(state_path))
    async with server:
        found = Forwarder(state_path)
        with pytest.raises(OutboxError, match="another version"):
            await found(Find(selection=Selection()))
        with pytest.raises(OutboxError, match="another version"):
            await found.status()


async def test_forwarder_that_ends_meanwhile_is_one_error(
    lock: StateLock, status_source: StatusSource
) -> None:
    async with serve_commands(lock, status_source):
        await answered(lock.path)
    with pytest.raises(OutboxError, match="has ended: try again"):
        await Forwarder(lock.path)(Find(selection=Selection()))


@pytest.mark.parametrize("changes", [False, True])
async def test_command_outlives_a_forwarder_that_ends(
    state_path: Path, clock: FakeClock, metrics: Metrics, *, changes: bool
) -> None:
    """Its state file is closed first, then its socket; last, its lock is released."""
    asked = Discard(selection=DEAD) if changes else Find(selection=Selection())
    ending, source = AsyncExitStack(), StatusSource(clock=clock, metrics=metrics)
    lock = ending.enter_context(locked(state_path))
    await ending.enter_async_context(serve_commands(lock, source))
    await answered(state_path)
    async with access(state_path, SystemClock(), changes=changes) as ledger:
        async with patient_outbox(state_path, router()) as source.outbox:
            await source.outbox.commit([outgoing("1")], now=1)
        question = asyncio.create_task(ledger.ask(asked))
        await asyncio.sleep(0.2)
        assert not question.done()
        await ending.aclose()

        assert len((await question).found) == (0 if changes else 1)


@pytest.mark.parametrize(
    "said", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhi"]
)
async def test_answer_that_ends_in_between_is_one_error(
    said: bytes, state_path: Path
) -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        writer.close()

    server = await asyncio.start_unix_server(speak, address_of(state_path))
    async with server:
        with pytest.raises(OutboxError, match="has ended meanwhile"):
            await Forwarder(state_path).status()


@pytest.mark.parametrize(
    "said", [b"", b"HTTP/1.1 503 \r\nContent-Length: 8\r\n\r\nstarting"]
)
async def test_question_of_a_watch_is_asked_again_when_the_forwarder_restarts(
    said: bytes, lock: StateLock, status_source: StatusSource
) -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        writer.close()
        server.close()
        asked.set()

    asked = asyncio.Event()
    server = await asyncio.start_unix_server(speak, address_of(lock.path))
    ledger = Ledger(AskAnew(lock.path, SystemClock()))
    async with asyncio.TaskGroup() as group:
        found = group.create_task(ledger.find(Selection()))
        await asked.wait()
        async with serve_commands(lock, status_source):
            assert await found == []


async def test_question_of_a_watch_that_nobody_answers_is_an_error(
    lock: StateLock, clock: FakeClock, metrics: Metrics
) -> None:
    async with serve_commands(lock, StatusSource(clock=clock, metrics=metrics)):
        await answered(lock.path)
        ask = AskAnew(lock.path, SystemClock(), patience=0.2)
        with pytest.raises(OutboxError, match="the forwarder starts"):
            await Ledger(ask).find(Selection())
