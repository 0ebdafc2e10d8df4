"""Requests to Teams, Entra ID and Microsoft Graph: short, without redirects.

One session for all; it is opened by the first request, in the loop that makes it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import aiohttp

from approver.teams.errors import TeamsError

_SECONDS: Final = 5.0
_MOST_BYTES: Final = 1024 * 1024
_LONGEST_WAIT: Final = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request.

    Attributes:
        whom: who is asked, for errors.
        method: of HTTP.
        url: whole.
        body: sent as JSON; None: there is none.
        form: sent as a form; None: there is none.
        token: for Authorization; "" = none.
    """

    whom: str
    method: str
    url: str
    body: object = None
    form: Mapping[str, str] | None = None
    token: str = ""


class Web:
    """The session; close it at the end."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close the session, if one was opened."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def ask(self, ask: Ask) -> dict[str, object]:
        """Send a request; return the object that is answered, empty if it is none.

        Raises:
            TeamsError: there was no answer in time, or its status is not of success.
        """
        try:
            async with self._opened().request(
                ask.method,
                ask.url,
                json=ask.body,
                data=ask.form,
                headers={"Authorization": f"Bearer {ask.token}"} if ask.token else {},
                allow_redirects=False,
            ) as response:
                body = await response.content.read(_MOST_BYTES)
                status, wait = response.status, response.headers.get("Retry-After")
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise TeamsError(f"{ask.whom}: {type(error).__name__}") from error
        if not 200 <= status < 300:
            raise TeamsError(f"{ask.whom} answered {status}", status, _seconds(wait))
        return _object(body)

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=_SECONDS)
            self._session = aiohttp.ClientSession(
                timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()
            )
        return self._session


def _seconds(wait: str | None) -> float:
    """Return a Retry-After in seconds; a date, or anything else, counts as nothing."""
    if wait is None or not (wait.isascii() and wait.isdigit()):
        return 0.0
    return min(float(wait[:9]), _LONGEST_WAIT)


def _object(body: bytes) -> dict[str, object]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
