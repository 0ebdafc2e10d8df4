"""The IMDS client against a real server on loopback: what the service demands."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from bridge.events.build import EventContext
from bridge.events.document import MAX_BYTES
from bridge.events.start_result import StartAnswer, StartResult
from bridge.foundation.errors import (
    MetadataError,
    MetadataRefusedError,
    MetadataUnavailableError,
)
from bridge.foundation.sections import Reader
from bridge.foundation.values import Duration
from bridge.imds.client import MetadataClient, open_client
from bridge.imds.config import ImdsConfig
from bridge.imds.poller import Metadata, Poller
from bridge.outbox.store import Outbox
from bridge.telemetry.metrics import Metrics
from tests.support.builders import EVENT_ID, body_of, imds_event, observed
from tests.support.fakes import FakeClock, turns

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
BODY = body_of(imds_event())

_METADATA: type[Metadata] = MetadataClient


@dataclass
class Imds:
    """A server that answers as told and keeps what it was asked."""

    answer: Handler
    requests: list[web.Request] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        self.bodies.append(await request.read())
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            return await self.answer(request)
        finally:
            self.in_flight -= 1

    def says(self, status: int = 200, body: bytes = BODY, **headers: str) -> None:
        async def answer(request: web.Request) -> web.Response:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            return web.Response(status=status, body=body, headers=named)

        self.answer = answer


@pytest.fixture
async def imds() -> Imds:
    server = Imds(answer=_never)
    server.says()
    return server


async def _never(request: web.Request) -> web.StreamResponse:
    raise NotImplementedError


@pytest.fixture
async def endpoint(imds: Imds) -> AsyncIterator[str]:
    application = web.Application(client_max_size=2**24)
    application.router.add_route("*", "/{path:.*}", imds.handle)
    async with TestServer(application) as server:
        yield str(server.make_url("/")).rstrip("/")


@pytest.fixture
async def client(
    endpoint: str, clock: FakeClock, metrics: Metrics
) -> AsyncIterator[MetadataClient]:
    async with open_client(config(endpoint), clock, metrics) as opened:
        yield opened


def config(endpoint: str, **values: object) -> ImdsConfig:
    table = {"endpoint": endpoint, **values}
    section = Reader("f").section(ImdsConfig, table, "imds")
    assert section is not None
    return section


async def get(client: MetadataClient, etag: str | None = None) -> bytes | None:
    return (await client.fetch(etag=etag, timeout=30)).body


def requests_total(metrics: Metrics, method: str, outcome: str) -> float:
    labels = {"method": method, "outcome": outcome}
    found = metrics.registry.get_sample_value("sebridge_imds_requests_total", labels)
    return found or 0


# -- what is asked -------------------------------------------------------------


async def test_document_is_asked_for_as_the_service_demands(
    client: MetadataClient, imds: Imds
) -> None:
    assert await get(client) == BODY

    (request,) = imds.requests
    assert request.method == "GET"
    assert request.path_qs == "/metadata/scheduledevents?api-version=2020-07-01"
    assert request.headers["Metadata"] == "true"
    assert "X-Forwarded-For" not in request.headers
    assert "Cookie" not in request.headers
    assert "If-None-Match" not in request.headers


@pytest.mark.parametrize("version", ["2017-03-01", "2019-08-01", "2020-07-01"])
async def test_document_is_asked_for_in_the_version_configured(
    endpoint: str, clock: FakeClock, metrics: Metrics, imds: Imds, version: str
) -> None:
    settings = config(f"{endpoint}/", api_version=version)
    async with open_client(settings, clock, metrics) as client:
        await get(client)

    assert imds.requests[0].path_qs == (
        f"/metadata/scheduledevents?api-version={version}"
    )


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
async def test_no_proxy_is_used_whatever_the_environment_says(
    endpoint: str,
    clock: FakeClock,
    metrics: Metrics,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    async with open_client(config(endpoint), clock, metrics) as client:
        assert await get(client) == BODY
        clock.pass_by(1)
        answer = await client.start(EVENT_ID, incarnation=None)
        assert answer.result is StartResult.ACCEPTED


async def test_cookies_are_not_kept(
    client: MetadataClient, clock: FakeClock, imds: Imds
) -> None:
    imds.says(Set_Cookie="a=b")
    await get(client)
    clock.pass_by(1)
    await get(client)

    assert "Cookie" not in imds.requests[1].headers


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_not_followed(
    client: MetadataClient, imds: Imds, status: int
) -> None:
    imds.says(status, Location="/elsewhere")

    with pytest.raises(MetadataUnavailableError) as caught:
        await get(client)

    assert caught.value.outcome == str(status)
    assert len(imds.requests) == 1


# -- what is answered ----------------------------------------------------------


async def test_etag_and_date_are_read(client: MetadataClient, imds: Imds) -> None:
    imds.says(ETag='"7"', Date="Mon, 02 Mar 2026 12:00:00 GMT")

    answer = await client.fetch(etag=None, timeout=30)

    assert answer.etag == '"7"'
    assert answer.date == datetime(2026, 3, 2, 12, tzinfo=UTC)


@pytest.mark.parametrize("date", ["", "soon"])
async def test_date_that_says_nothing_counts_as_absent(
    client: MetadataClient, imds: Imds, date: str
) -> None:
    imds.says(Date=date)

    assert (await client.fetch(etag=None, timeout=30)).date is None


async def test_document_that_has_not_changed_has_no_body(
    client: MetadataClient, imds: Imds
) -> None:
    imds.says(304, b"", ETag="7")

    assert await get(client, etag="7") is None
    assert imds.requests[0].headers["If-None-Match"] == "7"


async def test_etag_that_no_header_can_hold_is_not_kept(
    client: MetadataClient, imds: Imds
) -> None:
    """Sent back it would raise what nobody expects, at each poll from then on."""

    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.write(
            b"HTTP/1.1 200 OK\r\nETag: \xff\xfe\r\nContent-Length: 2\r\n\r\n{}"
        )
        return web.Response()

    imds.answer = answer

    assert (await client.fetch(etag=None, timeout=30)).etag is None


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, MetadataRefusedError),
        (403, MetadataRefusedError),
        *((s, MetadataUnavailableError) for s in (201, 204, 401, 404, 405, 410, 429)),
        *((s, MetadataUnavailableError) for s in (500, 502, 503, 599)),
    ],
)
async def test_status_becomes_an_error_that_names_it(
    client: MetadataClient,
    imds: Imds,
    metrics: Metrics,
    status: int,
    kind: type[MetadataError],
) -> None:
    imds.says(status)

    with pytest.raises(kind, match=f"IMDS answered {status} to GET") as caught:
        await get(client)

    assert caught.value.outcome == str(status)
    assert requests_total(metrics, "GET", str(status)) == 1


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7),
        ("0", 0),
        ("Mon, 02 Mar 2026 12:01:00 GMT", 60),
        ("Mon, 02 Mar 2026 11:00:00 GMT", 0),
        ("soon", None),
        ("-7", None),
        (None, None),
    ],
)
async def test_wish_for_quiet_is_read_in_both_forms(
    client: MetadataClient, imds: Imds, header: str | None, seconds: float | None
) -> None:
    named = {} if header is None else {"Retry_After": header}
    imds.says(429, b"", **named)

    with pytest.raises(MetadataUnavailableError) as caught:
        await get(client)

    assert caught.value.retry_after == seconds


async def test_answers_are_counted(
    client: MetadataClient, metrics: Metrics, clock: FakeClock
) -> None:
    await get(client)
    clock.pass_by(1)
    await client.start(EVENT_ID, incarnation=None)

    assert requests_total(metrics, "GET", "ok") == 1
    assert requests_total(metrics, "POST", "ok") == 1


# -- the network ---------------------------------------------------------------


async def test_answer_that_takes_too_long_is_a_time_out(
    client: MetadataClient, imds: Imds, metrics: Metrics
) -> None:
    hang = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        await hang.wait()
        return web.Response()

    imds.answer = answer

    with pytest.raises(MetadataUnavailableError) as caught:
        await client.fetch(etag=None, timeout=0.05)

    hang.set()
    assert caught.value.outcome == "timeout"
    assert requests_total(metrics, "GET", "timeout") == 1


async def test_body_that_never_ends_is_a_time_out(
    client: MetadataClient, imds: Imds
) -> None:
    hang = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"{")
        await hang.wait()
        return response

    imds.answer = answer

    with pytest.raises(MetadataUnavailableError) as caught:
        await client.fetch(etag=None, timeout=0.05)

    hang.set()
    assert caught.value.outcome == "timeout"


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nnot a chunk\r\n",
        b"nonsense\r\n\r\n",
    ],
)
async def test_answer_that_breaks_off_is_unavailable(
    client: MetadataClient, imds: Imds, metrics: Metrics, sent: bytes
) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.write(sent)
        request.transport.close()
        return web.Response()

    imds.answer = answer

    with pytest.raises(MetadataUnavailableError) as caught:
        await get(client)

    assert caught.value.outcome == "reset"
    assert requests_total(metrics, "GET", "reset") == 1


async def test_broken_connection_is_not_tried_again_at_once(
    client: MetadataClient, imds: Imds, clock: FakeClock
) -> None:
    await get(client)
    clock.pass_by(1)

    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    imds.answer = answer

    with pytest.raises(MetadataUnavailableError, match="cannot be reached"):
        await get(client)

    assert len(imds.requests) == 2


@pytest.mark.parametrize(
    ("endpoint", "outcome"),
    [("http://127.0.0.1:9", "refused"), ("http://255.255.255.255", "unreachable")],
)
async def test_nobody_there_is_unavailable(
    endpoint: str, outcome: str, clock: FakeClock, metrics: Metrics
) -> None:
    async with open_client(config(endpoint), clock, metrics) as client:
        with pytest.raises(MetadataUnavailableError) as caught:
            await get(client)

    assert caught.value.outcome == outcome
    assert requests_total(metrics, "GET", outcome) == 1
    assert str(caught.value).endswith("(ClientConnectorError)")


@pytest.mark.parametrize("size", [MAX_BYTES, MAX_BYTES + 1, 4 * MAX_BYTES])
async def test_no_more_of_a_body_is_read_than_the_parser_can_refuse(
    client: MetadataClient, imds: Imds, size: int
) -> None:
    imds.says(body=b" " * size)

    body = await get(client)

    assert body is not None
    assert len(body) == min(size, MAX_BYTES + 1)


async def test_next_request_works_after_one_that_failed(
    client: MetadataClient, imds: Imds, clock: FakeClock
) -> None:
    imds.says(body=b" " * 3 * MAX_BYTES)
    await get(client)
    imds.says()
    clock.pass_by(1)

    assert await get(client) == BODY


# -- one at a time ------------------------------------------------------------------


@pytest.fixture
def poller(
    client: MetadataClient,
    outbox: Outbox,
    event_context: EventContext,
    clock: FakeClock,
    metrics: Metrics,
) -> Poller:
    return observed(client, outbox, event_context, clock, metrics)[0]


async def test_one_request_is_in_flight_at_a_time(
    client: MetadataClient, poller: Poller, imds: Imds
) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        await turns()
        return web.Response(body=b"{}")

    imds.answer = answer

    async def instance() -> None:
        async with poller.alone:
            await client.instance()

    await asyncio.gather(poller.step(), instance(), poller.step(), instance())

    assert (len(imds.requests), imds.most_in_flight) == (4, 1)


async def test_caller_that_is_cancelled_leaves_its_turn_to_the_next(
    client: MetadataClient, poller: Poller, imds: Imds
) -> None:
    hang = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        await hang.wait()
        return web.Response()

    imds.answer = answer
    first = asyncio.ensure_future(poller.step())
    while not imds.requests:
        await turns()
    first.cancel()
    hang.set()
    imds.says()

    await poller.step()
    assert poller.imds_state == "ok"


# -- StartRequests -------------------------------------------------------------


async def test_approval_is_relayed_as_the_service_demands(
    client: MetadataClient, imds: Imds
) -> None:
    answer = await client.start("ab-CD", incarnation=5)

    assert answer == StartAnswer(result=StartResult.ACCEPTED, status=200)

    (request,) = imds.requests
    assert request.method == "POST"
    assert request.path_qs == "/metadata/scheduledevents?api-version=2020-07-01"
    assert request.headers["Metadata"] == "true"
    assert request.headers["Content-Type"] == "application/json"
    assert imds.bodies == [b'{"StartRequests":[{"EventId":"ab-CD"}]}']


@pytest.mark.parametrize(
    ("incarnation", "more"), [(5, b',"DocumentIncarnation":"5"'), (None, b"")]
)
async def test_approval_in_the_first_version_names_the_document(
    client: MetadataClient, imds: Imds, incarnation: int | None, more: bytes
) -> None:
    client.config = config(client.config.endpoint, api_version="2017-03-01")
    await client.start("a", incarnation=incarnation)

    assert imds.bodies == [b'{"StartRequests":[{"EventId":"a"}]%b}' % more]


@pytest.mark.parametrize(
    ("status", "result"),
    [
        (200, "accepted"),
        (400, "refused"),
        *((status, "unavailable") for status in (302, 304, 403, 404, 405, 410, 429)),
        *((status, "in-doubt") for status in (500, 502, 503)),
    ],
)
async def test_answer_to_an_approval_says_what_became_of_it(
    client: MetadataClient, imds: Imds, metrics: Metrics, status: int, result: str
) -> None:
    imds.says(status, b"")

    answer = await client.start("a", incarnation=None)

    assert (answer.result, answer.status, answer.retry_after) == (result, status, None)
    outcome = "ok" if status == 200 else str(status)
    assert requests_total(metrics, "POST", outcome) == 1


async def test_approval_that_imds_wants_later_says_when(
    client: MetadataClient, imds: Imds
) -> None:
    imds.says(429, b"", Retry_After="7")

    answer = await client.start("a", incarnation=None)

    assert answer.result is StartResult.UNAVAILABLE
    assert (answer.status, answer.retry_after) == (429, 7)


async def test_approval_without_an_answer_is_in_doubt(
    client: MetadataClient, imds: Imds
) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    imds.answer = answer

    found = await client.start("a", incarnation=None)

    assert (found.result, found.status) == (StartResult.IN_DOUBT, None)


async def test_approval_has_the_time_of_any_request(
    endpoint: str, clock: FakeClock, metrics: Metrics, imds: Imds
) -> None:
    hang = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        await hang.wait()
        return web.Response()

    imds.answer = answer
    settings = config(endpoint, request_timeout="500ms")
    async with open_client(settings, clock, metrics) as client:
        found = await client.start("a", incarnation=None)
        hang.set()

    assert found.result is StartResult.IN_DOUBT
    assert found.text == "IMDS did not answer the POST in time"


# -- who this VM is ------------------------------------------------------------


async def test_instance_metadata_is_asked_for_as_the_service_demands(
    client: MetadataClient, imds: Imds
) -> None:
    imds.says(body=b'{"name": "web-3", "vmId": "x", "tagsList": []}')

    assert await client.instance() == {"name": "web-3", "vmId": "x", "tagsList": []}
    assert imds.requests[0].path_qs == (
        "/metadata/instance/compute?api-version=2021-12-13"
    )
    assert imds.requests[0].headers["Metadata"] == "true"


async def test_instance_metadata_needs_no_distance_to_the_document(
    client: MetadataClient, clock: FakeClock, imds: Imds
) -> None:
    await get(client)
    imds.says(body=b"{}")
    await client.instance()

    assert clock.waits == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b"<html>",
        b'{"name": "\xff"}',
        b'{"a":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        b'{"a": "' + b"x" * MAX_BYTES + b'"}',
    ],
)
async def test_instance_metadata_that_is_no_object_is_unavailable(
    client: MetadataClient, imds: Imds, body: bytes
) -> None:
    imds.says(body=body)

    with pytest.raises(MetadataUnavailableError) as caught:
        await client.instance()

    assert caught.value.outcome == "malformed"


@pytest.mark.parametrize("status", [400, 404, 429, 500])
async def test_instance_metadata_that_cannot_be_had_is_an_error(
    client: MetadataClient, imds: Imds, status: int
) -> None:
    imds.says(status)

    with pytest.raises(MetadataError) as caught:
        await client.instance()

    assert caught.value.outcome == str(status)


# -- options -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("endpoint", "169.254.169.254", "must be a URL"),
        ("endpoint", "ftp://x", "must be a URL"),
        ("endpoint", "http://", "must be a URL"),
        ("endpoint", "http://[::1", "must be a URL"),
        ("poll_interval", "249ms", "at least 250ms"),
        ("request_timeout", 0, "more than 0"),
        ("first_request_timeout", 0, "more than 0"),
        ("api_version", "2021-01-01", '"2017-03-01", "2017-08-01"'),
    ],
)
def test_section_refuses_what_the_service_does_not_allow(
    key: str, value: object, what: str
) -> None:
    reader = Reader("f")
    assert reader.section(ImdsConfig, {key: value}, "imds") is None

    assert reader.faults[0].startswith(f"f: imds.{key}: ")
    assert what in reader.faults[0]


def test_four_polls_a_second_are_allowed() -> None:
    reader = Reader("f")
    found = reader.section(ImdsConfig, {"poll_interval": "250ms"}, "imds")

    assert found is not None
    assert (found.poll_interval, reader.faults) == (0.25, [])


def test_section_has_the_defaults_of_the_service() -> None:
    assert config("http://169.254.169.254") == ImdsConfig()
    assert ImdsConfig().poll_interval == Duration(1)
