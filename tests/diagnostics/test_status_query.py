"""The status at the command line: of the running forwarder, or from its state file."""

import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest
from aiohttp import web
from msgspec.structs import replace

from bridge.app.identify import settle
from bridge.app.traffic import open_probe
from bridge.configuration import load as configuration
from bridge.configuration.config import Config
from bridge.diagnostics import status_query
from bridge.diagnostics.finding import Finding
from bridge.events.build import EventContext
from bridge.events.command_result import CommandResult, from_command
from bridge.foundation.errors import OutboxCorruptError, OutboxError, Reason
from bridge.health import port as health
from bridge.health.report import SinkReport, StatusReport, nothing_known
from bridge.health.status import StatusSource
from bridge.net.local_socket import address_of
from bridge.outbox.records import Decision
from bridge.outbox.storage.lock import StateLock
from bridge.telemetry.metrics import Metrics
from tests.support.builders import (
    EVENT_ID,
    ME,
    SINK,
    body_of,
    imds_event,
    observed,
    outgoing,
    patient_outbox,
    router,
)
from tests.support.disks import hide
from tests.support.fakes import START, FakeClock, FakeMetadata
from tests.support.ports import free_port
from tests.support.sink_fixtures import cloud_event

TOKEN = "S3CR3T"


def config_of(state: Path, listen: str = "", token: str = "") -> Config:
    tables: dict[str, object] = {
        "state": {"path": str(state)},
        "http": {"listen": listen, **({"token": token} if token else {})},
        "sinks": [
            {"name": SINK, "type": "webhook", "url": "https://siem.example"},
            {"name": "ops", "type": "slack", "webhook_url": "https://slack.example"},
        ],
    }
    return configuration.parse(tables, file="b.toml", environ={})


@pytest.fixture
async def lived(
    state_path: Path, clock: FakeClock, metrics: Metrics, event_context: EventContext
) -> Path:
    """Return the state file of a forwarder that has seen an event and ended."""
    metadata = FakeMetadata()
    metadata.says(body_of(imds_event()))
    async with patient_outbox(state_path, router()) as outbox:
        await settle(outbox.database, ME, "")
        poller, _ = observed(metadata, outbox, event_context, clock, metrics)
        await poller.step()
    return state_path


async def status_in(config: Config, clock: FakeClock) -> StatusReport:
    names = [sink.name for sink in config.sinks]
    return (await status_query.status(config, names, clock, patience=0)).report


async def status_of(config: Config, clock: FakeClock) -> Any:
    """Return the status after encoding and decoding it as JSON."""
    return orjson.loads(msgspec.json.encode(await status_in(config, clock)))


# -- from the state file -------------------------------------------------------


async def test_status_of_a_forwarder_that_does_not_run(
    lived: Path, clock: FakeClock
) -> None:
    clock.pass_by(60)

    status = await status_of(config_of(lived), clock)

    assert status["vm"] == {
        "vmName": ME.vm_name,
        "vmId": ME.vm_id,
        "resourceId": ME.resource_id,
        "location": ME.location,
        "vmScaleSetName": ME.vm_scale_set_name,
    }
    assert status["document"] == {"incarnation": 2, "events": [imds_event()]}
    assert status["imds"]["lastSuccess"] == "2026-03-02T12:00:00Z"
    assert status["approvals"] == []


async def test_stored_status_keeps_its_bytes(lived: Path, clock: FakeClock) -> None:
    clock.pass_by(60)

    text = msgspec.json.encode(await status_in(config_of(lived), clock)).decode()

    event = orjson.dumps(imds_event()).decode()
    assert text == (
        f'{{"vm":{{"vmName":"{ME.vm_name}","vmId":"{ME.vm_id}",'
        f'"resourceId":"{ME.resource_id}","location":"{ME.location}",'
        f'"vmScaleSetName":"{ME.vm_scale_set_name}"}},'
        f'"document":{{"incarnation":2,"events":[{event}]}},'
        '"imds":{"lastSuccess":"2026-03-02T12:00:00Z","state":"not answering"},'
        '"sinks":[{"name":"siem","state":"not answering","pending":1,"dead":0,'
        '"oldestSeconds":60,"lastError":null},{"name":"ops","state":"not answering",'
        '"pending":0,"dead":0,"oldestSeconds":null,"lastError":null}],'
        '"approvals":[],"commands":[],'
        '"replies":{"pending":0,"dead":0,"lastError":null},'
        f'"statePath":"{lived}"}}'
    )


