"""The client of IMDS: reads the document and the VM's identity, sends StartRequests.

Every request has the header ``Metadata: true``, uses no proxy and follows no redirect.
The poller sends one at a time, and keeps the distance between those to scheduledevents:
the whole VM may send five requests per second.

Source: https://learn.microsoft.com/azure/virtual-machines/instance-metadata-service
"""

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from functools import lru_cache
from typing import Literal

import aiohttp
import msgspec
import orjson

from bridge.events.document import MAX_BYTES, parse_time
from bridge.events.start_result import StartAnswer, StartResult
from bridge.foundation.clock import Clock
from bridge.foundation.errors import (
    MalformedDocumentError,
    MetadataError,
    MetadataRefusedError,
    MetadataUnavailableError,
)
from bridge.imds.config import COUNTED_VERSION, ImdsConfig
from bridge.net.http_client import retry_after
from bridge.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

_INSTANCE_VERSION = "2021-12-13"


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A successful response.

    Attributes:
        body: the document; None if it is that of the ETag sent (304), or not needed.
        etag: the ETag for the next request; None if the response has none.
        date: the Date header; None if the response has none.
    """

    body: bytes | None
    etag: str | None
    date: datetime | None


class MetadataClient:
    """The client of this VM's IMDS."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        config: ImdsConfig,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self.session = session
        self.config = config
        self.clock = clock
        self.metrics = metrics
        self._events_url = (
            f"{config.endpoint.rstrip('/')}/metadata/scheduledevents"
            f"?api-version={config.api_version}"
        )

    async def fetch(self, *, etag: str | None, timeout: float) -> Answer:  # noqa: ASYNC109 - passed on to aiohttp
        """Read the document.

        Raises:
            MetadataRefusedError: IMDS answered 400 or 403.
            MetadataUnavailableError: any other status than 200 and 304, or no answer.
        """
        return await self._request("GET", self._events_url, timeout, etag=etag)

    async def start(self, event_id: str, *, incarnation: int | None) -> StartAnswer:
        """Send one StartRequest."""
        body: dict[str, object] = {"StartRequests": [{"EventId": event_id}]}
        if self.config.api_version == COUNTED_VERSION and incarnation is not None:
            body["DocumentIncarnation"] = str(incarnation)
        limit, encoded = self.config.request_timeout, orjson.dumps(body)
        try:
            await self._request("POST", self._events_url, limit, sent=encoded)
        except MetadataError as error:
            return _answer_of(error)
        return StartAnswer(result=StartResult.ACCEPTED, status=200)

    async def instance(
        self,
        timeout: float | None = None,  # noqa: ASYNC109 - aiohttp keeps it
    ) -> dict[str, object]:
        """Read the ``compute`` object of instance metadata; see ``fetch`` for errors.

        A ``timeout`` in seconds can only shorten ``request_timeout``.
        """
        url = (
            f"{self.config.endpoint.rstrip('/')}/metadata/instance/compute"
            f"?api-version={_INSTANCE_VERSION}"
        )
        limit = self.config.request_timeout
        answer = await self._request("GET", url, min(timeout or limit, limit))
        try:
            found = orjson.loads(answer.body or b"")
        except orjson.JSONDecodeError:
            found = None
        if not isinstance(found, dict):
            text = "instance metadata is no JSON object"
            raise MetadataUnavailableError(text, outcome="malformed")
        return found

    async def _request(
        self,
        method: Literal["GET", "POST"],
        url: str,
        timeout: float,  # noqa: ASYNC109 - aiohttp keeps it, for the whole request
        *,
        etag: str | None = None,
        sent: bytes | None = None,
    ) -> Answer:
        """Send one request, and count how it ended; see ``fetch`` for errors."""
        headers = {"Metadata": "true"}
        if etag:
            headers["If-None-Match"] = etag
        if sent is not None:
            headers["Content-Type"] = "application/json"
        try:
            async with self.session.request(
                method,
                url,
                headers=headers,
                data=sent,
                allow_redirects=False,
                timeout=_limit(timeout),
            ) as response:
                found = await self._checked(method, response)
        except MetadataError as error:
            self._count(method, error.outcome)
            raise
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            fault = _unavailable(method, error)
            self._count(method, fault.outcome)
            raise fault from error
        self._count(method, "ok")
        return found

    async def _checked(self, method: str, response: aiohttp.ClientResponse) -> Answer:
        status, headers, is_read = response.status, response.headers, method == "GET"
        if status == 200 or (is_read and status == 304):
            return Answer(
                body=await _read(response) if is_read and status == 200 else None,
                etag=_etag(headers),
                date=parse_time(headers.get("Date", "")),
            )
        text, outcome = f"IMDS answered {status} to {method}", str(status)
        if status in {400, 403}:
            raise MetadataRefusedError(text, outcome=outcome)
        wish = retry_after(headers, self.clock.now())
        raise MetadataUnavailableError(text, outcome=outcome, retry_after=wish)

    def _count(self, method: str, outcome: str) -> None:
        self.metrics.imds_requests.labels(method, outcome).inc()


