"""The port of the probe on a real socket: answers, connections, and timeouts."""

import asyncio
import contextlib
import os
import socket
import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import orjson
import pytest
from aiohttp import web

from bridge.app.traffic import open_probe
from bridge.configuration import load as configuration
from bridge.foundation.clock import SystemClock
from bridge.foundation.values import Duration
from bridge.outbox.statefile import glance
from bridge.outbox.store import Outbox
from bridge.telemetry.metrics import Metrics
from bridge.traffic.config import TrafficConfig
from bridge.traffic.probe import inherited_listeners, open_app, serve
from tests.support.builders import patient_outbox
from tests.support.fakes import FakeClock, settled
from tests.support.ports import free_port, has_ipv6
from tests.support.stopwatch import Stopwatch

ANYWHERE = TrafficConfig(listen="127.0.0.1:0")
OUT: dict[str, object] = {
    "traffic": "out",
    "reason": "started",
    "eventId": "X",
    "since": "2026",
}


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="no IPv6 on this machine")


@dataclass
class Played:
    """A fake rotation whose standing the test sets."""

    stands: dict[str, object] = field(default_factory=lambda: {"traffic": "in"})

    def shown(self) -> Mapping[str, object]:
        return self.stands


@dataclass
class Asked:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> object:
        return orjson.loads(self.body)


async def raw(port: int, text: str, host: str = "127.0.0.1") -> Asked:
    """Send raw bytes, and read until the other side closes the connection."""
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(text.encode())
    async with asyncio.timeout(60):
        answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    return Asked(int(first.split()[1]), headers, body)


async def ask(port: int, method: str = "GET", path: str = "/") -> Asked:
    return await raw(port, f"{method} {path} HTTP/1.1\r\nHost: anybody\r\n\r\n")


@asynccontextmanager
async def probe(played: Played, config: TrafficConfig = ANYWHERE) -> AsyncIterator[int]:
    listener = socket.create_server(("127.0.0.1", 0))
    async with (
        open_app(config.app, config.app_timeout, SystemClock()) as app,
        serve(config, played, app, FakeClock(), listener),
    ):
        yield listener.getsockname()[1]


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
@pytest.mark.parametrize(
    ("stands", "status"), [({"traffic": "in"}, 200), (OUT, 503)], ids=["in", "out"]
)
async def test_root_answers_the_rotation_and_closes(
    method: str, stands: dict[str, object], status: int
) -> None:
    async with probe(Played(stands)) as port:
        found = await ask(port, method)

    assert found.status == status
    assert found.headers["Connection"] == "close"
    assert found.headers["Cache-Control"] == "no-store"
    assert found.headers["Content-Type"] == "application/json"
    assert found.headers["Server"] == "sebridge"
    assert found.body == b"" if method == "HEAD" else found.json == stands


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/", 405),
        ("PUT", "/", 405),
        ("DELETE", "/", 405),
        ("GET", "/status", 404),
        ("GET", "/metrics", 404),
        ("POST", "/livez", 404),
        ("GET", "/?probe=1", 200),
    ],
)
async def test_nothing_else_is_answered(method: str, path: str, status: int) -> None:
    async with probe(Played()) as port:
        found = await ask(port, method, path)

    assert found.status == status
    assert found.headers["Connection"] == "close"
    if status == 405:
        assert found.headers["Allow"] == "GET, HEAD, OPTIONS"


@pytest.mark.parametrize(
    "text",
    [
        "OPTIONS / HTTP/1.0\r\n\r\n",  # the default request of HAProxy
        "GET / HTTP/1.0\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: 10.0.0.4\r\nConnection: keep-alive\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: evil.example\r\nUser-Agent: LB Agent\r\n\r\n",
    ],
)
async def test_every_valid_request_is_answered_and_closed(text: str) -> None:
    async with probe(Played()) as port:
        assert (await raw(port, text)).status == 200


async def test_broken_request_is_one_quiet_line_and_does_not_end_the_probe(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    async with probe(Played()) as port:
        caplog.clear()
        assert (await raw(port, "GET / HTTP/x.y\r\n\r\n")).status == 400
        assert (await ask(port)).status == 200
    assert [(one.message, one.exc_info) for one in caplog.records] == [
        ("malformed request", None)
    ]


async def test_path_for_the_health_of_a_scale_set_is_always_200() -> None:
    out: dict[str, object] = {"traffic": "out", "reason": "started"}
    async with probe(Played(out)) as port:
        found = await ask(port, "GET", "/alive")
        assert (await ask(port)).status == 503

    assert found.status == 200
    assert found.body == b'{"ApplicationHealthState":"Healthy"}'


async def test_257_connections_leave_room_for_the_next_probe() -> None:
    async with probe(Played()) as port, contextlib.AsyncExitStack() as stack:
        for _ in range(257):
            _, silent = await asyncio.open_connection("127.0.0.1", port)
            stack.callback(silent.close)

        assert (await ask(port)).status == 200


@pytest.mark.slow
@pytest.mark.integration
async def test_incomplete_request_is_closed_after_5_s() -> None:
    async with probe(Played()) as port:
        watch = Stopwatch()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 60) == b""
        writer.close()

        assert watch.wall > 4
        assert watch.seconds < 8


