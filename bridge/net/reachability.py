"""Checks with OPTIONS whether an endpoint answers, without sending an event."""

import aiohttp
from msgspec.structs import replace

from bridge.foundation.errors import UnprovenError
from bridge.net.http_client import Request, exchange

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