async def test_every_sink_of_the_configuration_is_shown(
    lived: Path, clock: FakeClock
) -> None:
    clock.pass_by(60)

    status = await status_of(config_of(lived), clock)

    one = {"name": SINK, "pending": 1, "dead": 0, "oldestSeconds": 60}
    other = {"name": "ops", "pending": 0, "dead": 0, "oldestSeconds": None}
    for shown, known in zip(status["sinks"], (one, other), strict=True):
        assert shown.items() >= known.items()
        assert shown["lastError"] is None


async def test_last_error_is_that_of_the_newest_dead_letter(
    lived: Path, clock: FakeClock
) -> None:
    async with patient_outbox(lived, router()) as outbox:
        (delivery,), _ = await outbox.deliveries.due(
            SINK, now=clock.now().timestamp(), limit=1
        )
        await outbox.deliveries.dead_letter(
            delivery, now=0, error="siem answered 400", reason=Reason.REJECTED
        )

    shown = (await status_of(config_of(lived), clock))["sinks"][0]

    assert (shown["dead"], shown["lastError"]) == (1, "siem answered 400")


async def test_age_is_never_negative(lived: Path, clock: FakeClock) -> None:
    """The clock may have been set back after the delivery was stored."""
    clock.jump(-3600)

    shown = (await status_of(config_of(lived), clock))["sinks"][0]

    assert shown["oldestSeconds"] == 0


async def test_ten_newest_outcomes_are_shown(lived: Path, clock: FakeClock) -> None:
    async with patient_outbox(lived, router()) as outbox:
        for number in range(12):
            decision = Decision(
                message=f"m{number}",
                key=EVENT_ID,
                event_id=EVENT_ID,
                sequence=number,
                state="relayed",
                data=orjson.dumps({"outcome": number}),
            )
            await outbox.commit([], now=number, decisions=[decision])

    status = await status_of(config_of(lived), clock)

    assert [a["outcome"] for a in status["approvals"]] == [*range(11, 1, -1)]


async def test_empty_state_file_gives_the_same_shape(
    state_path: Path, clock: FakeClock
) -> None:
    async with patient_outbox(state_path, router()):
        pass

    status = await status_of(config_of(state_path), clock)

    assert status["vm"]["vmName"] is None
    assert status["document"] == {"incarnation": None, "events": []}
    assert status["imds"]["lastSuccess"] is None


async def test_no_forwarder_and_no_state_file_is_one_clear_error(
    state_path: Path, clock: FakeClock
) -> None:
    with pytest.raises(
        OutboxError, match=r"there is no state file .*: no forwarder has run"
    ):
        await status_in(config_of(state_path), clock)

    assert not list(state_path.parent.iterdir())


async def test_forwarder_that_does_not_answer_is_one_clear_error(
    lived: Path, clock: FakeClock
) -> None:
    lock = StateLock(lived)
    lock.take()

    with pytest.raises(OutboxError, match="but it does not answer: is it st"):
        await status_in(config_of(lived), clock)
    Path(address_of(lived)).mkdir()
    with pytest.raises(OutboxError, match=r"answer: .* is not a socket: move it away"):
        await status_in(config_of(lived), clock)
    lock.release()