@lru_cache(maxsize=16)  # each poll uses one of the same few values
def _limit(seconds: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=seconds)


def _answer_of(error: MetadataError) -> StartAnswer:
    """Convert the error of a POST to the answer for its StartRequest."""
    status = int(error.outcome) if error.outcome.isdigit() else None
    if status is None or status >= 500:
        result = StartResult.IN_DOUBT
    elif status == 400:
        result = StartResult.REFUSED
    else:
        result = StartResult.UNAVAILABLE
    wish = error.retry_after if isinstance(error, MetadataUnavailableError) else None
    return StartAnswer(
        result=result, status=status, text=str(error), retry_after=wish or None
    )


def _etag(headers: Mapping[str, str]) -> str | None:
    """Return the ETag; None if it is missing, or cannot be sent in a header."""
    etag = headers.get("ETag", "")
    return etag if etag.isascii() and etag.isprintable() and etag else None


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """Read a body, at most one byte more than the parser accepts."""
    length, is_packed = response.content_length, "Content-Encoding" in response.headers
    if length is not None and length <= MAX_BYTES and not is_packed:
        return await response.read()
    chunks = bytearray()
    async for chunk in response.content.iter_chunked(65536):
        chunks += chunk
        if len(chunks) > MAX_BYTES:
            break
    return bytes(chunks[: MAX_BYTES + 1])


def _unavailable(method: str, error: Exception) -> MetadataUnavailableError:
    """Convert the error of a request that got no answer."""
    if isinstance(error, TimeoutError):
        text = f"IMDS did not answer the {method} in time"
        return MetadataUnavailableError(text, outcome="timeout")
    origin = error.__cause__ or error
    text = f"IMDS cannot be reached for the {method} ({type(origin).__name__})"
    outcome = "reset"
    if isinstance(origin, aiohttp.ClientConnectorError):  # there was no connection
        is_refused = isinstance(origin.os_error, ConnectionRefusedError)
        outcome = "refused" if is_refused else "unreachable"
    return MetadataUnavailableError(text, outcome=outcome)


async def _once(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Stop aiohttp from repeating a failed GET at once: IMDS limits the requests."""
    try:
        return await handler(request)
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise aiohttp.ClientConnectionError("the connection broke") from error


@asynccontextmanager
async def open_client(
    config: ImdsConfig, clock: Clock, metrics: Metrics
) -> AsyncIterator[MetadataClient]:
    """Open a client with its own session: no proxy, no cookies, one connection."""
    async with aiohttp.ClientSession(
        trust_env=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        connector=aiohttp.TCPConnector(limit=1),
        middlewares=(_once,),
    ) as session:
        yield MetadataClient(session, config, clock, metrics)


# -- Decides by the recent answers of IMDS when to send the next request ---------------


_LONGEST_BACKOFF = 2.0  # a Spot eviction is announced only 30 s before
_LIMITED_BACKOFF = 10.0  # after a 429: there were too many requests
_REFUSED_BACKOFF = 60.0
_LONGEST_WISH = 300.0  # a longer Retry-After is shortened, so as not to miss events


class Patience(msgspec.Struct):
    """The failed reads since the last good one, and when to send the next request.

    Attributes:
        outcome: ``ok``, ``starting``, or the label of the last failure. It is any text
            and not an enumeration, because a label may be any HTTP status.
        failures: failed reads in a row; ``refusals`` and ``timeouts`` are among them.
        reminded: when a failure was logged last, in monotonic seconds.
        loudest: the highest level at which these failures were logged.
        wait: seconds until the next request.
        is_asked_for: whether IMDS asked for this wait. Then it is never shortened.
    """

    outcome: str
    failures: int = 0
    refusals: int = 0
    timeouts: int = 0
    reminded: float = float("-inf")
    loudest: int = logging.NOTSET
    wait: float = 0.0
    is_asked_for: bool = False

    def bad(self, error: MetadataError, least: float) -> None:
        """Note a read that has failed.

        The first wait is ``least`` seconds; what IMDS did not ask for is 2 s at most.
        """
        self.failures += 1
        self.timeouts = self.timeouts + 1 if error.outcome == "timeout" else 0
        self.outcome = error.outcome
        is_limited = error.outcome == "429"
        count = self.failures
        longest = _LIMITED_BACKOFF if is_limited else _LONGEST_BACKOFF
        if isinstance(error, MetadataRefusedError):
            self.refusals += 1
            count, longest = self.refusals, _REFUSED_BACKOFF
        doubled = least * 2.0 ** min(count - 1, 10)
        self.wait = min(doubled, longest)
        if isinstance(error, MalformedDocumentError):
            self.wait = min(least, longest)
        elif longest != _LONGEST_BACKOFF:
            self.wait = max(self.wait, least)
        wish = getattr(error, "retry_after", None)
        self.is_asked_for = bool(wish)
        if wish:
            self.wait = max(self.wait, min(wish, _LONGEST_WISH))
