"""Speaks to IMDS: the document, StartRequests, and who this VM is.

Every request carries ``Metadata: true``, never goes through a proxy, never follows
a redirect; one is in flight at a time, and at least 250 ms lie between any two to
scheduledevents, since the whole VM may make five requests a second.

Source: https://learn.microsoft.com/azure/virtual-machines/instance-metadata-service
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

import aiohttp
import orjson

from bridge.clock import Clock
from bridge.errors import (
    MetadataError,
    MetadataRefusedError,
    MetadataUnavailableError,
)
from bridge.imds.document import MAX_BYTES, parse_time
from bridge.options import Section
from bridge.telemetry import Metrics
from bridge.transport import is_http, retry_after
from bridge.values import Duration

log = logging.getLogger(__name__)

LEAST_INTERVAL = 0.25
_INSTANCE_VERSION = "2021-12-13"
_NEVER_SET = asyncio.Event  # waits that nothing cuts short


class ImdsConfig(Section, frozen=True, kw_only=True):
    """``[imds]``: where and how often the document is read."""

    endpoint: str = "http://169.254.169.254"
    api_version: Literal[
        "2017-03-01",
        "2017-08-01",
        "2017-11-01",
        "2019-01-01",
        "2019-04-01",
        "2019-08-01",
        "2020-07-01",
    ] = "2020-07-01"
    poll_interval: Duration = Duration(1)
    request_timeout: Duration = Duration(5)
    first_request_timeout: Duration = Duration(130)

    def faults(self) -> Iterator[tuple[str, str]]:
        """Check the bounds that the service sets."""
        if not is_http(self.endpoint):
            yield "endpoint", "must be a URL such as http://169.254.169.254"
        if self.poll_interval < LEAST_INTERVAL:
            yield (
                "poll_interval",
                (
                    "must be at least 250ms: IMDS allows 5 requests a second to the "
                    "whole VM"
                ),
            )
        for key in ("request_timeout", "first_request_timeout"):
            if not getattr(self, key):
                yield key, "must be more than 0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A good answer to a GET of the document.

    Attributes:
        body: None when it has not changed since the ETag given (304).
        etag: to be given with the next request; None when none is offered.
        date: the Date header, None without one.
    """

    body: bytes | None
    etag: str | None
    date: datetime | None


