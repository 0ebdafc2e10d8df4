"""Acknowledges scheduled events at Azure Resource Manager, one attempt at a time.

    200                    acknowledged
    207                    the entry of the event decides: OK, NotFound, Conflict
    409                    the event has started already: done
    404                    the event is gone
    401, 403               the identity has no permission: failed after 3 attempts
    429, 5xx, no answer    try again later, as Retry-After says

An acknowledgement without an answer is sent again: it is idempotent.

Source: the REST specification of Microsoft.Maintenance, 2025-11-01.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
import orjson
from msgspec import Struct

from bridge.events.cloudevent import clean
from bridge.foundation.errors import DeliveryError
from bridge.foundation.pace import RetryPolicy
from bridge.hub.config import ArmConfig
from bridge.hub.decisions import Claimed, DecisionState, End, Result
from bridge.hub.facts import table, text
from bridge.net.entra import open_credential
from bridge.net.http_client import Answer, Request, exchange

if TYPE_CHECKING:
    from azure.core.credentials_async import AsyncTokenCredential

_SECONDS = 30.0
_TARGET = "Azure Resource Manager"
_SCOPE = "https://management.azure.com/.default"
_MOST_REFUSED = 3
_LATER = RetryPolicy(first=2.0, max_backoff=60.0)
_LONGEST = 256
_ENDS = {
    200: (DecisionState.DONE, "acknowledged"),
    401: (DecisionState.FAILED, "unauthorized"),
    403: (DecisionState.FAILED, "unauthorized"),
    404: (DecisionState.FAILED, "unknown-event"),
    409: (DecisionState.DONE, "already-started"),
}
_DONE = {"ok": "acknowledged", "conflict": "already-started"}


class ArmTransport(Struct, frozen=True):
    """Sends decisions to ARM. Created by ``open_arm``."""

    config: ArmConfig
    session: aiohttp.ClientSession
    credential: "AsyncTokenCredential | None"

    async def send(self, claimed: Claimed) -> Result:
        """Make one attempt."""
        path = str(orjson.loads(claimed.message)["path"])
        base = self.config.endpoint.rstrip("/")
        try:
            request = Request(
                url=f"{base}{path}?api-version={self.config.api_version}",
                headers=await self._headers(),
                body=b"",
                timeout=_SECONDS,
            )
            answer = await exchange(self.session, request, _TARGET)
        except (DeliveryError, _NoTokenError) as error:
            wait = _LATER.delay(claimed.attempt, unit=1.0)
            return Result(fault=str(error), retry_after=wait)
        return result_of(answer, claimed)

    async def _headers(self) -> Mapping[str, str]:
        if self.credential is None:
            return {}
        from azure.core.exceptions import AzureError  # noqa: PLC0415 - costs memory

        try:
            token = await self.credential.get_token(_SCOPE)
        except AzureError as error:
            raise _NoTokenError(f"no token: {type(error).__name__}") from None
        return {"Authorization": f"Bearer {token.token}"}


class _NoTokenError(Exception):
    """No token could be obtained now."""


@asynccontextmanager
async def open_arm(
    config: ArmConfig, session: aiohttp.ClientSession
) -> AsyncIterator[ArmTransport]:
    """Open the transport to ARM, with its credential.

    Raises:
        ValueError: the credential cannot be used on this machine.
    """
    async with AsyncExitStack() as stack:
        credential = None
        if config.credential != "none":
            credential = open_credential(
                config.credential, client_id=config.client_id, proxy=None
            )
            await stack.enter_async_context(credential)
        yield ArmTransport(config, session, credential)


def result_of(answer: Answer, claimed: Claimed) -> Result:
    """Return what an answer of ARM means for the decision."""
    if answer.status == 207:
        return _of_details(answer, claimed)
    why = _why(answer)
    is_refused = answer.status in {401, 403}
    is_later = answer.status in {408, 429} or answer.status >= 500
    if is_later or (is_refused and claimed.attempt < _MOST_REFUSED):
        wait = _LATER.delay(claimed.attempt, unit=1.0, retry_after=answer.retry_after)
        return Result(fault=why, retry_after=wait)
    state, outcome = _ENDS.get(answer.status, (DecisionState.FAILED, "rejected"))
    return _end(state, outcome, "" if answer.status == 200 else why)


def _end(state: DecisionState, outcome: str, reason: str) -> Result:
    return Result(end=End(state=state, outcome=outcome, reason=reason))


def _of_details(answer: Answer, claimed: Claimed) -> Result:
    """Read the entry of the event in an answer with several entries."""
    listed = _json(answer.body).get("details")
    details = [table(one) for one in listed] if isinstance(listed, list) else []
    mine = [one for one in details if _is_mine(one, claimed)]
    found = mine[0] if mine else None
    code = text(found.get("code")) if found else ""
    why = _cleaned(text(found.get("message")) if found else "the answer names no event")
    if code.lower() in _DONE:
        return _end(DecisionState.DONE, _DONE[code.lower()], why)
    outcome = "unknown-event" if code.lower() == "notfound" else "rejected"
    return _end(DecisionState.FAILED, outcome, why)


def _is_mine(entry: Mapping[str, object], claimed: Claimed) -> bool:
    """Whether an entry is about the event; an entry without a target counts as such."""
    target = text(entry.get("target"))
    return not target or target.rpartition("/")[2].upper() == claimed.event_key


def _why(answer: Answer) -> str:
    """Return status, code and message of an answer, cut to a readable length."""
    body = _json(answer.body)
    error = table(body.get("error")) or table(body.get("response"))
    words = " ".join(
        part for part in (text(error.get("code")), text(error.get("message"))) if part
    )
    return _cleaned(f"HTTP {answer.status} {words}".strip())


def _json(body: bytes) -> Mapping[str, Any]:
    try:
        return table(orjson.loads(body))
    except orjson.JSONDecodeError:
        return {}


def _cleaned(words: str) -> str:
    return clean(words)[:_LONGEST]
