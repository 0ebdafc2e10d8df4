"""The webhook sink: modes, headers, and what its configuration refuses."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote

import orjson
import pytest
from aiohttp import web
from cloudevents.core.bindings.http import HTTPMessage, from_http
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent as ReadEvent
from hypothesis import given
from hypothesis import strategies as st

from bridge.foundation.errors import (
    ConfigError,
    Reason,
    RefusedDeliveryError,
    TransientDeliveryError,
)
from bridge.sinks.base import Probing, Resources
from bridge.sinks.webhook.presets.preset import header_value, render_binary
from tests.support.configurations import webhook
from tests.support.sink_fixtures import (
    Inbox,
    cloud_event,
    config_faults,
    opened_sink,
)

URL = "https://siem.example/ingest"


async def test_structured_mode_is_the_default_because_others_must_be_asked_for(
    resources: Resources, inbox: Inbox
) -> None:
    async with opened_sink(resources, webhook(url=f"{inbox.url}/in?a=b")) as sink:
        await sink.deliver(cloud_event())

    (request,) = inbox.received
    assert (request.method, request.path) == ("POST", "/in?a=b")
    content_type = "application/cloudevents+json; charset=utf-8"
    assert request.headers["Content-Type"] == content_type
    assert request.headers["User-Agent"] == "sebridge/test"
    assert request.body == cloud_event().to_json()


async def test_batch_mode_posts_an_array_of_one(
    resources: Resources, inbox: Inbox
) -> None:
    options = webhook(url=inbox.url, content_mode="batch")
    async with opened_sink(resources, options) as sink:
        await sink.deliver(cloud_event())

    (request,) = inbox.received
    content_type = "application/cloudevents-batch+json; charset=utf-8"
    assert request.headers["Content-Type"] == content_type
    assert orjson.loads(request.body) == [orjson.loads(cloud_event().to_json())]


async def test_binary_mode_is_read_back_by_the_sdk(
    resources: Resources, inbox: Inbox
) -> None:
    event = cloud_event()
    options = webhook(url=inbox.url, content_mode="binary")
    async with opened_sink(resources, options) as sink:
        await sink.deliver(event)

    (request,) = inbox.received
    message = HTTPMessage(headers=dict(request.headers), body=request.body)
    read = from_http(message, JSONFormat(), ReadEvent)
    assert request.headers["Content-Type"] == "application/json"
    assert "ce-datacontenttype" not in request.headers
    assert read.get_id() == event.id
    assert read.get_extension("severitynumber") == "17"
    assert read.get_data() == event.data


def test_header_values_are_percent_encoded_as_the_binding_has_it() -> None:
    """The vector of the HTTP protocol binding, section 3.1.3.2."""
    assert header_value("Euro € 😀") == "Euro%20%E2%82%AC%20%F0%9F%98%80"


def test_quotes_and_percent_are_encoded_and_nothing_else_that_is_printable() -> None:
    printable = "".join(map(chr, range(0x21, 0x7F)))

    encoded = header_value(printable)

    assert encoded == printable.replace("%", "%25").replace('"', "%22")


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_attribute_survives_a_header(text: str) -> None:
    encoded = header_value(text)

    assert unquote(encoded) == text
    assert all("\x21" <= char <= "\x7e" for char in encoded)


def test_binary_mode_writes_every_attribute_as_text() -> None:
    headers, _ = render_binary(cloud_event())

    assert headers["ce-specversion"] == "1.0"
    assert headers["ce-time"] == "2026-11-21T10:00:00Z"
    assert headers["ce-severitynumber"] == "17"


async def test_headers_are_filled_in_and_secrets_are_not(
    resources: Resources, inbox: Inbox
) -> None:
    """A token may hold braces of its own, so only what stands openly is expanded."""
    headers = {"x-vm": "{vm_name} of {group}", "Authorization": "env:TOKEN"}
    options = webhook(url=inbox.url, headers=headers)
    async with opened_sink(resources, options, TOKEN="Bearer {vm_id}") as sink:
        await sink.deliver(cloud_event())

    (request,) = inbox.received
    assert request.headers["x-vm"] == "web-0 of web"
    assert request.headers["Authorization"] == "Bearer {vm_id}"


async def test_rotated_secret_file_is_read_at_the_next_delivery(
    resources: Resources, inbox: Inbox, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    options = webhook(url=inbox.url, headers={"x-key": f"file:{token}"})
    async with opened_sink(resources, options) as sink:
        await sink.deliver(cloud_event())
        token.write_text("new")
        await sink.deliver(cloud_event())

    assert [r.headers["x-key"] for r in inbox.received] == ["old", "new"]


async def test_rotated_secret_with_a_line_break_is_refused(
    resources: Resources, inbox: Inbox, tmp_path: Path
) -> None:
    """Else it could add a header of its own."""
    token = tmp_path / "token"
    token.write_text("old")
    options = webhook(url=inbox.url, headers={"x-key": f"file:{token}"})
    async with opened_sink(resources, options) as sink:
        token.write_text("new\r\nx-evil: 1")
        with pytest.raises(RefusedDeliveryError, match="holds line breaks"):
            await sink.deliver(cloud_event())

    assert inbox.received == []


async def test_rotated_url_that_is_none_is_refused_without_showing_it(
    resources: Resources, tmp_path: Path
) -> None:
    url = tmp_path / "url"
    url.write_text(URL)
    async with opened_sink(resources, webhook(url=f"file:{url}")) as sink:
        url.write_text("5ec12e7-in-the-wrong-file")
        with pytest.raises(RefusedDeliveryError) as caught:
            await sink.deliver(cloud_event())

    assert "5ec12e7" not in str(caught.value)
    assert caught.value.reason is Reason.NOT_FOUND


async def test_placeholder_without_a_value_here_stops_the_start(
    resources: Resources,
) -> None:
    def expand(text: str) -> str:
        raise ValueError("{group} is not known here")

    lent = Resources(http=resources.http, expand=expand)
    with pytest.raises(ConfigError, match="is not known here"):
        async with opened_sink(lent, webhook(URL, headers={"x-group": "{group}"})):
            pass


async def test_configured_proxy_is_used(resources: Resources, inbox: Inbox) -> None:
    options = webhook(url="http://siem.example/in", proxy=inbox.url)
    async with opened_sink(resources, options) as sink:
        await sink.deliver(cloud_event())

    assert inbox.received[0].headers["Host"] == "siem.example"


async def test_long_answer_is_not_read_to_its_end(
    resources: Resources, inbox: Inbox
) -> None:
    inbox.answer = b"x" * 5_000_000
    async with opened_sink(resources, webhook(url=inbox.url)) as sink:
        await sink.deliver(cloud_event())

    assert len(inbox.received) == 1


async def test_success_whose_body_breaks_off_is_a_success(
    resources: Resources,
) -> None:
    """It was taken; to send it again would only double it."""

    async def cut_off(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "100"})
        await response.prepare(request)
        await response.write(b"half")
        if request.transport is not None:
            request.transport.abort()
        return response

    server = await asyncio.get_running_loop().create_server(
        web.Server(cut_off), "127.0.0.1", 0
    )
    port = server.sockets[0].getsockname()[1]
    async with opened_sink(resources, webhook(url=f"http://127.0.0.1:{port}")) as sink:
        await sink.deliver(cloud_event())
    server.close()


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"url": "ftp://x/5ec12e7"}, "url: must be an http:// or https:// URL"),
        ({"url": "https:///5ec12e7"}, "url: must be an http:// or https:// URL"),
        ({"url": "5ec12e7"}, "url: must be an http:// or https:// URL"),
        ({"proxy": "socks://x"}, "proxy: must be an http:// or https:// URL"),
        ({"timeout": 0}, "timeout: must be more than 0s"),
        ({"headers": {"Host": "x"}}, "headers.Host: is set by the sink itself"),
        (
            {"headers": {"content-TYPE": "x"}},
            "headers.content-TYPE: is set by the sink itself",
        ),
        ({"headers": {"CE-id": "x"}}, "headers.CE-id: is set by the sink itself"),
        ({"headers": {"a b": "x"}}, "headers.a b: is not a valid header name"),
        (
            {"headers": {"x-a": "1\r\nx-b: 2"}},
            "headers.x-a: must not hold line breaks or other control characters",
        ),
        (
            {"headers": {"x-a": "{vm_nmae}"}},
            (
                "headers.x-a: unknown placeholder; "
                "allowed are {vm_id}, {vm_name} and {group}"
            ),
        ),
        (
            {"content_mode": "avro"},
            (
                'content_mode: must be one of "structured", "binary", "batch", '
                '"array", "template"'
            ),
        ),
    ],
)
def test_configuration_says_what_is_wrong(
    options: Mapping[str, object], fault: str
) -> None:
    assert config_faults({**webhook(URL), **options}) == [fault]


def test_header_given_twice_is_a_fault_whatever_its_case() -> None:
    faults = config_faults(webhook(URL, headers={"x-a": "1", "X-A": "2"}))

    assert faults == [
        "headers.x-a: is given twice: case makes no difference",
        "headers.X-A: is given twice: case makes no difference",
    ]


async def test_probe_asks_the_address_and_shows_no_credentials(
    resources: Resources, inbox: Inbox
) -> None:
    options = webhook(
        url=inbox.url,
        headers={"x-key": "env:KEY"},
        auth={"type": "bearer", "token": "env:TOKEN"},
    )
    inbox.status = 405
    async with opened_sink(resources, options, KEY="k3y", TOKEN="t0ken") as sink:
        assert isinstance(sink, Probing)
        await sink.probe()

    (asked,) = inbox.received
    assert (asked.method, asked.body) == ("OPTIONS", b"")
    assert "k3y" not in str(asked.headers)
    assert "t0ken" not in str(asked.headers)


@pytest.mark.parametrize(
    "options", [{}, {"content_mode": "batch", "batch": 10}, {"preset": "alertmanager"}]
)
async def test_address_that_does_not_answer_a_probe_is_said_to_be_away(
    resources: Resources, options: dict[str, object]
) -> None:
    async with opened_sink(resources, {**webhook(URL), **options}) as sink:
        assert isinstance(sink, Probing)
        with pytest.raises(TransientDeliveryError):
            await sink.probe()