@dataclass(slots=True)
class MetadataClient:
    """The client of this VM's IMDS. At most one request is in flight."""

    session: aiohttp.ClientSession
    config: ImdsConfig
    clock: Clock
    metrics: Metrics
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _last: float = float("-inf")

    async def fetch(self, *, etag: str | None, timeout: float) -> Answer:  # noqa: ASYNC109 - a limit of the service, not of the caller's patience
        """Read the document.

        Raises:
            MetadataRefusedError: 400 or 403.
            MetadataUnavailableError: anything else but 200 and 304.
        """
        headers = {"If-None-Match": etag} if etag else {}
        async with (
            self._spaced(),
            self._request("GET", self._events_url, headers, timeout) as response,
        ):
            body = None if response.status == 304 else await _read(response)
            return Answer(
                body=body,
                etag=_etag(response),
                date=parse_time(response.headers.get("Date", "")),
            )

    async def start(self, event_id: str, *, incarnation: int | None) -> int:
        """Relay one StartRequest; returns the HTTP status.

        Raises:
            MetadataUnavailableError: there was no answer, so it may have worked; or
                IMDS asks for patience (``retry_after``).
        """
        body: dict[str, object] = {"StartRequests": [{"EventId": event_id}]}
        if self.config.api_version == "2017-03-01" and incarnation is not None:
            body["DocumentIncarnation"] = str(incarnation)
        timeout = self.config.request_timeout
        try:
            async with (
                self._spaced(),
                self._request(
                    "POST", self._events_url, {}, timeout, orjson.dumps(body)
                ),
            ):
                return 200
        except MetadataError as error:
            if error.outcome.isdigit() and not getattr(error, "retry_after", None):
                return int(error.outcome)
            raise

    async def instance(self) -> dict[str, object]:
        """Read the ``compute`` object of instance metadata.

        Raises:
            MetadataError: it cannot be had now.
        """
        url = (
            f"{self.config.endpoint.rstrip('/')}/metadata/instance/compute"
            f"?api-version={_INSTANCE_VERSION}"
        )
        async with (
            self._turn,
            self._request("GET", url, {}, self.config.request_timeout) as response,
        ):
            body = await _read(response)
        try:
            found = orjson.loads(body)
        except orjson.JSONDecodeError:
            found = None
        if not isinstance(found, dict):
            text = "instance metadata is no JSON object"
            raise MetadataUnavailableError(text, outcome="malformed")
        return found

    @property
    def _events_url(self) -> str:
        return (
            f"{self.config.endpoint.rstrip('/')}/metadata/scheduledevents"
            f"?api-version={self.config.api_version}"
        )

    @asynccontextmanager
    async def _spaced(self) -> AsyncIterator[None]:
        """Take the turn, no sooner than 250 ms after the last request."""
        async with self._turn:
            wait = self._last + LEAST_INTERVAL - self.clock.monotonic()
            if wait > 0:
                await self.clock.wait(_NEVER_SET(), wait)
            self._last = self.clock.monotonic()
            yield

    @asynccontextmanager
    async def _request(
        self,
        method: str,
        url: str,
        headers: dict[str, str],
        timeout: float,  # noqa: ASYNC109 - aiohttp keeps it, for the whole request
        body: bytes | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        outcome = "ok"
        own = {"Metadata": "true", **headers}
        if body is not None:
            own["Content-Type"] = "application/json"
        try:
            with _unavailable(method):
                async with self.session.request(
                    method,
                    url,
                    headers=own,
                    data=body,
                    allow_redirects=False,
                    timeout=aiohttp.ClientTimeout(total=timeout),
                ) as response:
                    self._check(method, response)
                    yield response
        except MetadataError as error:
            outcome = error.outcome
            raise
        finally:
            self.metrics.imds_requests.labels(method, outcome).inc()

    def _check(self, method: str, response: aiohttp.ClientResponse) -> None:
        status = response.status
        if status == 200 or (method == "GET" and status == 304):
            return
        text = f"IMDS answered {status} to {method}"
        if status in {400, 403}:
            raise MetadataRefusedError(text, outcome=str(status))
        raise MetadataUnavailableError(
            text,
            outcome=str(status),
            retry_after=retry_after(response.headers, self.clock.now()),
        )


def _etag(response: aiohttp.ClientResponse) -> str | None:
    """Return the ETag; None also for one that could not be sent back."""
    etag = response.headers.get("ETag", "")
    return etag if etag.isascii() and etag.isprintable() and etag else None


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """Read a body, one byte past the limit at most: the parser refuses it then."""
    length, is_packed = response.content_length, "Content-Encoding" in response.headers
    if length is not None and length <= MAX_BYTES and not is_packed:
        return await response.read()
    chunks = bytearray()
    async for chunk in response.content.iter_chunked(65536):
        chunks += chunk
        if len(chunks) > MAX_BYTES:
            break
    return bytes(chunks[: MAX_BYTES + 1])


@contextmanager
def _unavailable(method: str) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        text = f"IMDS did not answer the {method} in time"
        raise MetadataUnavailableError(text, outcome="timeout") from error
    except (aiohttp.ClientError, OSError) as error:
        origin = type(error.__cause__ or error).__name__
        text = f"IMDS cannot be reached for the {method} ({origin})"
        raise MetadataUnavailableError(text, outcome="reset") from error


async def _once(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Keep aiohttp from repeating a GET at once by itself: IMDS counts requests."""
    try:
        return await handler(request)
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise aiohttp.ClientConnectionError("the connection broke") from error


@asynccontextmanager
async def open_client(
    config: ImdsConfig, clock: Clock, metrics: Metrics
) -> AsyncIterator[MetadataClient]:
    """Open a client with a session of its own: no proxy, no cookie, one connection."""
    async with aiohttp.ClientSession(
        trust_env=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        connector=aiohttp.TCPConnector(limit=1),
        middlewares=(_once,),
    ) as session:
        yield MetadataClient(session, config, clock, metrics)
