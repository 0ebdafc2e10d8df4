"""Asks an endpoint whether it is there, and publishes nothing: OPTIONS."""

from dataclasses import replace

import aiohttp

from bridge.foundation.errors import UnprovenError
from bridge.net.http_client import Request, exchange

_KNOWS_OTHER_METHODS = {405, 501}


async def reach(session: aiohttp.ClientSession, request: Request, target: str) -> str:
    """Ask whether anybody is there, and say what he answered; nothing is published.

    Raises:
        DeliveryError: nobody is.
        UnprovenError: he is, but his answer does not say whether he takes events.
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
    """Return what may be wrong, by the answer to OPTIONS."""
    if 300 <= status < 400:
        return "redirects are not followed: is this the last address?"
    if status in {401, 403}:
        return "does it take these credentials?"
    if status in {404, 410}:
        return "is the path right?"
    return ""
