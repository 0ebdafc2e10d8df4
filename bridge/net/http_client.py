"""HTTP requests to receivers: session, request, meaning of a status, and redaction.

Only this file decides what an HTTP status or a network error means for a delivery.
2xx: delivered. 408, 425, 429, 5xx and network errors: try again later. 401, 403, 404,
410: the sink refuses everything. 3xx (redirects are never followed) and every other
4xx: this delivery becomes a dead letter.

Errors that leave this file have no aiohttp error as their cause: some of those print
the whole URL, and the URL of a webhook is a secret.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from urllib.parse import urlsplit

import aiohttp
from msgspec import Struct, field
from msgspec.structs import replace

from bridge.foundation.clock import SystemClock
from bridge.foundation.errors import (
    DeliveryError,
    PermanentDeliveryError,
    Reason,
    RefusedDeliveryError,
    TransientDeliveryError,
    UnprovenError,
)
from bridge.foundation.pace import LONGEST_WISH
from bridge.foundation.values import Secret
from bridge.net.addresses import ForbiddenAddressError, forbidden_host, guarded_socket
from bridge.net.tls import certificate_fault

MAX_ANSWER_BYTES = 64 * 1024

_INVALID_URL = (aiohttp.InvalidURL, UnicodeError)  # UnicodeError: invalid host name
_NETWORK_ERRORS = (  # TimeoutError is an OSError
    aiohttp.ClientError,
    OSError,
    UnicodeError,
    asyncio.IncompleteReadError,
)
_TRANSIENT = {408: Reason.TIMEOUT, 425: Reason.THROTTLED, 429: Reason.THROTTLED}
_REFUSED = {
    **dict.fromkeys((401, 403), Reason.UNAUTHORIZED),
    **dict.fromkeys((404, 410), Reason.NOT_FOUND),
}


@asynccontextmanager
async def open_session(*, user_agent: str) -> AsyncIterator[aiohttp.ClientSession]:
    """Open a session for sinks.

    The session keeps no cookies, reads no proxy from the environment, and does not
    connect to addresses that ``bridge.net.addresses`` forbids.
    """
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(socket_factory=guarded_socket),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"User-Agent": user_agent},
        trust_env=False,
    ) as session:
        yield session


class Request(Struct, frozen=True, kw_only=True):
    """An HTTP request. Its text shows nothing of it: most of it may be secret.

    Attributes:
        url: the URL; never shown.
        timeout: seconds for the whole request, with its response.
        proxy: URL of the proxy; None = no proxy, not even that of the environment.
        connect_timeout: seconds to connect, with TLS; None = only ``timeout`` holds.
        tls: the TLS context; None = the system's certificate authorities.
        most: bytes of the response that are read.
    """

    url: str
    headers: Mapping[str, str]
    body: bytes
    timeout: float
    proxy: str | None = None
    method: str = "POST"
    connect_timeout: float | None = None
    tls: ssl.SSLContext | None = None
    most: int = MAX_ANSWER_BYTES

    def __repr__(self) -> str:
        return f"Request(method={self.method!r})"


class Answer(Struct, frozen=True, kw_only=True):
    """An HTTP response, with at most ``Request.most`` bytes of its body.

    Attributes:
        target: the name of the receiver for errors, already redacted.
        said: the beginning of the body as a person may read it, without secrets; "" =
            it is not shown.
    """

    status: int
    body: bytes
    retry_after: float | None
    target: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    said: str = ""

    @property
    def summary(self) -> str:
        """Who answered, and the status, for errors."""
        return f"{self.target} answered {self.status}"

    def __repr__(self) -> str:  # headers may hold a secret
        return f"Answer(status={self.status}, body={self.body!r})"


async def exchange(
    session: aiohttp.ClientSession,
    request: Request,
    target: str,
    now: Callable[[], datetime] = SystemClock.now,
) -> Answer:
    """Send one request, follow no redirect, and read the response up to a limit.

    Args:
        session: the shared session.
        request: what to send.
        target: the name of the receiver for errors, already redacted.
        now: the time, for a date in Retry-After if the response has no Date.

    Raises:
        TransientDeliveryError: the network failed.
        RefusedDeliveryError: the URL is invalid, or leads to a forbidden address.
    """
    try:
        if request.proxy is not None:  # the proxy resolves the name and connects
            _check_host(request.url)
        async with session.request(
            request.method,
            request.url,
            data=request.body,
            headers=request.headers,
            proxy=request.proxy,
            allow_redirects=False,
            timeout=_limit(request.timeout, request.connect_timeout),
            ssl=request.tls or True,
        ) as response:
            return Answer(
                status=response.status,
                body=await _read(response, request.most),
                retry_after=_wish(response.headers, now)
                if "Retry-After" in response.headers
                else None,
                target=target,
                headers=response.headers,
            )
    except _NETWORK_ERRORS as error:
        raise _as_delivery_error(error, target) from None


def _check_host(url: str) -> None:
    """Check the whole part of a URL in which a proxy may look for the host.

    Raises:
        ForbiddenAddressError: the address is forbidden.
        aiohttp.InvalidURL: the URL is invalid.
    """
    try:
        place = urlsplit(url).netloc
    except ValueError:
        raise aiohttp.InvalidURL(url) from None
    if (why := forbidden_host(place)) is not None:
        raise ForbiddenAddressError(why)


@lru_cache(maxsize=64)
def _limit(seconds: float, to_connect: float | None) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=seconds, connect=to_connect)


async def _read(response: aiohttp.ClientResponse, most: int) -> bytes:
    """Read the body up to the limit. After a 2xx, an error while reading is ignored."""
    body = b""
    try:
        while len(body) < most:
            chunk = await response.content.read(most - len(body))
            if not chunk:
                break
            body += chunk
    except (aiohttp.ClientError, OSError):
        if not 200 <= response.status < 300:
            raise
    return body


def _wish(headers: Mapping[str, str], now: Callable[[], datetime]) -> float | None:
    """Read Retry-After; a date counts from the Date header, else from the clock."""
    try:
        answered = _http_date(headers.get("Date", ""))
    except ValueError:
        answered = now()
    return retry_after(headers, answered)


def failure(
    status: int, *, target: str, retry_after: float | None = None, detail: str = ""
) -> DeliveryError | None:
    """Return the error that an HTTP status means for a delivery; None is success.

    Args:
        status: the HTTP status.
        target: the name of the receiver for the text, already redacted.
        retry_after: the seconds that the receiver asks to wait.
        detail: the receiver's explanation, if that is safe to show.
    """
    if 200 <= status < 300:
        return None
    text = f"{target} answered {status}" + (f": {detail}" if detail else "")
    if status in _REFUSED:
        return RefusedDeliveryError(text, _REFUSED[status])
    if status in _TRANSIENT or status >= 500:
        reason = _TRANSIENT.get(status, Reason.SERVER)
        return TransientDeliveryError(text, reason, retry_after=retry_after)
    if 300 <= status < 400:
        return PermanentDeliveryError(text, Reason.REDIRECTED)
    reason = Reason.TOO_LARGE if status == 413 else Reason.REJECTED
    return PermanentDeliveryError(text, reason)


def _as_delivery_error(error: Exception, target: str) -> DeliveryError:
    """Convert a network error to the error of a delivery."""
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        text = f"{target} could not be connected to in time"
        return TransientDeliveryError(text, Reason.TIMEOUT)
    if isinstance(error, TimeoutError):
        text = f"{target} did not answer in time"
        return TransientDeliveryError(text, Reason.TIMEOUT)
    if isinstance(error, _INVALID_URL):
        text = f"{target} is not a URL that can be called"
        return RefusedDeliveryError(text, Reason.NOT_FOUND)
    if (forbidden := _forbidden(error)) is not None:
        text = f"{target} is a forbidden address: {forbidden}"
        return RefusedDeliveryError(text, Reason.NOT_FOUND)
    text = f"{target} cannot be reached ({_why(error)})"
    return TransientDeliveryError(text, Reason.CONNECTION)


def _why(error: Exception) -> str:
    fault = certificate_fault(error)
    return type(error).__name__ if fault is None else f"its certificate: {fault}"


def _forbidden(error: Exception) -> ForbiddenAddressError | None:
    cause = getattr(error, "os_error", error)  # aiohttp wraps what a socket raises
    return cause if isinstance(cause, ForbiddenAddressError) else None


@asynccontextmanager
async def turn(lock: asyncio.Lock, *, seconds: float, what: str) -> AsyncIterator[None]:
    """Hold a lock, but wait for it only for a limited time.

    Otherwise many deliveries could wait in line, each for a slow receiver.

    Raises:
        TransientDeliveryError: the lock is not free within ``seconds``.
    """
    try:
        async with asyncio.timeout(seconds):
            await lock.acquire()
    except TimeoutError:
        text = f"{what}: no answer in time"
        raise TransientDeliveryError(text, Reason.TIMEOUT) from None
    try:
        yield
    finally:
        lock.release()


def revealed(secret: Secret, what: str) -> str:
    """Return the value of a secret when it is used; its file is read each time.

    Raises:
        RefusedDeliveryError: the secret cannot be read any more.
    """
    try:
        return secret.reveal()
    except ValueError as error:
        text = f"{what}: {error}"
        raise RefusedDeliveryError(text, Reason.UNAUTHORIZED) from error


def retry_after(headers: Mapping[str, str], now: datetime) -> float | None:
    """Read Retry-After in both forms: seconds or a date.

    Args:
        headers: the headers of the response.
        now: the time that a date is compared with.

    Returns:
        Seconds from 0 to one hour; None if the header is absent or invalid.
    """
    value = headers.get("Retry-After", "").strip()
    if value.isascii() and value.isdigit():
        return min(float(value), LONGEST_WISH)
    try:
        seconds = (_http_date(value) - now).total_seconds()
    except ValueError:
        return None
    return min(max(0.0, seconds), LONGEST_WISH)


def _http_date(value: str) -> datetime:
    """Parse the date of a header.

    Raises:
        ValueError: the value is not a date, or has no time zone.
    """
    try:
        moment = parsedate_to_datetime(value)
    except (TypeError, IndexError, OverflowError) as error:
        raise ValueError("no date") from error
    if moment.tzinfo is None:
        raise ValueError("no time zone")
    return moment


def is_http(url: str) -> bool:
    """Return whether ``url`` is an absolute http or https URL with a host."""
    try:
        parts = urlsplit(url)
        return parts.scheme in {"http", "https"} and bool(parts.hostname)
    except ValueError:
        return False


def has_credentials(url: str) -> bool:
    """Return whether a URL has a user name or password before its host."""
    try:
        return "@" in urlsplit(url).netloc
    except ValueError:
        return False


@lru_cache(maxsize=64)  # the same few URLs, at each delivery
def redact(url: str) -> str:
    """Return scheme, host and port of a URL: the only parts that may be shown."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "<invalid URL>"
    if not is_http(url):
        return "<invalid URL>"  # may be a secret that was put here by mistake
    if ":" in host:  # IPv6
        host = f"[{host}]"
    return f"{parts.scheme}://{host}{port}"


# -- Checks with OPTIONS whether an endpoint answers, without sending an event ---------


_KNOWS_OTHER_METHODS = {405, 501}


async def reach(session: aiohttp.ClientSession, request: Request, target: str) -> str:
    """Check whether an endpoint answers; send no event.

    Returns:
        A sentence that says that the endpoint is there, with its status.

    Raises:
        DeliveryError: the endpoint does not answer.
        UnprovenError: it answers, but its status does not show whether it accepts
            events.
    """
    answer = await exchange(
        session, replace(request, method="OPTIONS", body=b""), target
    )
    found = f"it answers OPTIONS with {answer.status}"
    if 200 <= answer.status < 300 or answer.status in _KNOWS_OTHER_METHODS:
        return f"{target} is there ({found})"
    raise UnprovenError(
        f"{target} {found.removeprefix('it ')}, which does not show whether it takes "
        "events",
        _doubt(answer.status),
    )


def _doubt(status: int) -> str:
    """Return advice on a status that OPTIONS was answered with; "" if there is none."""
    if 300 <= status < 400:
        return "redirects are not followed: is this the last address?"
    if status in {401, 403}:
        return "does it take these credentials?"
    if status in {404, 410}:
        return "is the path right?"
    return ""