@needs_ipv6
@pytest.mark.parametrize("listen", ["[::]:{}", ("0.0.0.0:{}", "[::]:{}")])
async def test_balancer_may_probe_by_either_family(
    listen: str | tuple[str, ...],
) -> None:
    number = free_port()
    one = listen.format(number) if isinstance(listen, str) else ""
    listed = () if one else tuple(text.format(number) for text in listen)
    config = TrafficConfig(listen=one or listed)
    get = "GET / HTTP/1.1\r\nHost: anybody\r\n\r\n"
    async with serve(config, Played(), None, FakeClock()) as port:
        found = [await raw(number, get, host) for host in ("127.0.0.1", "::1")]

    assert [one.status for one in found] == [200, 200]
    assert port.fault is None


async def test_taken_port_is_said_and_served_when_it_is_free(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        config = TrafficConfig(listen=f"127.0.0.1:{number}")
        serving = serve(config, Played(), None, clock)
        port = await serving.__aenter__()
        await clock.advance(12)
        fault = port.fault
    await clock.advance(5)

    assert (await ask(number)).status == 200
    assert port.fault is None
    assert str(fault).startswith(f"traffic.listen: cannot listen on {config.listen}: ")
    assert [vars(r)["fault"] for r in caplog.records if r.levelname == "ERROR"] == [
        fault
    ]
    await serving.__aexit__(None, None, None)


# -- the application -----------------------------------------------------------------


@dataclass
class Application:
    """A fake application whose health the test sets."""

    status: int = 200
    gate: asyncio.Event | None = None
    asked: int = 0
    port: int = 0

    async def answer(self, _: web.Request) -> web.Response:
        self.asked += 1
        if self.gate is not None:
            await self.gate.wait()
        return web.Response(status=self.status, headers={"Location": "/other"})

    @asynccontextmanager
    async def running(self) -> AsyncIterator[TrafficConfig]:
        server = web.Application()
        server.router.add_get("/health", self.answer)
        runner = web.AppRunner(server, shutdown_timeout=0.1)
        await runner.setup()
        listener = socket.create_server(("127.0.0.1", 0))
        await web.SockSite(runner, listener).start()
        self.port = listener.getsockname()[1]
        url = f"http://127.0.0.1:{self.port}/health"
        try:
            yield TrafficConfig(
                listen="127.0.0.1:0", app=url, app_timeout=Duration(0.4)
            )
        finally:
            await runner.cleanup()


@pytest.mark.parametrize(
    ("status", "answered"), [(200, 200), (204, 200), (302, 503), (404, 503), (500, 503)]
)
async def test_answer_in_also_needs_a_healthy_application(
    status: int, answered: int
) -> None:
    app = Application(status)
    async with app.running() as config, probe(Played(), config) as port:
        found = await ask(port)

    assert found.status == answered
    assert isinstance(found.json, dict)
    assert found.json["traffic"] == ("in" if answered == 200 else "out")
    assert found.json.get("reason") == (None if answered == 200 else "app")


async def test_each_probe_checks_the_application_and_since_is_kept() -> None:
    app = Application(500)
    async with app.running() as config, probe(Played(), config) as port:
        first, second = (await ask(port)).json, (await ask(port)).json
        app.status = 200
        well = await ask(port)

    assert first == second
    assert well.status == 200
    assert app.asked == 3


async def test_application_is_not_checked_while_this_vm_is_out() -> None:
    app = Application()
    async with app.running() as config, probe(Played(OUT), config) as port:
        assert (await ask(port)).json == OUT

    assert app.asked == 0


async def test_slow_application_delays_an_answer_by_app_timeout_at_most() -> None:
    app = Application(gate=asyncio.Event())
    async with app.running() as config, probe(Played(), config) as port:
        watch = Stopwatch()
        found = await asyncio.gather(*(ask(port) for _ in range(5)))

        assert watch.seconds < 2
        assert {one.status for one in found} == {503}
        assert app.asked == 1  # one request for all waiting probes


async def test_event_during_the_application_check_counts() -> None:
    app, played = Application(gate=asyncio.Event()), Played()
    async with app.running() as config, probe(played, config) as port:
        asking = asyncio.create_task(ask(port))
        while not app.asked:
            await asyncio.sleep(0.01)
        played.stands = OUT
        assert app.gate is not None
        app.gate.set()

        assert (await asking).json == OUT


async def test_missing_application_is_unhealthy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    config = TrafficConfig(listen="127.0.0.1:0", app=f"http://127.0.0.1:{port}/")
    async with probe(Played(), config) as at:
        assert (await ask(at)).status == 503


async def test_stop_cancels_the_application_check() -> None:
    app = Application(gate=asyncio.Event())
    async with app.running() as config:
        async with probe(Played(), config) as port:
            asking = asyncio.create_task(ask(port))
            while not app.asked:
                await asyncio.sleep(0.01)
        with contextlib.suppress(Exception):
            await asking


# -- a listener from systemd ----------------------------------------------------------


def test_listener_is_used_only_if_passed_to_this_process() -> None:
    mine = str(os.getpid())
    for environ in (
        {},
        {"LISTEN_PID": "1", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "traffic"},
        {"LISTEN_PID": mine, "LISTEN_FDS": "one", "LISTEN_FDNAMES": "traffic"},
        {"LISTEN_PID": mine, "LISTEN_FDS": "1", "LISTEN_FDNAMES": "other"},
        {"LISTEN_PID": mine, "LISTEN_FDS": "0", "LISTEN_FDNAMES": ""},
    ):
        given = dict(environ)

        assert inherited_listeners(given) == {}
        assert given == {}  # child processes do not use it


@pytest.mark.skipif(os.name != "posix", reason="descriptors of POSIX")
def test_descriptor_that_does_not_listen_is_not_used(tmp_path: Path) -> None:
    file, silent = (tmp_path / "file").open("w"), socket.socket()
    with file, silent, socket.create_server(("127.0.0.1", 0)) as listening:
        highest = 3 + max(file.fileno(), silent.fileno(), listening.fileno())
        names = {file.fileno(): "traffic", silent.fileno(): "traffic"}
        names[listening.fileno()] = "traffic"
        environ = {
            "LISTEN_PID": str(os.getpid()),
            "LISTEN_FDS": str(highest),
            "LISTEN_FDNAMES": ":".join(
                names.get(number, "other") for number in range(3, highest + 3)
            ),
        }

        listeners = inherited_listeners(environ)

        assert list(listeners) == ["traffic"]
        found = listeners["traffic"]
        assert found.fileno() == listening.fileno()
        assert not os.get_inheritable(found.fileno())
        found.detach()
        silent.getsockname()
        file.write("still open")


# -- before the state file is open ----------------------------------------------------


async def test_glance_reads_stored_values_and_changes_nothing(
    outbox: Outbox, state_path: Path
) -> None:
    await outbox.observations.save({"traffic": b"1"})
    await settled(outbox)

    assert await glance(state_path, ["traffic", "other"]) == {"traffic": b"1"}


@pytest.mark.parametrize("content", [None, b"", b"no database" * 100])
async def test_glance_at_another_file_finds_nothing(
    tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "state.db"
    if content is not None:
        path.write_bytes(content)

    assert await glance(path, ["traffic"]) == {}
    assert path.exists() == (content is not None)


async def test_glance_waits_no_longer_than_it_may(
    outbox: Outbox, state_path: Path
) -> None:
    await outbox.observations.save({"traffic": b"1"})

    assert await glance(state_path, ["traffic"], patience=0) == {}


@pytest.mark.parametrize("name", ["checkpoint", "identity", "traffic"])
async def test_unreadable_stored_values_do_not_stop_the_start(
    outbox: Outbox, state_path: Path, name: str
) -> None:
    await outbox.observations.save({name: b"\xff not ours"})
    tables = {
        "state": {"path": str(state_path)},
        "http": {"listen": ""},
        "traffic": {"listen": "127.0.0.1:0"},
    }
    config = configuration.parse(tables, file="here", environ={})
    assert config.traffic is not None
    metrics = Metrics([], "1", has_traffic=True)

    async with open_probe(config, config.traffic, FakeClock(), metrics) as found:
        assert found.rotation.shown() == {"traffic": "in"}
        assert metrics.registry.get_sample_value("sebridge_traffic_in") == 1


def test_query_of_glance_fits_the_schema(state_path: Path) -> None:
    """``glance`` has its own query of the table ``meta``, which must fit the schema."""

    async def names() -> None:
        async with patient_outbox(state_path, None):  # type: ignore[arg-type]  # not routed
            pass

    asyncio.run(names())
    with contextlib.closing(sqlite3.connect(state_path)) as db:
        assert db.execute("SELECT key, value FROM meta LIMIT 1") is not None