async def test_state_file_that_this_user_may_not_see_is_one_clear_error(
    lived: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide(lived, monkeypatch)
    with pytest.raises(OutboxError, match=r"no forwarder answers, .*of the service"):
        await status_in(config_of(lived), clock)


async def test_damaged_state_file_is_one_clear_error(
    lived: Path, clock: FakeClock
) -> None:
    with lived.open("r+b") as file:
        file.write(b"no database" * 100)

    with pytest.raises(OutboxCorruptError):
        await status_in(config_of(lived), clock)


async def test_small_file_of_something_else_is_not_called_empty(
    state_path: Path, clock: FakeClock
) -> None:
    state_path.write_bytes(b"no database " * 9)

    with pytest.raises(OutboxCorruptError, match="file is not a database"):
        await status_in(config_of(state_path), clock)


async def test_empty_state_file_is_one_clear_error(
    state_path: Path, clock: FakeClock
) -> None:
    state_path.touch()

    with pytest.raises(OutboxCorruptError, match="is not whole: it is empty"):
        await status_in(config_of(state_path), clock)

    assert state_path.stat().st_size == 0


# -- from the running forwarder ------------------------------------------------


@asynccontextmanager
async def running(
    config: Config, clock: FakeClock, metrics: Metrics
) -> AsyncIterator[None]:
    """Serve the health port of a forwarder that is starting."""
    source = StatusSource(clock, metrics, Path(config.state.path))
    async with health.serve(config.http, source):
        yield


async def test_another_forwarder_at_the_port_is_not_taken_for_ours(
    lived: Path, tmp_path: Path, clock: FakeClock, metrics: Metrics
) -> None:
    config = config_of(lived, f"127.0.0.1:{free_port()}")
    (at,) = config.http.addresses

    async with running(config_of(tmp_path / "other.db", at.text), clock, metrics):
        found = await status_query.status(config, [SINK], clock, patience=0)

    who = f"a forwarder with another state file: {tmp_path / 'other.db'}"
    assert (found.is_live, found.report.document.incarnation) == (False, 2)
    assert found.report.notes == [f"at {at.text} answers {who}"]


async def test_another_forwarder_is_named_where_ours_never_ran(
    tmp_path: Path, clock: FakeClock, metrics: Metrics
) -> None:
    config = config_of(tmp_path / "state.db", f"127.0.0.1:{free_port()}")
    (at,) = config.http.addresses

    async with running(config_of(tmp_path / "other.db", at.text), clock, metrics):
        with pytest.raises(OutboxError, match=r"no forwarder answers; at 127.+other"):
            await status_in(config, clock)


async def test_forwarder_that_refuses_the_token_is_not_silent(
    lived: Path, clock: FakeClock, metrics: Metrics
) -> None:
    config = config_of(lived, f"127.0.0.1:{free_port()}", "another")
    (at,) = config.http.addresses

    async with running(config_of(lived, at.text, TOKEN), clock, metrics):
        found = await status_query.status(config, [SINK], clock, patience=0)

    who = "a program that refuses http.token"
    assert (found.is_live, found.report.notes) == (
        False,
        [f"at {at.text} answers {who}"],
    )


async def test_forwarder_is_known_by_another_name_of_its_state_file(
    lived: Path, tmp_path: Path, clock: FakeClock, metrics: Metrics
) -> None:
    link = tmp_path / "link"
    link.symlink_to(lived.parent)
    config = config_of(lived, f"127.0.0.1:{free_port()}")
    (at,) = config.http.addresses

    async with running(config_of(link / lived.name, at.text), clock, metrics):
        status = await status_of(config, clock)

    assert status["imds"]["state"] == "starting"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])  # noqa: S104 - asked, too
async def test_running_forwarder_gives_the_status(
    host: str, lived: Path, clock: FakeClock, metrics: Metrics
) -> None:
    config = config_of(lived, f"{host}:{free_port()}", TOKEN)

    async with running(config, clock, metrics):
        status = await status_of(config, clock)

    assert status["imds"]["state"] == "starting"


