"""HTTP outward: the shared session, the failure table, and redaction.

The one place that says what an HTTP status or a network error means for a
delivery. DESIGN section 6 is its source: 2xx delivered; 408, 425, 429, 5xx and
network errors are transient; 401, 403, 404, 410 refuse the sink as a whole;
3xx (never followed) and every other 4xx kill that delivery alone.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

import aiohttp

from bridge.errors import (
    DeliveryError,
    PermanentDeliveryError,
    Reason,
    RefusedDeliveryError,
    TransientDeliveryError,
)

_TRANSIENT = {
    408: Reason.TIMEOUT,
    425: Reason.THROTTLED,
    429: Reason.THROTTLED,
}
_REFUSED = {
    401: Reason.UNAUTHORIZED,
    403: Reason.UNAUTHORIZED,
    404: Reason.NOT_FOUND,
    410: Reason.NOT_FOUND,
}


@asynccontextmanager
async def open_session(*, user_agent: str) -> AsyncIterator[aiohttp.ClientSession]:
    """Open a session that keeps no cookies and reads no proxy from the environment."""
    async with aiohttp.ClientSession(
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"User-Agent": user_agent},
        trust_env=False,
    ) as session:
        yield session


def failure(
    status: int, *, target: str, retry_after: float | None = None, detail: str = ""
) -> DeliveryError | None:
    """Return what an HTTP status means for a delivery; None is success.

    Args:
        status: the HTTP status.
        target: how the other side is named in the text, already redacted.
        retry_after: its own wish in seconds.
        detail: what it said about it, if that is safe to show.
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


@contextmanager
def network_errors(target: str) -> Iterator[None]:
    """Turn what the network raises into transient delivery errors."""
    try:
        yield
    except TimeoutError as error:
        text = f"{target} did not answer in time"
        raise TransientDeliveryError(text, Reason.TIMEOUT) from error
    except (aiohttp.ClientError, OSError, asyncio.IncompleteReadError) as error:
        text = f"{target} cannot be reached ({type(error).__name__})"
        raise TransientDeliveryError(text, Reason.CONNECTION) from error


def retry_after(headers: Mapping[str, str], now: datetime) -> float | None:
    """Read Retry-After in both its forms; seconds from ``now``, never negative."""
    value = headers.get("Retry-After", "").strip()
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        return max(0.0, (parsedate_to_datetime(value) - now).total_seconds())
    except (TypeError, ValueError):
        return None


def redact(url: str) -> str:
    """Return scheme and host of a URL: all of it that may be shown."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "<invalid URL>"
    return f"{parts.scheme}://{host}{port}"
