"""The failure table over every status, Retry-After, and what may be shown of a URL."""

from datetime import UTC, datetime, timedelta, timezone
from email.utils import format_datetime
from typing import NoReturn, cast

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st

from bridge.foundation.errors import (
    DeliveryError,
    PermanentDeliveryError,
    Reason,
    RefusedDeliveryError,
    TransientDeliveryError,
)
from bridge.net.http_client import (
    Request,
    exchange,
    failure,
    is_http,
    open_session,
    redact,
    retry_after,
)


class BrokenSession:
    """A session whose requests fail."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def request(self, *_: object, **__: object) -> NoReturn:
        raise self.error


NOW = datetime(2026, 11, 21, 10, 0, tzinfo=UTC)


def expected(status: int) -> type[DeliveryError] | None:
    """What config/sinks/README.md says of answers."""
    if status in {401, 403, 404, 410}:
        return RefusedDeliveryError
    if status in {408, 425, 429} or 500 <= status <= 599:
        return TransientDeliveryError
    if 200 <= status <= 299:
        return None
    return PermanentDeliveryError


def meaning(status: int) -> type[DeliveryError] | None:
    error = failure(status, target="https://x")
    return type(error) if error else None


def test_every_status_means_what_was_promised() -> None:
    statuses = range(200, 600)

    assert {n: meaning(n) for n in statuses} == {n: expected(n) for n in statuses}


def test_interim_status_as_a_last_word_is_no_delivery() -> None:
    assert {meaning(status) for status in range(100, 200)} == {PermanentDeliveryError}


def test_failure_names_target_status_and_detail() -> None:
    error = failure(400, target="https://x", detail="invalid_payload")

    assert str(error) == "https://x answered 400: invalid_payload"


def test_retry_after_goes_with_what_is_transient() -> None:
    error = failure(503, target="https://x", retry_after=7.0)

    assert isinstance(error, TransientDeliveryError)
    assert error.retry_after == 7.0


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0.0),
        ("120", 120.0),
        (" 3 ", 3.0),
        ("3600", 3600.0),
        ("3601", 3600.0),  # longer than an hour is taken as an hour
        ("9" * 30, 3600.0),
        ("9" * 400, 3600.0),
        (format_datetime(NOW + timedelta(days=900), usegmt=True), 3600.0),
        (format_datetime(NOW + timedelta(minutes=2), usegmt=True), 120.0),
        (format_datetime(NOW - timedelta(minutes=2), usegmt=True), 0.0),
        ("Sat, 21 Nov 2026 11:02:00 +0100", 120.0),
        ("Sat, 21 Nov 2026 10:02:00 -0000", None),
        ("-3", None),
        ("1.5", None),
        ("\u0663", None),
        ("soon", None),
        ("Mn, 2 Mar 2027 12:22222222222222222222", None),
        ("", None),
    ],
)
def test_retry_after_is_read_in_both_its_forms(
    value: str, seconds: float | None
) -> None:
    assert retry_after({"Retry-After": value}, NOW) == seconds


@given(st.text())
def test_retry_after_never_raises_and_is_never_negative(value: str) -> None:
    east = NOW.astimezone(timezone(timedelta(hours=9)))

    seconds = retry_after({"Retry-After": value}, east)

    assert seconds is None or seconds >= 0


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://hooks.slack.com/services/T/B/X", "https://hooks.slack.com"),
        ("https://user:pass@h.example:8443/p?k=v#f", "https://h.example:8443"),
        ("http://[::1]:80/p", "http://[::1]:80"),
        ("T0K3N", "<invalid URL>"),
        ("https://[bad", "<invalid URL>"),
        ("https://h:notaport/x", "<invalid URL>"),
    ],
)
def test_only_scheme_and_host_of_a_url_are_shown(url: str, shown: str) -> None:
    assert redact(url) == shown


@given(st.text())
def test_redact_never_raises(url: str) -> None:
    redact(url)
    is_http(url)


@pytest.mark.parametrize(
    ("raised", "error", "reason"),
    [
        (TimeoutError(), TransientDeliveryError, Reason.TIMEOUT),
        (
            aiohttp.ServerTimeoutError("http://x/5ec12e7"),
            TransientDeliveryError,
            Reason.TIMEOUT,
        ),
        (
            aiohttp.ServerDisconnectedError("5ec12e7"),
            TransientDeliveryError,
            Reason.CONNECTION,
        ),
        (ConnectionResetError("5ec12e7"), TransientDeliveryError, Reason.CONNECTION),
        (aiohttp.InvalidURL("http://5ec12e7"), RefusedDeliveryError, Reason.NOT_FOUND),
    ],
)
async def test_network_error_is_reported_without_its_text(
    raised: Exception, error: type[DeliveryError], reason: Reason
) -> None:
    session = cast("aiohttp.ClientSession", BrokenSession(raised))
    request = Request(url="https://x/", headers={}, body=b"", timeout=5)
    with pytest.raises(error) as caught:
        await exchange(session, request, "https://x")

    assert caught.value.reason is reason
    assert "5ec12e7" not in str(caught.value)
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("host", ["a..b", f"{'5ec12e7' * 10}.example"])
async def test_host_that_no_name_server_can_be_asked_for_is_no_url(host: str) -> None:
    request = Request(url=f"http://{host}/", headers={}, body=b"", timeout=5)
    async with open_session(user_agent="sebridge/1") as session:
        with pytest.raises(RefusedDeliveryError, match="not a URL") as caught:
            await exchange(session, request, "http://x")

    assert caught.value.reason is Reason.NOT_FOUND
    assert "5ec12e7" not in str(caught.value)


@pytest.mark.parametrize(
    ("date", "seconds"),
    [
        ("Sun, 06 Nov 1994 08:49:00 GMT", 37.0),
        ("never", 7.0),  # then the clock that was passed in counts
    ],
)
async def test_date_in_retry_after_counts_from_the_date_of_the_response(
    date: str, seconds: float
) -> None:
    headers = {"Retry-After": "Sun, 06 Nov 1994 08:49:37 GMT", "Date": date}

    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=503, headers=headers)

    app = web.Application()
    app.router.add_post("/", answer)
    async with TestServer(app) as server, open_session(user_agent="x") as session:
        request = Request(
            url=str(server.make_url("/")), headers={}, body=b"", timeout=5
        )
        found = await exchange(
            session, request, "x", lambda: datetime(1994, 11, 6, 8, 49, 30, tzinfo=UTC)
        )

    assert found.retry_after == seconds


async def test_session_reads_no_proxy_and_keeps_no_cookies() -> None:
    async with open_session(user_agent="sebridge/1") as session:
        assert not session.trust_env
        assert isinstance(session.cookie_jar, aiohttp.DummyCookieJar)
        assert session.headers["User-Agent"] == "sebridge/1"