@pytest.mark.parametrize("host", ["[::1]", "[::]"])
async def test_running_forwarder_is_asked_over_ipv6(
    host: str, lived: Path, clock: FakeClock, metrics: Metrics
) -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    config = config_of(lived, f"{host}:{free_port()}", TOKEN)

    async with running(config, clock, metrics):
        status = await status_of(config, clock)

    assert status["imds"]["state"] == "starting"


async def test_running_forwarder_is_asked_without_any_proxy(
    lived: Path, clock: FakeClock, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    config = config_of(lived, f"127.0.0.1:{free_port()}")

    async with running(config, clock, metrics):
        status = await status_of(config, clock)

    assert status["imds"]["state"] == "starting"


async def test_status_of_the_running_forwarder_is_the_same_shape_as_the_stored(
    lived: Path, clock: FakeClock, metrics: Metrics
) -> None:
    config = config_of(lived, f"127.0.0.1:{free_port()}")
    async with running(config, clock, metrics):
        asked = await status_of(config, clock)

    stored = await status_of(config, clock)

    assert set(asked) == set(stored)
    assert set(asked["vm"]) == set(stored["vm"])


@pytest.mark.parametrize(
    "answer",
    [
        web.Response(status=401),
        web.Response(status=500),
        web.Response(body=b"<html>"),
        web.Response(body=b"[]"),
        web.Response(body=b"\xff"),
        web.Response(body=b'{"\xff": 1}'),
        web.Response(body=b'{"vm": ' + b"[" * 100_000),
        web.Response(body=b"{}"),
        web.Response(body=b'{"version": {"number": "8.1"}}'),
        web.Response(status=302, headers={"Location": "/status"}),
    ],
    ids=[
        "401",
        "500",
        "html",
        "list",
        "bytes",
        "key",
        "deep",
        "empty",
        "another program",
        "loop",
    ],
)
async def test_state_file_is_read_if_another_program_answers(
    answer: web.Response, lived: Path, clock: FakeClock
) -> None:
    config = config_of(lived, f"127.0.0.1:{free_port()}")

    async with another_program(config, answer):
        status = await status_of(config, clock)

    assert status["document"]["incarnation"] == 2


@asynccontextmanager
async def another_program(config: Config, answer: web.Response) -> AsyncIterator[None]:
    async def handle(_: web.Request) -> web.Response:
        return answer

    app = web.Application()
    app.router.add_get("/{any:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    (at,) = config.http.addresses
    await web.TCPSite(runner, at.host, at.port).start()
    try:
        yield
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("listen", ["127.0.0.1:1", "127.0.0.1:0", ""])
async def test_state_file_is_read_if_nothing_answers(
    listen: str, lived: Path, clock: FakeClock
) -> None:
    """Without a health port, too: a forwarder that runs has a socket, and the lock."""
    state = "not answering"
    status = await status_of(config_of(lived, listen), clock)

    assert status["document"]["incarnation"] == 2
    assert status["imds"]["state"] == state
    assert [sink["state"] for sink in status["sinks"]] == [state, state]


async def test_token_of_a_forwarder_is_never_shown(
    lived: Path, clock: FakeClock
) -> None:
    status = await status_in(config_of(lived, token=TOKEN), clock)

    assert TOKEN not in str(status)


async def test_pending_work_shows_how_old_it_is(
    state_path: Path, clock: FakeClock
) -> None:
    async with patient_outbox(state_path, router()) as outbox:
        await outbox.commit([outgoing("a")], now=START.timestamp())
    clock.pass_by(90)

    shown = (await status_of(config_of(state_path), clock))["sinks"][0]

    assert shown["oldestSeconds"] == 90


# -- commands and traffic ------------------------------------------------------


async def test_last_commands_are_shown_without_what_they_wrote(
    lived: Path, clock: FakeClock, event_context: EventContext
) -> None:
    async with patient_outbox(lived, router()) as outbox:
        for number in range(12):
            result = failed(because=f"no {number}")
            done = from_command(event_context, result, START)
            await outbox.commit([done], now=number)

    status = await status_of(config_of(lived), clock)

    assert [one["reason"] for one in status["commands"]] == [
        f"no {number}" for number in range(11, 1, -1)
    ]
    last = status["commands"][0]
    assert (last["sink"], last["action"], last["outcome"]) == (
        *("drain", "prepare", "failed"),
    )
    assert "words" not in str(status)


async def test_status_without_forwarder_shows_out(
    lived: Path, clock: FakeClock
) -> None:
    assert "traffic" not in await status_of(config_of(lived), clock)

    status = await status_of(with_traffic(lived, free_port()), clock)

    assert status["traffic"] == {"traffic": "out", "reason": "no answer"}


async def test_status_asks_the_probe_if_the_health_port_is_off(
    lived: Path, clock: FakeClock
) -> None:
    config = with_traffic(lived, free_port())
    async with answering(config):
        status = await status_of(config, clock)

    assert status["traffic"] == {"traffic": "in"}


async def test_doctor_shows_the_answer_of_the_probe(lived: Path) -> None:
    config = with_traffic(lived, free_port())
    async with answering(config):
        (finding,) = await status_query.examine_traffic(config.traffic, is_running=True)

    assert finding == Finding("ok", f"traffic: {listen_of(config)} says in")


async def test_doctor_warns_if_no_forwarder_answers_the_probe(
    lived: Path,
) -> None:
    config = with_traffic(lived, free_port())

    (idle,) = await status_query.examine_traffic(config.traffic, is_running=False)
    (other,) = await status_query.examine_traffic(config.traffic, is_running=True)

    assert idle.result == "warning"
    assert idle.text == (
        f"traffic: no answer at {listen_of(config)}: balancers treat this VM as out"
    )
    assert "start the forwarder" in idle.advice
    assert other.result == "fault"
    assert "restart the forwarder" in other.advice


async def test_doctor_finds_a_port_held_by_another_program(lived: Path) -> None:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:
        config = with_traffic(lived, taken.getsockname()[1])
        (finding,) = await status_query.examine_traffic(
            config.traffic, is_running=False
        )

    assert finding.result == "fault"
    assert "(Address already in use" in finding.text


async def test_doctor_checks_no_unconfigured_probe(lived: Path) -> None:
    config = config_of(lived)

    assert await status_query.examine_traffic(config.traffic, is_running=False) == []


def failed(because: str) -> CommandResult:
    return CommandResult(
        sink="drain",
        outcome="failed",
        action="prepare",
        cause=cloud_event(),
        exit_code=1,
        signal=None,
        timed_out=False,
        seconds=1.5,
        attempts=1,
        output="words",
        reason=because,
    )


def with_traffic(state: Path, port: int) -> Config:
    tables: dict[str, object] = {
        "state": {"path": str(state)},
        "http": {"listen": ""},
        "traffic": {"listen": f"127.0.0.1:{port}"},
    }
    return configuration.parse(tables, file="b.toml", environ={})


def listen_of(config: Config) -> str:
    assert config.traffic is not None
    return config.traffic.addresses[0].text


@asynccontextmanager
async def answering(config: Config) -> AsyncIterator[None]:
    """Serve the traffic probe of a configuration, as a forwarder does."""
    assert config.traffic is not None
    async with open_probe(config, config.traffic, FakeClock(), Metrics((), "1")):
        yield


def test_doctor_warns_if_the_forwarder_runs_with_other_sinks() -> None:
    answer = replace(nothing_known("ok"), sinks=[SinkReport(SINK, "ok")], missing=[])

    (other,) = status_query.examine_sinks(answer, [SINK, "ops"])
    same = status_query.examine_sinks(answer, [SINK])
    starting = status_query.examine_sinks(nothing_known("starting"), [SINK])

    assert other.result == "warning"
    assert "(ops)" in other.text
    assert same == starting == status_query.examine_sinks(None, [SINK]) == []
